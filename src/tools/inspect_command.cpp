#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

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
  std::string file;
  std::int64_t vocab_size = 0;
  bool json = false;
};

Json inspect_shard(const InspectArguments& a) {
  const TokenShard shard(a.file);
  const std::int64_t vocabulary = a.vocab_size ? a.vocab_size : std::int64_t{1} << 31;
  std::vector<std::int32_t> chunk;
  std::int32_t smallest = INT32_MAX, largest = 0;
  for (std::int64_t at = 0; at < shard.tokens(); at += 1 << 20) {
    chunk.resize(static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, shard.tokens() - at)));
    shard.read(at, static_cast<std::int64_t>(chunk.size()), vocabulary, chunk.data());
    const auto [low, high] = std::minmax_element(chunk.begin(), chunk.end());
    smallest = std::min(smallest, *low);
    largest = std::max(largest, *high);
  }
  chunk.resize(static_cast<std::size_t>(std::min<std::int64_t>(16, shard.tokens())));
  shard.read(0, static_cast<std::int64_t>(chunk.size()), vocabulary, chunk.data());
  return {{"kind", "token shard"}, {"form", shard.token_bytes() == 2 ? "llm.c GPT-2 (uint16)" : "llm.c Llama-3 (uint32)"}, {"tokens", shard.tokens()},
          {"smallest", smallest}, {"largest", largest}, {"first", chunk}};
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
  if (path.extension() == ".model") return inspect_tokenizer(a);
  if (path.extension() == ".bin") return inspect_shard(a);
  const MappedFile file(a.file);
  if (file.size() > 8 && static_cast<char>(file.bytes()[8]) == '{') return inspect_safetensors(a);
  if (file.size() > 0 && static_cast<unsigned char>(file.bytes()[0]) == 0x0A) return inspect_tokenizer(a);
  return inspect_shard(a);
}

std::string value_text(const Json& v) { return v.is_string() ? v.get<std::string>() : v.is_number_integer() ? format_count(v.get<std::int64_t>()) : v.dump(); }

int run(const InspectArguments& a) {
  const Json j = inspect(a);
  if (a.json) {
    fmt::print("{}\n", j.dump());
    return 0;
  }
  for (const auto& [key, value] : j.items()) {
    if (key != "tensors") {
      fmt::print("{:<20}{}\n", key, value_text(value));
      continue;
    }
    for (const Json& t : value) fmt::print("  {:<64}{:<6}{}\n", t["name"].get<std::string>(), t["dtype"].get<std::string>(), t["shape"].dump());
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto a = std::make_shared<InspectArguments>();
  CLI::App* c = app.add_subcommand("inspect", "say what a file or directory is: token shard, safetensors, tokenizer, checkpoint");
  c->add_option("file", a->file, "file or directory")->required();
  c->add_option("--vocab-size", a->vocab_size, "check the tokens of a shard against it")->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "print one JSON object");
  c->callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace relume::tools
