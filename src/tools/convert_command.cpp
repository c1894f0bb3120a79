#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/metrics.h"

namespace relume::tools {

namespace {

struct ConvertArguments {
  std::string in, out, dtype = "auto";
  bool json = false;
};

int run(const ConvertArguments& a) {
  namespace fs = std::filesystem;
  if (fs::exists(a.out)) throw Error(ErrorCode::kFile, fmt::format("{}: exists already; nothing is overwritten. hint: another name", a.out));
  const ModelConfig model = read_hf_config(a.in);
  const ParameterLayout layout = make_parameter_layout(model);
  const HfWeights weights(a.in, layout);
  const std::string_view dtype = a.dtype == "bf16" ? "BF16" : a.dtype == "fp32" ? "F32" : weights.lossless_dtype();
  const std::string path = find_tokenizer(a.in);
  const auto tokenizer = path.empty() ? nullptr : load_tokenizer(path);
  if (tokenizer && tokenizer->vocab_size() > model.vocab_size)
    throw Error(ErrorCode::kFile, fmt::format("{}: has {} entries, more than the model's vocab_size {}; hint: it belongs to another model", path, tokenizer->vocab_size(), model.vocab_size));
  ProgressLine progress(stderr, 2, read_environment().colour);
  std::int64_t done = 0;
  write_directory_atomically(a.out, [&](const std::string& directory) {
    write_hf_config(directory, model, {.dtype = dtype, .special = read_special_tokens(a.in)});
    if (const std::string generation = a.in + "/generation_config.json"; fs::exists(generation))
      fs::copy_file(generation, directory + "/generation_config.json", fs::copy_options::overwrite_existing);
    if (tokenizer) export_tokenizer(*tokenizer, directory, model.max_position_embeddings);
    const ReadParameter read = [&](const Parameter& p, float* data) {
      weights.read(p, data);
      done += p.shape.elements();
      progress.show(fmt::format("{} of {} parameters", format_count(done), format_count(layout.count)), static_cast<double>(done) / static_cast<double>(layout.count));
    };
    write_hf_weights(directory + "/model.safetensors", layout, {{"", read}}, dtype);
  });
  progress.finish();
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"directory", a.out}, {"dtype", dtype}, {"parameters", layout.count}, {"tokenizer", tokenizer != nullptr}}.dump());
  else
    fmt::print("{}: {} parameters, {}{}\n", a.out, format_count(layout.count), dtype, tokenizer ? "" : ", no tokenizer");
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto a = std::make_shared<ConvertArguments>();
  CLI::App* c = app.add_subcommand("convert", "write a model or checkpoint as a Hugging Face directory for transformers, llama.cpp and others");
  c->add_option("in", a->in, "Hugging Face directory, such as a checkpoint")->required();
  c->add_option("out", a->out, "the new directory; must not exist")->required();
  c->add_option("--dtype", a->dtype, "of the weights; auto: bf16 if all of them have it, else fp32")->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
