// A Llama on a tape with memory, for tests: weights from a Hugging Face file, gradients by Hugging Face name.
#pragma once
#include <fstream>
#include <sstream>

#include "relume/train/program.h"
#include "support.h"

namespace relume::test {

inline ModelConfig tiny_model() {
  std::ifstream file(data_path("hf-llama-tiny/config.json"));
  std::stringstream text;
  text << file.rdbuf();
  return parse_model_config(text.str(), "hf-llama-tiny/config.json");
}

/// Position t predicts t + 1; the last position of each sequence has no target.
inline std::vector<std::int32_t> next_token_targets(const std::vector<std::int32_t>& tokens, std::int64_t length) {
  std::vector<std::int32_t> targets(tokens.size(), -100);
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i)
    if (static_cast<std::int64_t>(i + 1) % length != 0) targets[i] = tokens[i + 1];
  return targets;
}

/// Make it, record() a policy, then step().
class LlamaBench : public Bench {
 public:
  LlamaBench(const ModelConfig& config, std::int64_t sequences, std::int64_t tokens, DType dtype = DType::f32, std::unique_ptr<Backend> backend = make_cpu_backend())
      : Bench(std::move(backend)),
        model(config),
        layout(make_parameter_layout(config)),
        shape_{.sequences = sequences, .tokens = tokens, .head_chunk_rows = std::min<std::int64_t>(sequences * tokens, 40), .dtype = dtype} {}

  void record(const RematConfig& remat, bool logits = false, const OptimizerConfig& optimizer = {}) {
    finish([&](Llama& llama) { return llama.forward(remat); }, logits, optimizer);
  }
  void record(const DecideBlock& decide) {
    finish([&](Llama& llama) { return llama.forward(decide); }, false, {});
  }

  void load(const std::string& path) {
    const SafetensorsFile file(path);
    std::vector<float> flat(static_cast<std::size_t>(layout.elements), 0.f);
    for (const Parameter& p : layout.parameters)
      for (const HfPiece& piece : p.pieces) copy_from_hf(p, piece, read_f32(file, piece.name).data(), flat.data() + p.offset);
    write_real("parameters", flat);
  }

  void initialize_weights(std::uint64_t seed) {
    std::vector<float> flat(static_cast<std::size_t>(layout.elements), 0.f);
    for (const Parameter& p : layout.parameters) initialize(p, model, seed, flat.data() + p.offset);
    write_real("parameters", flat);
  }

  /// One micro-batch from cleared gradients; `targets` of them count.
  void step(double targets, StepState state = {}) {
    state.inverse_targets = 1 / targets;
    memory().write("step_state", &state, 1);
    const StepResult zero;
    memory().write("step_result", &zero, 1);
    write_real("gradients", std::vector<float>(static_cast<std::size_t>(layout.elements), 0.f));
    executor().run_micro_batch();
  }

  StepResult result() const {
    return read<StepResult>("step_result", 1)[0];
  }

  std::vector<double> flat_gradient() const {
    if (shape_.dtype == DType::f64) return read<double>("gradients", layout.elements);
    const auto f = read<float>("gradients", layout.elements);
    return {f.begin(), f.end()};
  }

  /// Gradients as Hugging Face names and lays them out.
  std::map<std::string, std::vector<float>> hf_gradients() const {
    const auto flat = flat_gradient();
    const std::vector<float> f(flat.begin(), flat.end());
    std::map<std::string, std::vector<float>> result;
    for (const Parameter& p : layout.parameters)
      for (const HfPiece& piece : p.pieces) {
        std::vector<float> hf(static_cast<std::size_t>(piece.rows * p.columns()));
        copy_to_hf(p, piece, f.data() + p.offset, hf.data());
        result[piece.name] = hf;
      }
    return result;
  }

  const ModelConfig model;
  const ParameterLayout layout;

  /// In the accumulation dtype; parameters also reach their bf16 copy.
  void write_real(const std::string& name, const std::vector<float>& values) {
    if (shape_.dtype == DType::f64)
      write<double>(name, {values.begin(), values.end()});
    else
      write<float>(name, values);
    refresh_derived_weights(layout, memory());
  }

 private:
  template <class Forward>
  void finish(Forward&& forward, bool logits, const OptimizerConfig& optimizer) {
    Llama llama(tape, model, layout, shape_);
    const Tensor h = forward(llama);
    if (logits) keep(linear(h, llama.head()), "logits");
    tape.backward(llama.loss(h));
    if (shape_.dtype != DType::f64) llama.update(optimizer);
    start();
    write_real("rope_table", rope_table(model, shape_.tokens));
    const ModelConfig tiny = tiny_model();  // the fixture has its weights; other models get theirs from the test
    if (model.vocab_size == tiny.vocab_size && model.hidden_size == tiny.hidden_size && model.head_size() == tiny.head_size()) load(data_path("hf-llama-tiny/model.safetensors"));
  }

  GraphShape shape_;
};

}  // namespace relume::test
