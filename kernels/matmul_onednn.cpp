// Matrix products through oneDNN matmul primitives: they state their scratchpad, which the planner provides. Built for
// version 2 (Debian 12) and 3 (Debian 13); this file holds every difference. f64 has a plain loop of its own.
#include <dnnl.hpp>

#include <map>
#include <mutex>
#include <tuple>

#include "relume/backend/kernels.h"

namespace relume::cpu {

void matmul(const MatmulArgs& args, Stream);
std::int64_t matmul_workspace(const MatmulArgs& args);

namespace {

using dnnl::memory;

struct Extents {
  std::int64_t m, n, k;
};

Extents extents(const MatmulArgs& args) {
  return {args.c.shape[0], args.c.shape[1], args.transpose_a ? args.a.shape[0] : args.a.shape[1]};
}

/// One primitive for each form and shape. Creating one compiles code (0.1-5 ms), so it happens when the plan asks for the
/// workspace, never inside a step.
struct Product {
  dnnl::matmul primitive;
  memory a, b, c, residual, scratchpad;
  std::int64_t scratchpad_bytes = 0;
};

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine()};
#endif
}

memory::data_type type_of(DType dtype) { return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32; }

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool, DType, DType>;

Product& product(const MatmulArgs& args) {
  static std::mutex mutex;
  static std::map<Key, Product> cache;
  const auto [m, n, k] = extents(args);
  const bool residual = args.residual.shape.rank() > 0;
  const std::lock_guard lock(mutex);
  const Key key{m, n, k, args.transpose_a, args.transpose_b, args.accumulate, residual, args.a.dtype, args.c.dtype};
  if (const auto it = cache.find(key); it != cache.end()) return it->second;

  const auto plain = memory::format_tag::ab, transposed = memory::format_tag::ba;
  const memory::desc a({m, k}, type_of(args.a.dtype), args.transpose_a ? transposed : plain);
  const memory::desc b({k, n}, type_of(args.b.dtype), args.transpose_b ? transposed : plain);
  const memory::desc c({m, n}, type_of(args.c.dtype), plain);
  dnnl::post_ops after;
  if (residual) after.append_binary(dnnl::algorithm::binary_add, c);
  if (args.accumulate) after.append_sum(1.f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(after);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto description = describe(a, b, c, attributes);
  Product p;
  p.primitive = dnnl::matmul(description);
  p.a = memory(a, engine(), nullptr);
  p.b = memory(b, engine(), nullptr);
  p.c = memory(c, engine(), nullptr);
  if (residual) p.residual = memory(c, engine(), nullptr);
  p.scratchpad = memory(description.scratchpad_desc(), engine(), nullptr);
  p.scratchpad_bytes = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
  return cache.emplace(key, std::move(p)).first->second;
}

void matmul_f64(const MatmulArgs& args) {
  const Extents e = extents(args);
  const std::int64_t m = e.m, n = e.n, k = e.k;  // clang 14 does not share structured bindings with OpenMP regions
  const double *a = args.a.as<double>(), *b = args.b.as<double>(), *residual = args.residual.as<double>();
  double* c = args.c.as<double>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += (args.transpose_a ? a[l * m + i] : a[i * k + l]) * (args.transpose_b ? b[j * k + l] : b[l * n + j]);
      if (residual) sum += residual[i * n + j];
      c[i * n + j] = args.accumulate ? c[i * n + j] + sum : sum;
    }
}

}  // namespace

std::int64_t matmul_workspace(const MatmulArgs& args) {
  return args.c.dtype == DType::f64 ? 0 : product(args).scratchpad_bytes;
}

void matmul(const MatmulArgs& args, Stream) {
  if (args.c.dtype == DType::f64) return matmul_f64(args);
  static dnnl::stream stream(engine());
  Product& p = product(args);
  p.a.set_data_handle(args.a.data);
  p.b.set_data_handle(args.b.data);
  p.c.set_data_handle(args.c.data);
  p.scratchpad.set_data_handle(args.workspace);
  dnnl_exec_arg_t operands[5] = {{DNNL_ARG_SRC, p.a.get()},
                                 {DNNL_ARG_WEIGHTS, p.b.get()},
                                 {DNNL_ARG_DST, p.c.get()},
                                 {DNNL_ARG_SCRATCHPAD, p.scratchpad.get()},
                                 {}};
  int count = 4;
  if (args.residual.data) {
    p.residual.set_data_handle(args.residual.data);
    operands[count++] = {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, p.residual.get()};
  }
  dnnl::error::wrap_c_api(dnnl_primitive_execute(p.primitive.get(), stream.get(), count, operands), "matmul failed");
  stream.wait();
}

}  // namespace relume::cpu
