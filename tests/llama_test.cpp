// A whole Llama against PyTorch and transformers (tests/data, made by make_fixtures.py and make_remat_fixtures.py).
#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "llama_bench.h"

using namespace relume;
using namespace relume::test;

TEST_CASE("logits and every gradient of a tiny Llama equal PyTorch's") {
  const SafetensorsFile golden(data_path("hf-llama-tiny/golden.safetensors"));
  LlamaBench b(tiny_model(), 2, 48);
  b.record(RematConfig{}, true);
  b.write<std::int32_t>("tokens", read_i32(golden, "input_ids"));
  b.write<std::int32_t>("targets", next_token_targets(read_i32(golden, "input_ids"), 48));
  b.step(94);
  CHECK(relative_error(b.read<float>("logits", 2 * 48 * 512), read_f32(golden, "logits")) < 1e-5);
  CHECK(b.result().nll / 94 == Approx(read_f32(golden, "loss")[0]).epsilon(1e-6));
  for (const auto& [name, gradient] : b.hf_gradients()) {
    INFO(name);
    CHECK(relative_error(gradient, read_f32(golden, "grad." + name)) < 1e-4);
  }
}

TEST_CASE("in f64 the distance to PyTorch's f32 gradients is the rounding of the latter") {
  const SafetensorsFile golden(data_path("hf-llama-tiny/golden.safetensors"));
  LlamaBench b(tiny_model(), 2, 48, DType::f64);
  b.record(RematConfig{});
  b.write<std::int32_t>("tokens", read_i32(golden, "input_ids"));
  b.write<std::int32_t>("targets", next_token_targets(read_i32(golden, "input_ids"), 48));
  b.step(94);
  for (const auto& [name, gradient] : b.hf_gradients()) {
    INFO(name);
    CHECK(relative_error(gradient, read_f32(golden, "grad." + name)) < 5e-6);
  }
}
