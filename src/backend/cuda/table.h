#pragma once
#include <cuda_runtime.h>

#include "relume/backend/kernels.h"

namespace relume::cuda {

extern const KernelTable kKernelTable;

/// Throws kRuntime with the call's name and CUDA's text for anything but success.
void check(cudaError_t error, const char* what);

}  // namespace relume::cuda
