#pragma once
#include <cstdint>

namespace relume {

/// What bounds a node unless memory traffic does.
enum class Engine : std::uint8_t { kMemory, kMatmul, kAttention };

/// What one node costs. A multiply-add is 2 flops; bytes are those of operands and results, each counted once.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  std::int64_t workspace_bytes = 0;
  Engine engine = Engine::kMemory;
};

/// What a device does in a second. The defaults are those of a plain two-core machine: for comparing plans where nothing was
/// measured (measure_rates()).
struct DeviceRates {
  double matmul_flops = 200e9, attention_flops = 100e9, bytes = 10e9;
};

/// Predicted time of a node: its flops or its traffic, whichever takes longer.
[[nodiscard]] inline double seconds(const Cost& c, const DeviceRates& r) {
  const double traffic = (c.bytes_read + c.bytes_written) / r.bytes;
  const double arithmetic = c.engine == Engine::kMatmul      ? c.flops / r.matmul_flops
                            : c.engine == Engine::kAttention ? c.flops / r.attention_flops
                                                             : 0.0;
  return traffic > arithmetic ? traffic : arithmetic;
}

}  // namespace relume
