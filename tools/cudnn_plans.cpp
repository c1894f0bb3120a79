// Whether cuDNN plans relume's attention graphs for an H200, on a machine without one (tools/cudnn_plans.sh).
#include <cudnn.h>
#include <fmt/format.h>

#include <cstring>

#include "cudnn_attention.h"
#include "relume/base/error.h"

using namespace relume;
using namespace relume::cuda;

/// What cuDNN asks about a device (it names members that are missing); figures of NVIDIA's data sheet and CUDA's occupancy tables.
constexpr const char* kH200 = R"({
  "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
  "multiProcessorCount": 132, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32,
  "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535], "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
  "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 62914560,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "totalGlobalMem": 150000000000})";

int main() {
  struct Case {
    const char* name;
    std::int64_t sequences;
    AttentionLayout layout;
  };
  const Case cases[] = {{"llama-488m, 16 x 1024", 16, {1024, 18, 18, 64}}, {"llama-488m, 32 x 1024", 32, {1024, 18, 18, 64}}, {"llama-1b, 8 x 2048", 8, {2048, 32, 8, 64}},
                        {"Llama 3 8B, 1 x 8192", 1, {8192, 32, 8, 128}}, {"488m greedy, 6 of 18 heads", 16, {1024, 6, 6, 64}}, {"one group of four, 1000 tokens", 2, {1000, 4, 1, 128}}};
  int refused = 0;
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(std::strlen(kH200)), kH200).finalize("device description");
  fmt::print("cuDNN {}\n", cudnnGetVersion());
  for (const Case& c : cases)
    for (const bool gradient : {false, true}) try {
        CudnnGraph graph = gradient ? attention_gradient_graph(c.layout, c.sequences) : attention_graph(c.layout, c.sequences);
        const Descriptor plan = graph.plan(nullptr, &device);
        fmt::print("{:<32} {:<9} planned, {:.1f} MiB of workspace\n", c.name, gradient ? "gradient" : "forward", static_cast<double>(workspace_of(plan)) / 1048576);
      } catch (const Error& e) {
        ++refused;
        fmt::print("{:<32} {:<9} refused: {}\n", c.name, gradient ? "gradient" : "forward", e.what());
      }
  return refused ? 1 : 0;
}
