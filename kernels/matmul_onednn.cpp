// Matrix products through oneDNN matmul primitives: they state their scratchpad, which the planner provides. Built for
// version 2 (Debian 12) and 3 (Debian 13); this file holds every difference.
#include <dnnl.hpp>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "relume/backend/kernels.h"

namespace relume::cpu {

// As kernels/cpu.h declares them; that header belongs to one instruction set.
void onednn_matmul(const MatmulArgs&, bool packed_b, Stream);
std::int64_t onednn_matmul_workspace(const MatmulArgs&, bool packed_b);
std::string onednn_version();

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
  memory a, b, c, scratchpad;
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

Product& product(const MatmulArgs& args, bool packed_b) {
  static std::mutex mutex;
  static std::map<Key, Product> cache;
  const auto [m, n, k] = extents(args);
  const std::lock_guard lock(mutex);
  const Key key{m, n, k, args.transpose_a, args.transpose_b, args.accumulate, packed_b, args.a.dtype, args.c.dtype};
  if (const auto it = cache.find(key); it != cache.end()) return it->second;

  const auto plain = memory::format_tag::ab, transposed = memory::format_tag::ba;
  const memory::desc a({m, k}, type_of(args.a.dtype), args.transpose_a ? transposed : plain);
  const auto panels = args.b.dtype == DType::bf16 ? memory::format_tag::BA16a64b2a : memory::format_tag::BA16a64b;
  const memory::desc b({k, n}, type_of(args.b.dtype), packed_b ? panels : args.transpose_b ? transposed : plain);
  const memory::desc c({m, n}, type_of(args.c.dtype), plain);
  dnnl::post_ops after;
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
  p.scratchpad = memory(description.scratchpad_desc(), engine(), nullptr);
  p.scratchpad_bytes = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
  return cache.emplace(key, std::move(p)).first->second;
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

std::int64_t onednn_matmul_workspace(const MatmulArgs& args, bool packed_b) { return product(args, packed_b).scratchpad_bytes; }

void onednn_matmul(const MatmulArgs& args, bool packed_b, Stream) {
  static dnnl::stream stream(engine());
  Product& p = product(args, packed_b);
  p.a.set_data_handle(args.a.data);
  p.b.set_data_handle(args.b.data);
  p.c.set_data_handle(args.c.data);
  p.scratchpad.set_data_handle(args.workspace);
  const dnnl_exec_arg_t operands[] = {{DNNL_ARG_SRC, p.a.get()},
                                      {DNNL_ARG_WEIGHTS, p.b.get()},
                                      {DNNL_ARG_DST, p.c.get()},
                                      {DNNL_ARG_SCRATCHPAD, p.scratchpad.get()}};
  dnnl::error::wrap_c_api(dnnl_primitive_execute(p.primitive.get(), stream.get(), 4, operands), "matmul failed");
  stream.wait();
}

}  // namespace relume::cpu
