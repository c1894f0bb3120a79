// Matrix products through cuBLASLt.
#pragma once
#include <cublasLt.h>

#include "relume/backend/kernels.h"

namespace relume::cuda {

/// Throws kRuntime with the call's name.
void check(cublasStatus_t status, const char* what);

/// The library's handle, made at the first use on the current device and kept for the process: kernels are plain functions.
[[nodiscard]] cublasLtHandle_t cublas_handle();

}  // namespace relume::cuda
