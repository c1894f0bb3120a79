#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/corpus.h"
#include "relume/io/token_shard.h"
#include "relume/train/metrics.h"

namespace relume::tools {

namespace {

struct TokenizeArguments {
  std::string kind = "bpe", tokenizer, out, text, in, ids, field = "text", form = "auto", from = "auto";
  std::vector<std::string> inputs;
  std::int64_t vocab_size = 0, tokens_per_shard = 100'000'000;
  double validation_fraction = 0;
  int threads = 0;
  bool bos = false, json = false, split_special_tokens = false, keep_special = false, mask_boundaries = false;

  [[nodiscard]] std::unique_ptr<Tokenizer> load() const { return load_tokenizer(tokenizer, {.split_special_tokens = split_special_tokens}); }
};

int run_train(const TokenizeArguments& a) {
  const std::vector<std::string> files = find_text_files(a.inputs);
  fmt::print(stderr, "training a tokenizer of {} entries on {} files\n", a.vocab_size, files.size());
  train_tokenizer(files, a.vocab_size, a.out, a.field);
  const auto tokenizer = load_tokenizer(a.out);
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"tokenizer", a.out}, {"kind", a.kind}, {"vocab_size", tokenizer->vocab_size()}}.dump());
  else
    fmt::print("{}: {} entries\n", a.out, tokenizer->vocab_size());
  return 0;
}

