#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "command.h"
#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/io/hf_directory.h"
#include "relume/io/token_shard.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"

namespace relume::tools {

namespace {

using Json = nlohmann::ordered_json;

struct InspectArguments {
  std::string file, form = "auto", tokenizer;
  std::int64_t vocab_size = 0;
  bool json = false;
};

Json inspect_shard(const InspectArguments& a) {
  constexpr std::int64_t kChunk = 1 << 20, kSample = 64, kMostFrequent = 10, kBins = 16;  // tokens; entries
  const TokenShard shard(a.file, parse_shard_form(a.form));
  const auto tokenizer = a.tokenizer.empty() ? nullptr : load_tokenizer(a.tokenizer);
  const std::int64_t vocabulary = a.vocab_size ? a.vocab_size : tokenizer ? tokenizer->vocab_size() : std::int64_t{1} << 31;
  std::vector<std::int32_t> chunk;
  std::unordered_map<std::int32_t, std::int64_t> counts;
  std::int64_t trained = 0;
  for (std::int64_t at = 0; at < shard.tokens(); at += kChunk) {
    chunk.resize(static_cast<std::size_t>(std::min(kChunk, shard.tokens() - at)));
    shard.read(at, static_cast<std::int64_t>(chunk.size()), vocabulary, chunk.data());
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      ++counts[chunk[i]];
      trained += shard.trained(at + static_cast<std::int64_t>(i));
    }
  }
  std::vector<std::pair<std::int64_t, std::int32_t>> order;  // count, token
  for (const auto& [token, count] : counts) order.emplace_back(count, token);
  std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.first != y.first ? x.first > y.first : x.second < y.second; });
  const auto [low, high] = std::minmax_element(order.begin(), order.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
  Json frequent = Json::array(), histogram = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(kMostFrequent, order.size()); ++i) {
    Json entry{{"token", order[i].second}, {"count", order[i].first}};
    if (tokenizer) entry["text"] = tokenizer->decode(std::span(&order[i].second, 1), true);
    frequent.push_back(entry);
  }
  const std::int64_t width = (high->second + kBins) / kBins;  // ids of a bin
  for (std::int64_t from = 0; from <= high->second; from += width) {
    std::int64_t in_bin = 0;
    for (const auto& [count, token] : order)
      if (token >= from && token < from + width) in_bin += count;
    histogram.push_back({{"from", from}, {"to", from + width - 1}, {"count", in_bin}});
  }
  chunk.resize(static_cast<std::size_t>(std::min(kSample, shard.tokens())));
  shard.read(0, static_cast<std::int64_t>(chunk.size()), vocabulary, chunk.data());
  Json j{{"kind", "token shard"}, {"form", to_string(shard.form())}, {"bytes_per_token", shard.token_bytes()}, {"tokens", shard.tokens()},
         {"smallest", low->second}, {"largest", high->second}, {"distinct", counts.size()}};
  if (shard.has_mask()) j["trained"] = trained;
  j["first"] = chunk;
  if (tokenizer) {
    if (counts.count(tokenizer->bos_id())) j["documents"] = counts[tokenizer->bos_id()];
    j["begins"] = tokenizer->decode(chunk, true);
  }
  j["most_frequent"] = frequent;
  j["histogram"] = histogram;
  return j;
}

Json inspect_safetensors(const InspectArguments& a) {
  const SafetensorsFile file(a.file);
  Json tensors = Json::array();
  std::int64_t elements = 0;
  for (const auto& [name, e] : file.entries()) {
    tensors.push_back({{"name", name}, {"dtype", e.dtype}, {"shape", e.shape}});
    elements += e.elements();
  }
  return {{"kind", "safetensors"}, {"tensors_total", tensors.size()}, {"elements", elements}, {"metadata", file.metadata()}, {"tensors", tensors}};
}

Json inspect_tokenizer(const InspectArguments& a) {
  const auto t = load_tokenizer(a.file);
  return {{"kind", "tokenizer"}, {"form", t->kind()}, {"vocab_size", t->vocab_size()}, {"bos_id", t->bos_id()}, {"eos_id", t->eos_id()}};
}

