#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"
#include "relume/train/data_loader.h"
#include "relume/train/metrics.h"
#include "relume/train/perplexity.h"
#include "relume/train/program.h"

namespace relume::tools {

namespace {

using Json = nlohmann::ordered_json;

struct EvalArguments {
  std::vector<std::string> models;
  std::string data, text, tokenizer, mode, bos = "auto", precision = "fp32", form = "auto";
  std::int64_t context = 0, stride = 0, batch = 8, tokens = 0, threads = 0;
  bool json = false;
};

/// What one model is scored on.
struct Task {
  std::string mode, bos = "as in the data";
  std::int64_t context = 0, stride = 0;
  ScoringWindows windows;
  std::int64_t text_bytes = 0, text_words = 0, text_tokens = 0;  // 0: the text is not known
};

struct Outcome {
  std::string model, precision;
  Task task;
  EvaluationResult result;
  double bits_per_byte = 0, word_perplexity = 0;  // 0: not known
};

/// All tokens of the data, or of the text as the model's tokenizer has it.
TokenSequence read_tokens(const EvalArguments& a, const std::string& model_path, const ModelConfig& model, Task& task, std::int32_t& tokenizer_bos) {
  auto ids = std::make_shared<std::vector<std::int32_t>>();
  tokenizer_bos = -1;
  if (a.text.empty()) {
    for (const std::string& path : match_files(a.data)) {
      const TokenShard shard(path, parse_shard_form(a.form));
      const std::size_t before = ids->size();
      ids->resize(before + static_cast<std::size_t>(shard.tokens()));
      shard.read(0, shard.tokens(), model.vocab_size, ids->data() + before);
    }
    if (const std::string path = a.tokenizer.empty() ? find_tokenizer(model_path) : a.tokenizer; !path.empty())
      if (const auto tokenizer = load_tokenizer(path); tokenizer->adds_bos()) tokenizer_bos = tokenizer->bos_id();
    return ids;
  }
  const auto tokenizer = load_tokenizer(a.tokenizer.empty() ? model_path : a.tokenizer);
  const std::string text = read_input(a.text);
  *ids = tokenizer->encode(text);
  if (tokenizer->adds_bos() && tokenizer->bos_id() >= 0) {
    tokenizer_bos = tokenizer->bos_id();
    ids->insert(ids->begin(), tokenizer_bos);
    task.bos = fmt::format("{} before the text", tokenizer_bos);
  }
  for (std::int32_t id : *ids)
    if (id >= model.vocab_size)
      throw Error(ErrorCode::kFile, fmt::format("{}: gives token {}, the model has {}; hint: it belongs to another model", tokenizer->path(), id, model.vocab_size));
  task.text_bytes = static_cast<std::int64_t>(text.size());
  task.text_words = count_words(text);
  task.text_tokens = static_cast<std::int64_t>(ids->size());
  return ids;
}

/// --bos for llama.cpp's mode: what stands in for the first token of a chunk; -1: nothing.
std::int32_t chunk_bos(const EvalArguments& a, std::int32_t tokenizer_bos, const ModelConfig& model) {
  if (a.bos == "auto") return tokenizer_bos;
  if (a.bos == "none") return -1;
  std::size_t used = 0;
  int id = -1;
  try {
    id = std::stoi(a.bos, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != a.bos.size() || id < 0 || id >= model.vocab_size)
    throw Error(ErrorCode::kUsage, fmt::format("--bos {}: expected auto, none or a token id below {}", a.bos, model.vocab_size));
  return id;
}

Task make_task(const EvalArguments& a, const std::string& model_path, const ModelConfig& model) {
  Task task;
  task.mode = !a.mode.empty() ? a.mode : a.text.empty() ? "shard" : "hf";
  task.context = a.context ? a.context : std::min<std::int64_t>(1024, model.max_position_embeddings);
  task.stride = a.stride ? a.stride : task.mode == "hf" ? std::max<std::int64_t>(1, task.context / 2) : task.context;
  const auto require_length = [&](std::int64_t length) {
    if (length > model.max_position_embeddings)
      throw Error(ErrorCode::kUsage, fmt::format("--context {}: the model is meant for at most {} tokens, a window has {}", task.context, model.max_position_embeddings, length));
  };
  require_length(task.context);
  if (task.mode != "llamacpp" && a.bos != "auto")
    throw Error(ErrorCode::kUsage, fmt::format("--bos {}: mode {} scores tokens as they are; only auto applies", a.bos, task.mode));
  if (task.stride > task.context) throw Error(ErrorCode::kUsage, fmt::format("--stride {} is larger than the context {}: tokens between windows would not be scored", task.stride, task.context));
  if (task.mode == "shard" && task.stride != task.context)
    throw Error(ErrorCode::kUsage, fmt::format("--stride {}: mode shard has disjoint windows; hint: --mode hf", task.stride));
  std::int32_t tokenizer_bos = -1;
  if (task.mode == "shard" && a.text.empty()) {  // shard by shard, as in training, and not in memory
    auto loader = std::make_shared<DataLoader>(a.data, DataLoader::Options{.length = task.context, .vocab_size = model.vocab_size, .form = parse_shard_form(a.form)});
    task.windows = {task.context, loader->windows(), task.context, [loader, left = loader->windows()](std::int32_t* tokens, std::int32_t* targets) mutable {
                      if (left-- <= 0) return false;
                      loader->next(tokens, targets);
                      return true;
                    }};
  } else {
    const TokenSequence tokens = read_tokens(a, model_path, model, task, tokenizer_bos);
    try {
      if (task.mode == "shard") {
        task.windows = shard_windows(tokens, task.context);
      } else if (task.mode == "hf") {
        task.windows = hf_windows(tokens, task.context, task.stride);
      } else if (task.stride != task.context) {
        task.windows = llamacpp_stride_windows(tokens, task.context, task.stride);
      } else {
        const std::int32_t bos = chunk_bos(a, tokenizer_bos, model);
        task.bos = bos >= 0 ? fmt::format("{} instead of the first token of every chunk", bos) : "none";
        task.windows = llamacpp_windows(tokens, task.context, bos);
      }
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{}: {}", a.text.empty() ? a.data : a.text, e.what()));
    }
  }
  require_length(task.windows.length);
  if (a.tokens) task.windows.count = std::min(task.windows.count, std::max<std::int64_t>(1, a.tokens / task.windows.scored_each));
  return task;
}

Outcome score(const EvalArguments& a, const std::string& path, Backend& backend) {
  const ModelConfig model = read_hf_config(path);
  const ParameterLayout layout = make_parameter_layout(model);
  { const HfWeights complete(path, layout); }  // before anything is allocated
  Outcome o{.model = path, .precision = resolve_precision(a.precision, backend.device()), .task = make_task(a, path, model)};
  const ScoringWindows& windows = o.task.windows;
  const std::int64_t batch = std::min(a.batch, windows.count), length = windows.length;

  const Recording recording = record_evaluation(model, layout, batch, length, o.precision, backend.kernels());
  Memory memory(backend);
  memory.add(*recording.tape, recording.plan);
  memory.allocate();
  load_weights(path, layout, memory);
  refresh_derived_weights(layout, memory);
  const auto table = rope_table(model, length);
  memory.write(names::kRopeTable, table.data(), static_cast<std::int64_t>(table.size()));
  Executor executor(*recording.tape, recording.plan, memory);
  ProgressLine progress(stderr, 5, read_environment().colour);
  const auto limited = [next = windows.next, left = windows.count](std::int32_t* tokens, std::int32_t* targets) mutable { return left-- > 0 && next(tokens, targets); };
  o.result = evaluate(executor, memory, batch, length, limited, [&](std::int64_t done) {
    progress.show(fmt::format("{} of {} windows", done, windows.count), static_cast<double>(done) / static_cast<double>(windows.count));
  });
  progress.finish();
  if (o.task.text_tokens && o.result.tokens_scored == o.task.text_tokens - 1) {  // all of the text but what it begins with
    o.bits_per_byte = o.result.nll / (static_cast<double>(o.task.text_bytes) * std::log(2.0));
    o.word_perplexity = std::exp(o.result.nll / static_cast<double>(o.task.text_words));
  }
  return o;
}

Json to_json(const EvalArguments& a, const Outcome& o) {
  const EvaluationResult& e = o.result;
  Json j{{"mode", o.task.mode}, {"context", o.task.context}, {"stride", o.task.stride}, {"bos", o.task.bos}, {"windows", e.windows},
         {"tokens_scored", e.tokens_scored}, {"nll", e.nll}, {"mean_nll", e.mean_nll()}, {"perplexity", e.perplexity()},
         {"stderr", e.standard_error()}, {"unigram_perplexity", e.unigram_perplexity()}};
  if (o.bits_per_byte > 0) j.update({{"bits_per_byte", o.bits_per_byte}, {"word_perplexity", o.word_perplexity}});
  j.update({{"model", o.model}, {"data", a.data.empty() ? a.text : a.data}, {"dtype", o.precision}});
  return j;
}

void print_one(const Outcome& o) {
  const EvaluationResult& e = o.result;
  fmt::print("perplexity {:.4f} +/- {:.4f}   ({} tokens scored in {} windows of {}, mode {}; unigram model of the same tokens {:.1f}{})\n", e.perplexity(),
             e.standard_error(), format_count(e.tokens_scored), format_count(e.windows), o.task.windows.length, o.task.mode, e.unigram_perplexity(),
             o.bits_per_byte > 0 ? fmt::format("; {:.4f} bits per byte", o.bits_per_byte) : "");
}

void print_table(const std::vector<Outcome>& outcomes) {
  std::size_t width = 5;
  for (const Outcome& o : outcomes) width = std::max(width, o.model.size());
  fmt::print("{:<{}}  {:>12} {:>10} {:>12} {:>12} {:>10}\n", "model", width, "perplexity", "+/-", "tokens", "bits/byte", "to first");
  for (const Outcome& o : outcomes)
    fmt::print("{:<{}}  {:>12.4f} {:>10.4f} {:>12} {:>12} {:>+9.2f}%\n", o.model, width, o.result.perplexity(), o.result.standard_error(), format_count(o.result.tokens_scored),
               o.bits_per_byte > 0 ? fmt::format("{:.4f}", o.bits_per_byte) : "", 100 * (o.result.perplexity() / outcomes[0].result.perplexity() - 1));
  fmt::print("mode {}, context {}, stride {}, {}\n", outcomes[0].task.mode, outcomes[0].task.context, outcomes[0].task.stride, outcomes[0].precision);
}

int run(const EvalArguments& a) {
  if (a.data.empty() == a.text.empty()) throw Error(ErrorCode::kUsage, "eval: give either --data FILE (token shards) or --text FILE");
  const auto backend = make_backend("auto", a.threads);
  std::vector<Outcome> outcomes;
  for (const std::string& model : a.models) {
    if (a.models.size() > 1 && !a.json) fmt::print(stderr, "{}\n", model);
    outcomes.push_back(score(a, model, *backend));
  }
  if (a.json) {
    Json results = Json::array();
    for (const Outcome& o : outcomes) results.push_back(to_json(a, o));
    fmt::print("{}\n", outcomes.size() == 1 ? results[0].dump() : Json{{"results", results}}.dump());
  } else if (outcomes.size() == 1) {
    print_one(outcomes[0]);
  } else {
    print_table(outcomes);
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* c = app.add_subcommand("eval", "perplexity of models on token shards or on a text");
  c->add_option("model", a->models, "Hugging Face directories, such as checkpoints; several are compared in a table")->required();
  c->add_option("--data", a->data, "token shards (a pattern)")->type_name("FILE");
  c->add_option("--text", a->text, "a text file, or - for standard input; needs the model's tokenizer")->type_name("FILE");
  c->add_option("--tokenizer", a->tokenizer, "tokenizer, if not the model's own")->type_name("FILE");
  c->add_option("--mode", a->mode, "shard: disjoint windows, every target (default for --data); hf: overlapping windows, every token once (default for --text); "
                                   "llamacpp: second half of disjoint chunks")->check(CLI::IsMember({"shard", "hf", "llamacpp"}));
  c->add_option("--stride", a->stride, "hf: tokens from window to window, default half the context; llamacpp: as --ppl-stride")->check(CLI::PositiveNumber);
  c->add_option("--bos", a->bos, "llamacpp: what replaces the first token of a chunk: auto (the tokenizer's BOS if it adds one), none, or a token id");
  c->add_option("--context", a->context, "tokens of a window; default 1024 or what the model is meant for")->check(CLI::PositiveNumber);
  c->add_option("--format", a->form, "form of the shards; auto: by their header; raw-u16 must be named")->check(CLI::IsMember(shard_form_names()));
  c->add_option("--batch-size", a->batch, "windows at a time")->check(CLI::PositiveNumber);
  c->add_option("--tokens", a->tokens, "score at most about this many tokens, from the start")->check(CLI::PositiveNumber);
  c->add_option("--precision", a->precision, "dtype of matrix products")->check(CLI::IsMember({"fp32", "bf16", "auto"}));
  c->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
