// What is measured at start-up or asked of the system.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "relume/train/trainer.h"

namespace relume {

double measure_peak_flops(Backend& backend, const std::string& precision) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kExtent = 1536, kRuns = 5;
  constexpr double kBudgetS = 0.5;
  const bool bf16 = precision == "bf16";
  const std::int64_t bytes = kExtent * kExtent * 4;
  const DeviceBuffer a(backend, bytes), b(backend, bytes), c(backend, bytes);
  const std::vector<float> ones(static_cast<std::size_t>(kExtent * kExtent), 1.f);  // untouched pages would all be one cached page
  backend.copy_to_device(a.data(), ones.data(), bytes);
  backend.copy_to_device(b.data(), ones.data(), bytes);
  const auto view = [&](const DeviceBuffer& buffer) { return TensorView{buffer.data(), bf16 ? DType::bf16 : DType::f32, {kExtent, kExtent}}; };
  MatmulArgs args{view(a), view(b), view(c), {}, false, true, false, nullptr};
  const DeviceBuffer scratch(backend, backend.kernels().matmul.workspace_bytes(args));
  args.workspace = scratch.data();
  double best = 0;
  const auto start = Clock::now();
  for (int i = 0; i < kRuns || std::chrono::duration<double>(Clock::now() - start).count() < kBudgetS; ++i) {
    const auto before = Clock::now();
    backend.kernels().matmul.run(args, backend.stream());
    backend.synchronize();
    const double s = std::chrono::duration<double>(Clock::now() - before).count();
    best = std::max(best, 2.0 * kExtent * kExtent * kExtent / s);
  }
  return best;
}

std::int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace relume