Json inspect_directory(const InspectArguments& a) {
  Json j;
  if (std::filesystem::exists(a.file + "/manifest.json")) {
    const Checkpoint c = open_checkpoint(a.file);
    j = {{"kind", "checkpoint"}, {"step", c.state.step}, {"tokens", c.state.tokens}, {"updates", c.state.updates}, {"skipped", c.state.skipped},
         {"remat", Json::parse(c.state.remat)}, {"kernels", c.state.kernels}};
  } else {
    j = {{"kind", "Hugging Face directory"}};
  }
  const ModelConfig m = read_hf_config(a.file);
  const ParameterLayout layout = make_parameter_layout(m);
  { const HfWeights complete(a.file, layout); }
  j.update({{"parameters", layout.count}, {"layers", m.num_hidden_layers}, {"hidden_size", m.hidden_size}, {"intermediate_size", m.intermediate_size},
            {"heads", m.num_attention_heads}, {"kv_heads", m.kv_heads()}, {"vocab_size", m.vocab_size}});
  return j;
}

/// By what the file begins with, so that a damaged one is still told what it was meant to be.
Json inspect(const InspectArguments& a) {
  if (std::filesystem::is_directory(a.file)) return inspect_directory(a);
  const std::filesystem::path path(a.file);
  if (path.extension() == ".safetensors") return inspect_safetensors(a);
  if (path.extension() == ".model" || path.filename() == "tokenizer.json") return inspect_tokenizer(a);
  if (path.extension() == ".bin") return inspect_shard(a);
  const MappedFile file(a.file);
  if (file.size() > 8 && static_cast<char>(file.bytes()[8]) == '{') return inspect_safetensors(a);
  if (file.size() > 0 && static_cast<unsigned char>(file.bytes()[0]) == 0x0A) return inspect_tokenizer(a);
  return inspect_shard(a);
}

std::string value_text(const Json& v) { return v.is_string() ? v.get<std::string>() : v.is_number_integer() ? format_count(v.get<std::int64_t>()) : v.dump(); }

/// Counts as bars.
void print_counts(const std::string& title, const Json& entries) {
  constexpr double kWidth = 40;  // characters of the longest bar
  std::int64_t most = 1;
  for (const Json& e : entries) most = std::max(most, e["count"].get<std::int64_t>());
  fmt::print("{}\n", title == "histogram" ? "tokens by id" : "most frequent tokens");
  for (const Json& e : entries) {
    const auto count = e["count"].get<std::int64_t>();
    const std::string name = e.contains("from") ? fmt::format("{} … {}", e["from"].get<std::int64_t>(), e["to"].get<std::int64_t>()) : std::to_string(e["token"].get<std::int64_t>());
    fmt::print("  {:<18}{:>14}  {}{}\n", name, format_count(count), std::string(static_cast<std::size_t>(std::lround(kWidth * static_cast<double>(count) / static_cast<double>(most))), '#'),
               e.contains("text") ? "  " + e["text"].dump(-1, ' ', false, Json::error_handler_t::replace) : "");
  }
}

int run(const InspectArguments& a) {
  const Json j = inspect(a);
  if (a.json) {
    fmt::print("{}\n", j.dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  for (const auto& [key, value] : j.items()) {
    if (key == "tensors") {
      for (const Json& t : value) fmt::print("  {:<64}{:<6}{}\n", t["name"].get<std::string>(), t["dtype"].get<std::string>(), t["shape"].dump());
    } else if (key == "most_frequent" || key == "histogram") {
      print_counts(key, value);
    } else {
      fmt::print("{:<20}{}\n", key, value_text(value));
    }
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto a = std::make_shared<InspectArguments>();
  CLI::App* c = app.add_subcommand("inspect", "say what a file or directory is: token shard, safetensors, tokenizer, checkpoint");
  c->add_option("file", a->file, "file or directory")->required();
  c->add_option("--vocab-size", a->vocab_size, "check the tokens of a shard against it")->check(CLI::PositiveNumber);
  c->add_option("--format", a->form, "form of a token shard; auto: by its header; raw-u16 has none and must be named")->check(CLI::IsMember(shard_form_names()));
  c->add_option("--tokenizer", a->tokenizer, "show tokens of a shard as text")->type_name("FILE");
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
