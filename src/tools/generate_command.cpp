#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/error.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"
#include "relume/train/generation.h"
#include "relume/train/metrics.h"

namespace relume::tools {

namespace {

struct GenerateArguments {
  std::string model, prompt, in, ids, tokenizer, precision = "auto";
  GenerationOptions options;
  std::vector<std::int32_t> stop;
  std::int64_t context = 0, threads = 0, seed = 0;
  bool ignore_eos = false, json = false;
};

int run(const GenerateArguments& a, bool has_prompt) {
  if (static_cast<int>(has_prompt) + !a.in.empty() + !a.ids.empty() != 1) throw Error(ErrorCode::kUsage, "generate: give one of --prompt TEXT, --in FILE and --ids 1,2,3");
  const ModelConfig model = read_hf_config(a.model);
  const ParameterLayout layout = make_parameter_layout(model);
  { const HfWeights complete(a.model, layout); }  // before anything is allocated
  const std::string tokenizer_path = a.tokenizer.empty() ? find_tokenizer(a.model) : a.tokenizer;
  if (tokenizer_path.empty() && a.ids.empty())
    throw Error(ErrorCode::kFile, fmt::format("{}: has no tokenizer; hint: --tokenizer FILE, or --ids instead of a text", a.model));
  const auto tokenizer = tokenizer_path.empty() ? nullptr : load_tokenizer(tokenizer_path);
  std::vector<std::int32_t> prompt = a.ids.empty() ? tokenizer->encode(has_prompt ? a.prompt : read_input(a.in)) : parse_ids(a.ids);
  if (a.ids.empty() && tokenizer->adds_bos() && tokenizer->bos_id() >= 0) prompt.insert(prompt.begin(), tokenizer->bos_id());
  if (prompt.empty()) throw Error(ErrorCode::kUsage, "generate: the prompt is empty and the tokenizer has no BOS token to begin with");
  for (std::int32_t id : prompt)
    if (id < 0 || id >= model.vocab_size) throw Error(ErrorCode::kUsage, fmt::format("token {} of the prompt is not below the model's vocabulary size {}", id, model.vocab_size));
  GenerationOptions options = a.options;
  options.sampling.seed = static_cast<std::uint64_t>(a.seed);
  options.stop = a.stop;
  if (!a.ignore_eos)
    for (std::int64_t id : read_stop_tokens(a.model)) options.stop.push_back(static_cast<std::int32_t>(id));
  const auto length = static_cast<std::int64_t>(prompt.size());
  const std::int64_t context = std::min(a.context ? a.context : model.max_position_embeddings, length + options.max_tokens);
  if (context > model.max_position_embeddings)
    throw Error(ErrorCode::kUsage, fmt::format("--context {}: the model is meant for at most {} tokens", context, model.max_position_embeddings));
  if (length > context) throw Error(ErrorCode::kUsage, fmt::format("the prompt has {} tokens; the context holds {}", length, context));

  const auto backend = make_backend("auto", a.threads);
  Memory memory(*backend);
  Generator generator(model, layout, {.context = context}, resolve_precision(a.precision, backend->device()), memory);
  memory.allocate();
  load_weights(a.model, layout, memory);
  refresh_derived_weights(layout, memory);

  std::optional<TextStream> stream;
  if (tokenizer) {
    stream.emplace(*tokenizer);
    stream->begin(prompt);
  }
  const auto give = [&](const std::string& text) {
    if (a.json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  if (tokenizer && a.ids.empty()) give(tokenizer->decode(prompt));
  std::string text;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::int32_t> out = generate(generator, prompt, options, [&](std::int32_t token) {
    const std::string piece = stream ? stream->push(token) : fmt::format("{} ", token);
    text += piece;
    give(piece);
    return true;
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (stream) {
    const std::string rest = stream->finish();
    text += rest;
    give(rest);
  }
  const bool stopped = static_cast<std::int64_t>(out.size()) < options.max_tokens && generator.position() < context;
  const char* reason = stopped ? "stop" : static_cast<std::int64_t>(out.size()) == options.max_tokens ? "length" : "context";
  if (a.json) {
    nlohmann::ordered_json j{{"prompt_tokens", prompt}, {"tokens", out}, {"finish_reason", reason}, {"seconds", seconds}};
    if (tokenizer) j["text"] = text;
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("\n");
    fmt::print(stderr, "{} tokens read, {} written in {:.1f} s ({:.1f} a second), ended by {}\n", prompt.size(), out.size(), seconds, static_cast<double>(out.size()) / seconds, reason);
  }
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* c = app.add_subcommand("generate", "continue a text");
  c->add_option("model", a->model, "Hugging Face directory, such as a checkpoint")->required();
  CLI::Option* prompt = c->add_option("--prompt", a->prompt, "the text to continue; may be empty");
  c->add_option("--in", a->in, "a file with the text, or - for standard input")->type_name("FILE");
  c->add_option("--ids", a->ids, "token ids to continue, as 1,2,3, taken as they are");
  c->add_option("--tokenizer", a->tokenizer, "tokenizer, if not the model's own")->type_name("FILE");
  c->add_option("--max-tokens", a->options.max_tokens, "tokens to write")->check(CLI::PositiveNumber);
  c->add_option("--temperature", a->options.sampling.temperature, "0: always the most likely token")->check(CLI::Range(0.0, 100.0));
  c->add_option("--top-k", a->options.sampling.top_k, "choose among so many of the most likely tokens; 0: all")->check(CLI::NonNegativeNumber);
  c->add_option("--top-p", a->options.sampling.top_p, "choose among the fewest tokens whose probabilities reach this")->check(CLI::Range(0.0, 1.0));
  c->add_option("--seed", a->seed, "of the choice; the same seed gives the same text");
  c->add_option("--stop", a->stop, "token ids that end the text, beside those of the model");
  c->add_flag("--ignore-eos", a->ignore_eos, "do not end at the model's own end of text");
  c->add_option("--context", a->context, "tokens to keep in mind; default what the model is meant for")->check(CLI::PositiveNumber);
  c->add_option("--precision", a->precision, "dtype of matrix products")->check(CLI::IsMember({"fp32", "bf16", "auto"}));
  c->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, prompt, &action] { action = [a, prompt] { return run(*a, prompt->count() > 0); }; });
}

}  // namespace relume::tools
