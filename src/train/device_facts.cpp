#include "relume/train/device_facts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "relume/base/error.h"
#include "relume/io/file.h"
#include "relume/train/step_bench.h"

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

DeviceRates measure_rates(const Config& config, Backend& backend) {
  constexpr std::int64_t kRows = 2048, kVocabulary = 1024;  // enough to fill the device; the head is not what is asked for
  constexpr int kRuns = 4;
  Config probe = config;
  probe.model.num_hidden_layers = 1;
  probe.model.vocab_size = std::min(probe.model.vocab_size, kVocabulary);
  probe.batch = {.micro_batch_size = std::clamp<std::int64_t>(kRows / config.data.sequence_length, 1, config.batch.micro_batch_size)};
  probe.remat = {};
  probe.memory = {};
  StepBench bench(probe, backend);
  const std::vector<PlannedNode>& nodes = bench.program().training.plan.nodes;
  std::vector<double> best(nodes.size(), 1e30);
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> seconds(nodes.size());
    double step_s = 0;
    bench.executor().time_nodes(&seconds);
    bench.step(run, step_s);
    for (std::size_t i = 0; i < nodes.size(); ++i) best[i] = std::min(best[i], seconds[i]);
  }
  double flops[3] = {}, bytes = 0, s[3] = {};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Cost& c = nodes[i].cost;
    const auto engine = static_cast<std::size_t>(c.engine);
    flops[engine] += c.flops;
    s[engine] += best[i];
    if (c.engine == Engine::kMemory) bytes += c.bytes_read + c.bytes_written;
  }
  const auto of = [](Engine e) { return static_cast<std::size_t>(e); };
  return {flops[of(Engine::kMatmul)] / s[of(Engine::kMatmul)], flops[of(Engine::kAttention)] / s[of(Engine::kAttention)], bytes / s[of(Engine::kMemory)]};
}

namespace {

/// What rates depend on.
std::string rates_key(const Config& c, const Backend& backend) {
  const ModelConfig& m = c.model;
  return fmt::format("{}, {}, {} threads, {}, hidden {}, ffn {}, heads {}/{} of {}, {} x {}", backend.device().description, backend.device().kernels,
                     backend.device().threads, c.precision, m.hidden_size, m.intermediate_size, m.num_attention_heads, m.kv_heads(), m.head_size(),
                     c.batch.micro_batch_size, c.data.sequence_length);
}

}  // namespace

DeviceRates device_rates(const Config& c, Backend& backend, const std::string& cache_directory) {
  DeviceRates rates{c.memory.matmul_flops, c.memory.attention_flops, c.memory.bandwidth};
  if (rates.matmul_flops > 0 && rates.attention_flops > 0 && rates.bytes > 0) return rates;
  const std::string path = cache_directory + "/rates.json", key = rates_key(c, backend);
  nlohmann::json cache = nlohmann::json::object();
  if (std::ifstream file(path); !cache_directory.empty() && file) cache = nlohmann::json::parse(file, nullptr, false);
  const auto number = [](const nlohmann::json& j, const char* name) { return j.contains(name) && j[name].is_number() ? j[name].get<double>() : 0.0; };
  DeviceRates measured{0, 0, 0};
  if (cache.is_object() && cache.contains(key) && cache[key].is_object())
    measured = {number(cache[key], "matmul_flops"), number(cache[key], "attention_flops"), number(cache[key], "bandwidth")};
  if (!(measured.matmul_flops > 0 && measured.attention_flops > 0 && measured.bytes > 0)) {
    measured = measure_rates(c, backend);
    if (!cache.is_object()) cache = nlohmann::json::object();  // something else lies there, or a broken file: start again
    cache[key] = {{"matmul_flops", measured.matmul_flops}, {"attention_flops", measured.attention_flops}, {"bandwidth", measured.bytes}};
    if (!cache_directory.empty()) try {
        std::filesystem::create_directories(cache_directory);
        write_file_atomically(path, cache.dump(2) + "\n");
      } catch (const std::exception& e) {
        spdlog::debug("measured rates are not kept: {}", e.what());
      }
  }
  if (rates.matmul_flops == 0) rates.matmul_flops = measured.matmul_flops;
  if (rates.attention_flops == 0) rates.attention_flops = measured.attention_flops;
  if (rates.bytes == 0) rates.bytes = measured.bytes;
  return rates;
}

std::int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace relume
