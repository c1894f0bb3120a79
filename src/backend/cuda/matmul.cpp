#include "matmul.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "relume/base/error.h"

namespace relume::cuda {

namespace {

// Workspace lets the library split the inner dimension. Small products gain nothing from it.
constexpr std::int64_t kWorkspace = std::int64_t{32} << 20, kSmallWorkspace = std::int64_t{1} << 20;
constexpr double kLargeFlops = 1e9;

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, DType, DType>;

/// A product as the library wants it, column-major: C^T = op(B)^T op(A)^T. What depends on shapes alone is made once.
struct Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (operation) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, c})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }
};

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

struct Extents {
  std::int64_t m, n, k;
};

Extents extents_of(const MatmulArgs& args) {
  return {args.c.shape[0], args.c.shape[1], args.transpose_a ? args.a.shape[0] : args.a.shape[1]};
}

std::unique_ptr<Product> make_product(const MatmulArgs& args, std::int64_t workspace_bytes) {
  const auto [m, n, k] = extents_of(args);
  auto p = std::make_unique<Product>();
  check(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");  // no TF32
  const cublasOperation_t first = args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, second = args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "cublasLtMatmulDescSetAttribute");
  check(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), "cublasLtMatmulDescSetAttribute");
  const auto layout = [](cublasLtMatrixLayout_t* to, DType dtype, const Shape& row_major) {
    check(cublasLtMatrixLayoutCreate(to, type_of(dtype), static_cast<std::uint64_t>(row_major[1]), static_cast<std::uint64_t>(row_major[0]), row_major[1]),
          "cublasLtMatrixLayoutCreate");
  };
  layout(&p->a, args.b.dtype, args.b.shape);
  layout(&p->b, args.a.dtype, args.a.shape);
  layout(&p->c, args.c.dtype, args.c.shape);
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(&cublasLtMatmulPreferenceDestroy)> owner(preference, cublasLtMatmulPreferenceDestroy);
  const auto bytes = static_cast<std::uint64_t>(workspace_bytes);
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes), "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(cublas_handle(), p->operation, p->a, p->b, p->c, p->c, preference, 1, &result, &found), "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0)
    throw Error(ErrorCode::kRuntime, fmt::format("[cuda matmul] cuBLASLt has no algorithm for {} x {} x {} of {} into {}", m, n, k, to_string(args.a.dtype), to_string(args.c.dtype)));
  p->algorithm = result.algo;
  return p;
}

const Product& product_for(const MatmulArgs& args, std::int64_t workspace_bytes) {
  static std::map<Key, std::unique_ptr<Product>> made;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [m, n, k] = extents_of(args);
  std::unique_ptr<Product>& p = made[{m, n, k, args.transpose_a, args.transpose_b, args.a.dtype, args.c.dtype}];
  if (!p) p = make_product(args, workspace_bytes);
  return *p;
}

}  // namespace

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error(ErrorCode::kRuntime, fmt::format("[cuda] {}: status {}", what, static_cast<int>(status)));
}

cublasLtHandle_t cublas_handle() {
  static const cublasLtHandle_t handle = [] {
    cublasLtHandle_t h = nullptr;
    check(cublasLtCreate(&h), "cublasLtCreate");
    return h;
  }();
  return handle;
}

std::int64_t matmul_workspace(const MatmulArgs& args) {
  const auto [m, n, k] = extents_of(args);
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) >= kLargeFlops ? kWorkspace : kSmallWorkspace;
}

void matmul(const MatmulArgs& args, Stream stream) {
  const std::int64_t workspace_bytes = matmul_workspace(args);
  const Product& p = product_for(args, workspace_bytes);
  const float one = 1, beta = args.accumulate || args.residual.data ? 1.f : 0.f;
  const void* added = args.residual.data ? args.residual.data : args.c.data;
  check(cublasLtMatmul(cublas_handle(), p.operation, &one, args.b.data, p.a, args.a.data, p.b, &beta, added, p.c, args.c.data, p.c, &p.algorithm, args.workspace,
                       static_cast<std::size_t>(workspace_bytes), static_cast<cudaStream_t>(stream.handle)),
        "cublasLtMatmul");
}

}  // namespace relume::cuda
