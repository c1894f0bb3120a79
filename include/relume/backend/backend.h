// What a device must offer. Everything above this header is the same for every device.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "relume/backend/kernels.h"
#include "relume/base/cost.h"

namespace relume {

struct DeviceInfo {
  std::string description;   ///< "2 threads, avx512"
  std::string kernels;        ///< what decides the bits of results: "avx512_bf16, oneDNN 2.6.3, products packed by shape"
  int threads = 1;
  bool bf16 = false;          ///< multiplies bf16 matrices in hardware
  std::int64_t memory_bytes = 0;  ///< of the device; 0 = unknown
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual const DeviceInfo& device() const = 0;
  [[nodiscard]] virtual const KernelTable& kernels() const = 0;
  [[nodiscard]] virtual Stream stream() const = 0;

  /// Zeroed device memory, aligned for every kernel. Throws kRuntime with the bytes asked for if there is none, and always
  /// while a step runs: what a kernel needs it has declared as workspace.
  [[nodiscard]] void* allocate(std::int64_t bytes);
  virtual void deallocate(void* data, std::int64_t bytes) noexcept = 0;
  virtual void copy_to_device(void* destination, const void* source, std::int64_t bytes) = 0;
  /// Returns when the bytes have arrived, after all work queued before.
  virtual void copy_to_host(void* destination, const void* source, std::int64_t bytes) = 0;
  virtual void synchronize() = 0;

  /// Work that was queued once and can be queued again with one call.
  class Recorded {
   public:
    Recorded() = default;
    Recorded(const Recorded&) = delete;
    Recorded& operator=(const Recorded&) = delete;
    virtual ~Recorded() = default;
    virtual void replay() = 0;
  };
  /// Records what `work` queues without running it; null if the device queues as fast as it runs, and nothing was called.
  [[nodiscard]] virtual std::unique_ptr<Recorded> record(const std::function<void()>& work) {
    static_cast<void>(work);
    return nullptr;
  }

  /// Names what is queued until end_range(), for the device's profiler.
  virtual void begin_range(const std::string& name) { static_cast<void>(name); }
  virtual void end_range() {}

  /// Marks a running step.
  class Step {
   public:
    explicit Step(Backend& backend) : backend_(backend) { backend_.in_step_ = true; }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    ~Step() { backend_.in_step_ = false; }

   private:
    Backend& backend_;
  };

 private:
  [[nodiscard]] virtual void* allocate_memory(std::int64_t bytes) = 0;
  bool in_step_ = false;
};

/// Owns one allocation of a backend.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend& backend, std::int64_t bytes)
      : backend_(&backend), data_(bytes ? backend.allocate(bytes) : nullptr), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : backend_(other.backend_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_) backend_->deallocate(data_, bytes_);
  }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

struct CpuOptions {
  int threads = 0;  ///< 0: what OpenMP offers (OMP_NUM_THREADS, else all cores). Plans depend on it: keep it for the process.
  std::string isa;  ///< empty: the widest instruction set the processor runs; else "baseline", "avx2", "avx512" or "avx512_bf16"
};

/// The CPU with OpenMP. Throws kUsage if the processor or the build lacks the instruction set asked for.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options = {});

struct CudaOptions {
  int device = 0;
  bool graphs = true;  ///< a step is recorded once and replayed as one CUDA graph
};

/// An NVIDIA GPU. Throws kUsage with the reason if the build has no CUDA or the machine no usable device.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
/// What the build has of CUDA, as "cuda 13.0 for sm_90"; empty if nothing.
[[nodiscard]] std::string cuda_build();
/// Devices that make_cuda_backend() could use now.
[[nodiscard]] int cuda_devices();

/// The kernels of CUDA devices, which say their workspace without one; null if the build has none.
[[nodiscard]] const KernelTable* cuda_kernels();

/// A device that need not be there: what it has, and what it is expected to reach, from its data sheet and published measurements of
/// others (an estimate until a run on it replaces it).
struct DescribedDevice {
  std::string name;
  std::int64_t memory_bytes = 0;
  DeviceRates rates;
};
[[nodiscard]] std::span<const DescribedDevice> described_devices();

/// Plans for a device that need not be there: its CUDA kernels and memory, no allocation. Throws kUsage with the known names, and if
/// the build has no CUDA kernels.
[[nodiscard]] std::unique_ptr<Backend> make_described_backend(const std::string& name);

/// Plans for `target` (whose kernels say how much workspace they need) and allocates nothing: allocate() throws.
[[nodiscard]] std::unique_ptr<Backend> make_null_backend(std::unique_ptr<Backend> target);

}  // namespace relume
