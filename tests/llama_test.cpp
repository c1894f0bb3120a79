// A whole Llama against PyTorch and transformers (tests/data, made by make_fixtures.py and make_remat_fixtures.py).
#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "llama_bench.h"
#include "relume/train/checkpoint.h"

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

TEST_CASE("a tied bf16 model in shards with scaled rotary frequencies has transformers' logits and gradients, in either spelling") {
  const SafetensorsFile golden(data_path("hf-llama-rope3/golden.safetensors"));
  for (const char* spelling : {"config.json", "config.v4.json"}) {
    INFO(spelling);
    std::ifstream file(data_path(std::string("hf-llama-rope3/") + spelling));
    std::stringstream text;
    text << file.rdbuf();
    const ModelConfig model = parse_model_config(text.str(), spelling);
    CHECK(model.tie_word_embeddings);
    CHECK(model.head_size() == 32);
    CHECK(model.rope_scaling == RopeScaling{"llama3", 8, 1, 4, 32});
    const auto frequencies = rope_table(model, 2), expected = read_f32(golden, "inv_freq");
    for (std::size_t i = 0; i < 16; ++i) CHECK(frequencies[32 + 16 + i] == Approx(std::sin(expected[i])).epsilon(1e-6));  // sines of position 1
    LlamaBench b(model, 1, 200);
    b.record(RematConfig{}, true);
    load_weights(data_path("hf-llama-rope3"), b.layout, b.memory());
    b.write<std::int32_t>("tokens", read_i32(golden, "input_ids"));
    b.write<std::int32_t>("targets", next_token_targets(read_i32(golden, "input_ids"), 200));
    b.step(199);
    CHECK(relative_error(b.read<float>("logits", 200 * 512), read_f32(golden, "logits")) < 1e-5);
    CHECK(b.result().nll / 199 == Approx(read_f32(golden, "loss")[0]).epsilon(1e-6));
    for (const auto& [name, gradient] : b.hf_gradients()) {
      INFO(name);
      CHECK(relative_error(gradient, read_f32(golden, "grad." + name)) < 1e-4);
    }
  }
}

TEST_CASE("in bf16 loss and gradients are within the rounding of bf16 of PyTorch's in f32") {
  const SafetensorsFile golden(data_path("hf-llama-tiny/golden.safetensors"));
  LlamaBench b(tiny_model(), 2, 48, DType::bf16);
  b.record(RematConfig{});
  b.write<std::int32_t>("tokens", read_i32(golden, "input_ids"));
  b.write<std::int32_t>("targets", next_token_targets(read_i32(golden, "input_ids"), 48));
  b.step(94);
  CHECK(b.result().nll / 94 == Approx(read_f32(golden, "loss")[0]).epsilon(2e-3));
  for (const auto& [name, gradient] : b.hf_gradients()) {
    INFO(name);
    CHECK(relative_error(gradient, read_f32(golden, "grad." + name)) < 5e-2);
  }
}

TEST_CASE("an update leaves the bf16 copy of the matrices equal to the rounded master weights") {
  LlamaBench b(tiny_model(), 2, 48, DType::bf16);
  b.record(RematConfig{});
  const SafetensorsFile golden(data_path("hf-llama-tiny/golden.safetensors"));
  b.write<std::int32_t>("tokens", read_i32(golden, "input_ids"));
  b.write<std::int32_t>("targets", next_token_targets(read_i32(golden, "input_ids"), 48));
  const auto before = b.read<float>("parameters", b.layout.elements);
  b.step(94, {.learning_rate = 1e-3});
  b.executor().run_update();
  const auto master = b.read<float>("parameters", b.layout.elements);
  const auto copy = b.read_as(DType::bf16, "matrices_bf16", b.layout.matrices);
  CHECK(master != before);
  for (std::int64_t i = 0; i < b.layout.matrices; ++i) {
    const double w = static_cast<double>(master[static_cast<std::size_t>(i)]), error = std::abs(copy[static_cast<std::size_t>(i)] - w);
    REQUIRE(error <= std::abs(w) / 256);  // half a unit in the last of 8 bits
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
