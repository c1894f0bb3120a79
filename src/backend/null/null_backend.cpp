#include <fmt/format.h>

#include "relume/backend/backend.h"
#include "relume/base/error.h"

namespace relume {

namespace {

class NullBackend final : public Backend {
 public:
  NullBackend(DeviceInfo info, const KernelTable& kernels, std::unique_ptr<Backend> target = nullptr)
      : info_(std::move(info)), kernels_(kernels), target_(std::move(target)) {}

  [[nodiscard]] std::string_view name() const override { return "null"; }
  [[nodiscard]] const DeviceInfo& device() const override { return info_; }
  [[nodiscard]] const KernelTable& kernels() const override { return kernels_; }
  [[nodiscard]] Stream stream() const override { return {}; }
  [[nodiscard]] void* allocate_memory(std::int64_t) override { refuse(); }
  void deallocate(void*, std::int64_t) noexcept override {}
  void copy_to_device(void*, const void*, std::int64_t) override { refuse(); }
  void copy_to_host(void*, const void*, std::int64_t) override { refuse(); }
  void synchronize() override {}

 private:
  [[noreturn]] static void refuse() { throw Error(ErrorCode::kRuntime, "[null backend] plans only; it has no memory to touch"); }
  DeviceInfo info_;
  const KernelTable& kernels_;
  std::unique_ptr<Backend> target_;  // whose kernels these are
};

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

}  // namespace

std::unique_ptr<Backend> make_null_backend(std::unique_ptr<Backend> target) {
  const DeviceInfo info = target->device();
  const KernelTable& kernels = target->kernels();
  return std::make_unique<NullBackend>(info, kernels, std::move(target));
}

std::span<const DescribedDevice> described_devices() {
  // Dense bf16 peak and bandwidth of the data sheets (H200 989 TFLOP/s, 4.8 TB/s; H100 SXM 989, 3.35; A100 312, 2.04), times what good
  // kernels reach: 0.65 of the peak in products, 0.45 in attention, 0.8 of the bandwidth.
  static const DescribedDevice devices[] = {
      {"h200", 141 * kGiB, {640e12, 440e12, 3.8e12}},
      {"h100", 80 * kGiB, {640e12, 440e12, 2.7e12}},
      {"a100", 80 * kGiB, {220e12, 150e12, 1.6e12}},
  };
  return devices;
}

std::unique_ptr<Backend> make_described_backend(const std::string& name) {
  std::string known;
  for (const DescribedDevice& d : described_devices()) {
    known += (known.empty() ? "" : ", ") + d.name;
    if (d.name != name) continue;
    if (!cuda_kernels()) throw Error(ErrorCode::kUsage, fmt::format("--device {}: this build has no CUDA kernels to plan for; hint: configure with -DRELUME_CUDA=ON", name));
    DeviceInfo info{.description = d.name + ", described", .kernels = d.name, .bf16 = true, .memory_bytes = d.memory_bytes};
    return std::make_unique<NullBackend>(std::move(info), *cuda_kernels());
  }
  throw Error(ErrorCode::kUsage, fmt::format("--device {}: unknown; expected {}", name, known));
}

}  // namespace relume
