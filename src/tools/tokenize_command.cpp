#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/corpus.h"
#include "relume/train/metrics.h"

namespace relume::tools {

namespace {

struct TokenizeArguments {
  std::string kind = "bpe", tokenizer, out, text, in, ids;
  std::vector<std::string> inputs;
  std::int64_t vocab_size = 0;
  double validation_fraction = 0;
  bool bos = false, json = false;
};

int run_train(const TokenizeArguments& a) {
  const std::vector<std::string> files = find_text_files(a.inputs);
  fmt::print(stderr, "training a tokenizer of {} entries on {} files\n", a.vocab_size, files.size());
  train_tokenizer(files, a.vocab_size, a.out);
  const auto tokenizer = load_tokenizer(a.out);
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"tokenizer", a.out}, {"kind", a.kind}, {"vocab_size", tokenizer->vocab_size()}}.dump());
  else
    fmt::print("{}: {} entries\n", a.out, tokenizer->vocab_size());
  return 0;
}

int run_shard(const TokenizeArguments& a) {
  const auto tokenizer = load_tokenizer(a.tokenizer);
  ProgressLine progress(stderr, 5, read_environment().colour);
  const CorpusSummary s = write_corpus({.inputs = a.inputs, .output = a.out, .validation_fraction = a.validation_fraction}, *tokenizer,
                                       [&](std::int64_t done, std::int64_t all) {
                                         progress.show(fmt::format("tokenizing: {} of {}", format_bytes(done), format_bytes(all)),
                                                       static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(1, all)));
                                       });
  progress.finish();
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"files", s.files}, {"documents", s.documents}, {"validation_documents", s.validation_documents},
                                              {"bytes", s.bytes}, {"train_tokens", s.train_tokens}, {"validation_tokens", s.validation_tokens}}
                           .dump());
  else
    fmt::print("{}: {} training tokens from {} documents, {} validation tokens from {}; {:.2f} bytes a token\n", a.out, format_count(s.train_tokens),
               s.documents, format_count(s.validation_tokens), s.validation_documents,
               static_cast<double>(s.bytes) / static_cast<double>(s.train_tokens + s.validation_tokens));
  return 0;
}

int run_encode(const TokenizeArguments& a, bool has_text) {
  if (has_text == !a.in.empty()) throw Error(ErrorCode::kUsage, "tokenize encode: give either --text S or --in FILE");
  const auto tokenizer = load_tokenizer(a.tokenizer);
  std::vector<std::int32_t> ids = tokenizer->encode(has_text ? a.text : read_input(a.in));
  if (a.bos && tokenizer->bos_id() >= 0) ids.insert(ids.begin(), tokenizer->bos_id());
  if (a.json) {
    fmt::print("{}\n", nlohmann::json{{"ids", ids}}.dump());
    return 0;
  }
  std::string line;
  for (std::int32_t id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  fmt::print("{}\n", line);
  return 0;
}

int run_decode(const TokenizeArguments& a) {
  std::vector<std::int32_t> ids;
  std::stringstream list(a.ids);
  for (std::string word; std::getline(list, word, ',');) {
    std::size_t used = 0;
    try {
      ids.push_back(std::stoi(word, &used));
    } catch (const std::exception&) {
      used = 0;
    }
    if (used == 0 || word.find_first_not_of(' ', used) != std::string::npos)
      throw Error(ErrorCode::kUsage, fmt::format("--ids: expected whole numbers separated by commas, found '{}'", word));
  }
  const std::string text = load_tokenizer(a.tokenizer)->decode(ids);
  if (a.json)
    fmt::print("{}\n", nlohmann::json{{"text", text}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}\n", text);
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto a = std::make_shared<TokenizeArguments>();
  CLI::App* c = app.add_subcommand("tokenize", "train a tokenizer, make token shards, encode and decode")->require_subcommand(1);

  CLI::App* train = c->add_subcommand("train", "train a tokenizer on text files");
  train->add_option("--kind", a->kind, "bpe: SentencePiece BPE with byte fallback, as Llama 2")->check(CLI::IsMember({"bpe"}));
  train->add_option("--vocab-size", a->vocab_size, "entries, at least 300 or so")->required()->check(CLI::PositiveNumber);
  train->add_option("--in", a->inputs, "text files or directories of *.txt")->required();
  train->add_option("--out", a->out, "where to write the model")->required();

  CLI::App* shard = c->add_subcommand("shard", "turn text files into token shards");
  shard->add_option("--tokenizer", a->tokenizer, "tokenizer model")->required();
  shard->add_option("--in", a->inputs, "text files or directories of *.txt; each file is a document")->required();
  shard->add_option("--out", a->out, "directory for train_*.bin and val_*.bin")->required();
  shard->add_option("--validation-fraction", a->validation_fraction, "share of the text held out, by whole documents")->check(CLI::Range(0.0, 0.9));

  CLI::App* encode = c->add_subcommand("encode", "text to ids");
  encode->add_option("--tokenizer", a->tokenizer, "tokenizer model")->required();
  CLI::Option* text = encode->add_option("--text", a->text, "the text itself");
  encode->add_option("--in", a->in, "a file, or - for standard input");
  encode->add_flag("--bos", a->bos, "begin with the BOS token");

  CLI::App* decode = c->add_subcommand("decode", "ids to text");
  decode->add_option("--tokenizer", a->tokenizer, "tokenizer model")->required();
  decode->add_option("--ids", a->ids, "1,2,3")->required();

  for (CLI::App* sub : {train, shard, encode, decode}) sub->add_flag("--json", a->json, "print one JSON object");
  train->callback([a, &action] { action = [a] { return run_train(*a); }; });
  shard->callback([a, &action] { action = [a] { return run_shard(*a); }; });
  encode->callback([a, text, &action] { action = [a, text] { return run_encode(*a, text->count() > 0); }; });
  decode->callback([a, &action] { action = [a] { return run_decode(*a); }; });
}

}  // namespace relume::tools
