// In the place of the CUDA backend in a build without it.
#include "relume/backend/backend.h"
#include "relume/base/error.h"

namespace relume {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw Error(ErrorCode::kUsage, "device cuda: this build has no CUDA; hint: configure with -DRELUME_CUDA=ON where the CUDA toolkit is");
}

std::string cuda_build() { return ""; }

int cuda_devices() { return 0; }

const KernelTable* cuda_kernels() { return nullptr; }

}  // namespace relume
