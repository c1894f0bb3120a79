#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstring>
#include <memory>

#include "relume/backend/backend.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "table.h"

namespace relume {

namespace cuda {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(ErrorCode::kRuntime, fmt::format("[cuda] {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace cuda

namespace {

using cuda::check;

/// A step as one graph.
class Graph final : public Backend::Recorded {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  void replay() override { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

/// Pinned memory through which small host buffers go to the device without the host waiting: used in turn, and waited for only when
/// a turn comes round before its copy has happened.
class StagingRing {
 public:
  static constexpr std::int64_t kBytes = 1 << 20;

  StagingRing() = default;
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing() {
    for (Slot& s : slots_) {
      if (s.copied) cudaEventDestroy(s.copied);
      if (s.data) cudaFreeHost(s.data);
    }
  }

  void copy(void* destination, const void* source, std::int64_t bytes, cudaStream_t stream) {
    Slot& s = slots_[next_++ % slots_.size()];
    if (!s.data) {
      check(cudaMallocHost(&s.data, kBytes), "cudaMallocHost");
      check(cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    } else {
      check(cudaEventSynchronize(s.copied), "cudaEventSynchronize");
    }
    std::memcpy(s.data, source, static_cast<std::size_t>(bytes));
    check(cudaMemcpyAsync(destination, s.data, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    check(cudaEventRecord(s.copied, stream), "cudaEventRecord");
  }

 private:
  struct Slot {
    void* data = nullptr;
    cudaEvent_t copied = nullptr;
  };
  std::array<Slot, 16> slots_;
  std::size_t next_ = 0;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options) : options_(options) {
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0)
      throw Error(ErrorCode::kUsage, fmt::format("device cuda: no usable device: {}; hint: --set device=cpu", error == cudaSuccess ? "there is none" : cudaGetErrorString(error)));
    if (options.device < 0 || options.device >= devices)
      throw Error(ErrorCode::kUsage, fmt::format("device cuda: there is no device {}; devices are 0 to {}", options.device, devices - 1));
    check(cudaSetDevice(options.device), "cudaSetDevice");
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, options.device), "cudaGetDeviceProperties");
    info_.description = fmt::format("{}, sm_{}{}", properties.name, properties.major, properties.minor);
    int runtime = 0;
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    info_.kernels = fmt::format("sm_{}{}, CUDA {}.{}", properties.major, properties.minor, runtime / 1000, runtime % 1000 / 10);
    info_.bf16 = properties.major >= 8;
    info_.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] const DeviceInfo& device() const override { return info_; }
  [[nodiscard]] const KernelTable& kernels() const override { return cuda::kKernelTable; }
  [[nodiscard]] Stream stream() const override { return {stream_}; }

  [[nodiscard]] void* allocate_memory(std::int64_t bytes) override {
    void* data = nullptr;
    if (const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(bytes)); error != cudaSuccess) {
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      cudaGetLastError();  // an allocation that failed leaves the device usable
      throw Error(ErrorCode::kRuntime, fmt::format("out of device memory: {} asked for, {} of {} free on {}: {}; hint: memory.budget with the policy auto, or a smaller "
                                                   "micro_batch_size, needs less (relume plan shows how much)",
                                                   format_bytes(bytes), format_bytes(static_cast<std::int64_t>(free)), format_bytes(static_cast<std::int64_t>(total)),
                                                   info_.description, cudaGetErrorString(error)));
    }
    check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream_), "cudaMemsetAsync");
    return data;
  }
  void deallocate(void* data, std::int64_t) noexcept override {
    cudaStreamSynchronize(stream_);
    cudaFree(data);
  }
  void copy_to_device(void* destination, const void* source, std::int64_t bytes) override {
    if (bytes <= StagingRing::kBytes) return staging_.copy(destination, source, bytes, stream_);
    check(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void copy_to_host(void* destination, const void* source, std::int64_t bytes) override {
    check(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
    synchronize();
  }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  void begin_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end_range() override { nvtxRangePop(); }

  [[nodiscard]] std::unique_ptr<Recorded> record(const std::function<void()>& work) override {
    if (!options_.graphs) return nullptr;
    return std::make_unique<Graph>(stream_, work);
  }

 private:
  CudaOptions options_;
  DeviceInfo info_;
  cudaStream_t stream_ = nullptr;
  StagingRing staging_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) { return std::make_unique<CudaBackend>(options); }

std::string cuda_build() { return fmt::format("cuda {}.{} for {}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, RELUME_CUDA_TARGETS); }

const KernelTable* cuda_kernels() { return &cuda::kKernelTable; }

int cuda_devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

}  // namespace relume
