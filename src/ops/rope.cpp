#include <fmt/format.h>

#include "relume/ops/ops.h"

namespace relume {

namespace {

struct RopeAttributes {
  std::int64_t head_dim, rotated_columns;
  bool inverse;
};

std::vector<OutputSpec> infer(const InferContext& c) {
  const auto& a = c.attributes<RopeAttributes>();
  c.require_rank(0, "x", 2);
  c.require_dtype(1, "table", accumulation_dtype(c.dtype(0)));
  c.require(a.head_dim > 0 && a.head_dim % 2 == 0, fmt::format("head_dim must be even, got {}", a.head_dim));
  c.require(c.shape(1).rank() == 2 && c.shape(1)[1] == a.head_dim,
            fmt::format("table must be (tokens, {}), got {}", a.head_dim, c.shape(1).to_string()));
  c.require(a.rotated_columns % a.head_dim == 0 && a.rotated_columns <= c.shape(0)[1],
            fmt::format("rotated columns must be whole heads of x {}, got {}", c.shape(0).to_string(), a.rotated_columns));
  c.require(c.shape(0)[0] % c.shape(1)[0] == 0,
            fmt::format("rows of x {} must be whole sequences of {} tokens", c.shape(0).to_string(), c.shape(1)[0]));
  return {{.shape = c.shape(0), .dtype = c.dtype(0), .may_alias = 0}};
}

void vjp(Vjp& r) {
  const auto a = r.attributes<RopeAttributes>();
  r.add(0, rope(r.dout(0), r.in(1), a.head_dim, a.rotated_columns, !a.inverse));
}

Cost cost(const NodeContext& n) {
  const auto& a = n.attributes<RopeAttributes>();
  return {.flops = 3.0 * static_cast<double>(n.in[0].shape[0] * a.rotated_columns), .bytes_read = n.bytes_in(), .bytes_written = n.bytes_out()};
}

void run(const NodeContext& n) {
  const auto& a = n.attributes<RopeAttributes>();
  n.kernels.rope.run({n.in[0], n.in[1], n.out[0], n.in[1].shape[0], a.head_dim, a.rotated_columns, a.inverse}, n.stream);
}

}  // namespace

const OpDef kRope{"rope", infer, vjp, cost, run};

Tensor rope(Tensor x, Tensor table, std::int64_t head_dim, std::int64_t rotated_columns, bool inverse) {
  return x.tape->emit(kRope, {x, table}, RopeAttributes{head_dim, rotated_columns, inverse})[0];
}

}  // namespace relume
