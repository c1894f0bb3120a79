#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/hf_directory.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"
#include "relume/train/data_loader.h"
#include "relume/train/evaluation.h"
#include "relume/train/metrics.h"
#include "relume/train/program.h"

namespace relume::tools {

namespace {

struct EvalArguments {
  std::string model, data, text, tokenizer, bos = "auto", precision = "fp32";
  std::int64_t context = 0, batch = 8, tokens = 0, threads = 0;
  bool json = false;
};

/// Where windows come from, and what is known about the text behind them.
struct Source {
  NextWindow next;
  std::int64_t windows = 0, text_bytes = 0;
};

Source from_shards(const EvalArguments& a, const ModelConfig& model) {
  if (a.bos != "auto") throw Error(ErrorCode::kUsage, fmt::format("--bos {}: shards are scored as they are; only auto applies here", a.bos));
  auto loader = std::make_shared<DataLoader>(a.data, DataLoader::Options{a.context, model.vocab_size});
  Source s;
  s.windows = a.tokens ? std::min(loader->windows(), std::max<std::int64_t>(1, a.tokens / a.context)) : loader->windows();
  s.next = [loader, left = s.windows](std::int32_t* tokens, std::int32_t* targets) mutable {
    if (left == 0) return false;
    --left;
    loader->next(tokens, targets);
    return true;
  };
  return s;
}

/// The whole text: every token but the first is scored once, in windows that follow each other; the last may be short.
Source from_text(const EvalArguments& a, const ModelConfig& model) {
  const std::string path = a.tokenizer.empty() ? a.model + "/tokenizer.model" : a.tokenizer;
  const auto tokenizer = load_tokenizer(path);
  const std::string text = read_input(a.text);
  auto ids = std::make_shared<std::vector<std::int32_t>>(tokenizer->encode(text));
  std::int32_t bos = tokenizer->bos_id();
  if (a.bos != "auto" && a.bos != "none") {
    try {
      bos = std::stoi(a.bos);
    } catch (const std::exception&) {
      throw Error(ErrorCode::kUsage, fmt::format("--bos {}: expected auto, none or a token id", a.bos));
    }
  }
  if (a.bos != "none" && bos >= 0) ids->insert(ids->begin(), bos);
  for (std::int32_t id : *ids)
    if (id < 0 || id >= model.vocab_size)
      throw Error(ErrorCode::kFile, fmt::format("{}: gives token {}, the model has {}; hint: it belongs to another model", path, id, model.vocab_size));
  if (ids->size() < 2) throw Error(ErrorCode::kFile, fmt::format("{}: {} tokens; at least 2 are needed to score one", a.text, ids->size()));
  Source s;
  const auto scored = static_cast<std::int64_t>(ids->size()) - 1;
  s.windows = (scored + a.context - 1) / a.context;
  s.text_bytes = static_cast<std::int64_t>(text.size());
  s.next = [ids, scored, context = a.context, at = std::int64_t{0}](std::int32_t* tokens, std::int32_t* targets) mutable {
    if (at >= scored) return false;
    for (std::int64_t i = 0; i < context; ++i) {
      const bool inside = at + i < scored;
      tokens[i] = inside ? (*ids)[static_cast<std::size_t>(at + i)] : 0;
      targets[i] = inside ? (*ids)[static_cast<std::size_t>(at + i + 1)] : -100;
    }
    at += context;
    return true;
  };
  return s;
}

void print(const EvalArguments& a, const EvaluationResult& e, const Source& s) {
  const double bits_per_byte = s.text_bytes ? e.nll / (static_cast<double>(s.text_bytes) * std::log(2.0)) : 0;
  if (a.json) {
    nlohmann::ordered_json j{{"mode", "shard"}, {"context", a.context}, {"stride", a.context}, {"bos", a.bos}, {"windows", e.windows},
                             {"tokens_scored", e.tokens_scored}, {"nll", e.nll}, {"mean_nll", e.mean_nll()}, {"perplexity", e.perplexity()},
                             {"stderr", e.standard_error()}, {"unigram_perplexity", e.unigram_perplexity()}};
    if (s.text_bytes) j["bits_per_byte"] = bits_per_byte;
    j.update({{"model", a.model}, {"data", a.data.empty() ? a.text : a.data}, {"dtype", a.precision}});
    fmt::print("{}\n", j.dump());
    return;
  }
  fmt::print("perplexity {:.4f} +/- {:.4f}   ({} tokens scored in {} windows of {}; unigram model of the same tokens {:.1f}{})\n", e.perplexity(),
             e.standard_error(), format_count(e.tokens_scored), format_count(e.windows), a.context, e.unigram_perplexity(),
             s.text_bytes ? fmt::format("; {:.4f} bits per byte", bits_per_byte) : "");
}

int run(EvalArguments& a) {
  if (a.data.empty() == a.text.empty()) throw Error(ErrorCode::kUsage, "eval: give either --data FILE (token shards) or --text FILE");
  const ModelConfig model = read_hf_config(a.model);
  if (a.context == 0) a.context = std::min<std::int64_t>(1024, model.max_position_embeddings);
  if (a.context > model.max_position_embeddings)
    throw Error(ErrorCode::kUsage, fmt::format("--context {}: the model is meant for at most {} tokens", a.context, model.max_position_embeddings));
  const ParameterLayout layout = make_parameter_layout(model);
  { const HfWeights complete(a.model, layout); }  // before anything is allocated
  Source source = a.text.empty() ? from_shards(a, model) : from_text(a, model);
  a.batch = std::min(a.batch, source.windows);

  const auto backend = make_backend("auto", a.threads);
  a.precision = resolve_precision(a.precision, backend->device());
  const Recording recording = record_evaluation(model, layout, a.batch, a.context, a.precision, backend->kernels());
  Memory memory(*backend);
  memory.add(*recording.tape, recording.plan);
  memory.allocate();
  load_weights(a.model, layout, memory);
  refresh_derived_weights(layout, memory);
  const auto table = rope_table(model, a.context);
  memory.write(names::kRopeTable, table.data(), static_cast<std::int64_t>(table.size()));
  Executor executor(*recording.tape, recording.plan, memory);
  ProgressLine progress(stderr, 5, read_environment().colour);
  const EvaluationResult e = evaluate(executor, memory, a.batch, a.context, source.next, [&](std::int64_t done) {
    progress.show(fmt::format("{} of {} windows", done, source.windows), static_cast<double>(done) / static_cast<double>(source.windows));
  });
  progress.finish();
  print(a, e, source);
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* c = app.add_subcommand("eval", "perplexity of a model on token shards or on a text");
  c->add_option("model", a->model, "Hugging Face directory, such as a checkpoint")->required();
  c->add_option("--data", a->data, "token shards (a pattern)")->type_name("FILE");
  c->add_option("--text", a->text, "a text file, or - for standard input; needs the model's tokenizer")->type_name("FILE");
  c->add_option("--tokenizer", a->tokenizer, "tokenizer for --text, if not the model's own")->type_name("FILE");
  c->add_option("--bos", a->bos, "for --text: auto, none, or a token id to start with");
  c->add_option("--context", a->context, "tokens of a window; default 1024 or what the model is meant for")->check(CLI::PositiveNumber);
  c->add_option("--batch-size", a->batch, "windows at a time")->check(CLI::PositiveNumber);
  c->add_option("--tokens", a->tokens, "score at most this many tokens of the shards")->check(CLI::PositiveNumber);
  c->add_option("--precision", a->precision, "dtype of matrix products")->check(CLI::IsMember({"fp32", "bf16", "auto"}));
  c->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
