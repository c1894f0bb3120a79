// Gives the tests copies on a CUDA stream.
#include <cuda_runtime.h>

#include "copy_on_stream.h"
#include "relume/base/error.h"

namespace relume::test {

void copy_on_stream(void* to, const void* from, std::int64_t bytes, Stream stream) {
  if (cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream.handle)) != cudaSuccess)
    throw Error(ErrorCode::kRuntime, "cudaMemcpyAsync");
}

}  // namespace relume::test