int run_shard(const TokenizeArguments& a) {
  const auto tokenizer = a.load();
  ProgressLine progress(stderr, 5, read_environment().colour);
  const CorpusSummary s = write_corpus({.inputs = a.inputs, .output = a.out, .field = a.field, .validation_fraction = a.validation_fraction,
                                        .tokens_per_shard = a.tokens_per_shard, .form = parse_shard_form(a.form), .mask_boundaries = a.mask_boundaries,
                                        .threads = a.threads}, *tokenizer,
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
  const auto tokenizer = a.load();
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
  const std::string text = a.load()->decode(parse_ids(a.ids), a.keep_special);
  if (a.json)
    fmt::print("{}\n", nlohmann::json{{"text", text}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}\n", text);
  return 0;
}

int run_convert(const TokenizeArguments& a) {
  if (std::filesystem::exists(a.out)) throw Error(ErrorCode::kFile, fmt::format("{}: exists already; nothing is overwritten. hint: another --out", a.out));
  const TokenShard in(a.in, parse_shard_form(a.from));
  constexpr std::int64_t kChunk = 1 << 20;  // tokens
  const std::int64_t limit = a.vocab_size ? a.vocab_size : std::int64_t{1} << 31;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(kChunk, in.tokens())));
  std::int64_t vocabulary = a.vocab_size;
  for (std::int64_t at = 0; !a.vocab_size && at < in.tokens(); at += kChunk) {  // the smallest the tokens allow
    const std::int64_t n = std::min(kChunk, in.tokens() - at);
    in.read(at, n, limit, tokens.data());
    vocabulary = std::max<std::int64_t>(vocabulary, 1 + *std::max_element(tokens.begin(), tokens.begin() + n));
  }
  const ShardForm form = parse_shard_form(a.form).value_or(default_shard_form(vocabulary));
  const bool keep_mask = in.has_mask() && form == ShardForm::kLlmq;
  TokenShardWriter out(a.out, vocabulary, form, keep_mask);
  ProgressLine progress(stderr, 5, read_environment().colour);
  for (std::int64_t at = 0; at < in.tokens(); at += kChunk) {
    const std::int64_t n = std::min(kChunk, in.tokens() - at);
    in.read(at, n, limit, tokens.data());
    std::vector<bool> trained;
    for (std::int64_t i = 0; keep_mask && i < n; ++i) trained.push_back(in.trained(at + i));
    out.append(std::span(tokens).first(static_cast<std::size_t>(n)), trained);
    progress.show(fmt::format("{} of {} tokens", at + n, in.tokens()), static_cast<double>(at + n) / static_cast<double>(in.tokens()));
  }
  progress.finish();
  out.close();
  if (in.has_mask() && !keep_mask) fmt::print(stderr, "warning: {} has a loss mask, for which the form {} has no place: every token is trained on\n", a.in, to_string(form));
  if (a.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"file", a.out}, {"form", to_string(form)}, {"tokens", in.tokens()}, {"mask", keep_mask}}.dump());
  else
    fmt::print("{}: {} tokens, {} (from {})\n", a.out, format_count(in.tokens()), to_string(form), to_string(in.form()));
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto a = std::make_shared<TokenizeArguments>();
  CLI::App* c = app.add_subcommand("tokenize", "train a tokenizer, make token shards, encode and decode")->require_subcommand(1);

  CLI::App* train = c->add_subcommand("train", "train a tokenizer on text files");
  train->add_option("--kind", a->kind, "bpe: SentencePiece BPE with byte fallback, as Llama 2")->check(CLI::IsMember({"bpe"}));
  train->add_option("--vocab-size", a->vocab_size, "entries, at least 300 or so")->required()->check(CLI::PositiveNumber);
  train->add_option("--in", a->inputs, "*.txt, *.jsonl, or directories of them")->required();
  train->add_option("--out", a->out, "where to write the model")->required();

  CLI::App* shard = c->add_subcommand("shard", "turn text into token shards, on all processors");
  shard->add_option("--tokenizer", a->tokenizer, "tokenizer.model, tokenizer.json or a directory that holds one")->required();
  shard->add_option("--in", a->inputs, "*.txt (a file is a document), *.jsonl (a line is one), or directories of them")->required();
  shard->add_option("--format", a->form, "form of the shards; auto: llm.c's, as wide as the vocabulary needs")->check(CLI::IsMember(shard_form_names()));
  shard->add_option("--tokens-per-shard", a->tokens_per_shard, "tokens of one file")->check(CLI::Range(std::int64_t{1}, std::int64_t{2147483647}));
  shard->add_flag("--mask-boundaries", a->mask_boundaries, "do not train on the token that begins a document (format llmq, which has a loss mask)");
  shard->add_option("--threads", a->threads, "CPU threads")->check(CLI::PositiveNumber);
  shard->add_option("--out", a->out, "directory for train_*.bin and val_*.bin")->required();
  shard->add_option("--validation-fraction", a->validation_fraction, "share of the text held out, by whole documents")->check(CLI::Range(0.0, 0.9));

  CLI::App* encode = c->add_subcommand("encode", "text to ids");
  encode->add_option("--tokenizer", a->tokenizer, "tokenizer.model, tokenizer.json or a directory that holds one")->required();
  CLI::Option* text = encode->add_option("--text", a->text, "the text itself");
  encode->add_option("--in", a->in, "a file, or - for standard input");
  encode->add_flag("--bos", a->bos, "begin with the BOS token");

  CLI::App* decode = c->add_subcommand("decode", "ids to text");
  decode->add_option("--tokenizer", a->tokenizer, "tokenizer.model, tokenizer.json or a directory that holds one")->required();
  decode->add_option("--ids", a->ids, "1,2,3")->required();
  decode->add_flag("--keep-special", a->keep_special, "show control and special tokens");

  CLI::App* convert = c->add_subcommand("convert", "rewrite a token shard in another form");
  convert->add_option("in", a->in, "token shard of llm.c, llmq or nanoGPT")->required();
  convert->add_option("--out", a->out, "the new file; must not exist")->required();
  convert->add_option("--format", a->form, "form to write; auto: llm.c's, as wide as the vocabulary needs")->check(CLI::IsMember(shard_form_names()));
  convert->add_option("--from", a->from, "form to read; auto: any with a header; raw-u16 must be named")->check(CLI::IsMember(shard_form_names()));
  convert->add_option("--vocab-size", a->vocab_size, "check the tokens against it; default: what they need")->check(CLI::PositiveNumber);

  for (CLI::App* sub : {train, shard}) sub->add_option("--field", a->field, "of a .jsonl line, that holds the text");
  for (CLI::App* sub : {shard, encode})
    sub->add_flag("--split-special-tokens", a->split_special_tokens, "read special tokens that stand in the text as text");

  for (CLI::App* sub : {train, shard, encode, decode, convert}) sub->add_flag("--json", a->json, "print one JSON object");
  train->callback([a, &action] { action = [a] { return run_train(*a); }; });
  shard->callback([a, &action] { action = [a] { return run_shard(*a); }; });
  encode->callback([a, text, &action] { action = [a, text] { return run_encode(*a, text->count() > 0); }; });
  decode->callback([a, &action] { action = [a] { return run_decode(*a); }; });
  convert->callback([a, &action] { action = [a] { return run_convert(*a); }; });
}

}  // namespace relume::tools
