#include "relume/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "relume/base/error.h"
#include "relume/config/json_file.h"
#include "relume/io/tokenizer.h"
#include "relume/model/llama.h"

namespace relume {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char *kWeights = "/model.safetensors", *kOptimizer = "/optimizer.safetensors", *kState = "/trainer_state.json",
                     *kManifest = "/manifest.json", *kHash = "xxh3-128";
constexpr int kFormat = 1;

std::string checkpoints_of(const std::string& run_directory) { return run_directory + "/checkpoints"; }

/// Reads parameters out of one of the flat lists in device memory.
ReadParameter reader(const Memory& memory, const char* list) {
  return [&memory, list](const Parameter& p, float* data) {
    memory.backend().copy_to_host(data, memory.persistent(list) + p.offset * 4, p.shape.elements() * 4);
  };
}

void fill(const HfWeights& weights, const ParameterLayout& layout, Memory& memory, const char* list) {
  std::vector<float> values;
  for (const Parameter& p : layout.parameters) {
    values.resize(static_cast<std::size_t>(p.shape.elements()));
    weights.read(p, values.data());
    memory.backend().copy_to_device(memory.persistent(list) + p.offset * 4, values.data(), p.shape.elements() * 4);
  }
}

void write_text(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text);
  file.close();
}

std::string state_json(const TrainerState& s) {
  const Json j{{"step", s.step}, {"updates", s.updates}, {"data_position", s.data_position}, {"tokens", s.tokens}, {"skipped", s.skipped},
               {"skipped_in_a_row", s.skipped_in_a_row}, {"identity", Json::parse(s.identity)}, {"remat", Json::parse(s.remat)},
               {"policies", Json::parse(s.policies)}, {"kernels", s.kernels}};
  return j.dump(2) + "\n";
}

void write_manifest(const std::string& directory) {
  Json files = Json::object();
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string path = entry.path().string();
    files[entry.path().filename().string()] = {{"bytes", fs::file_size(path)}, {"hash", hash_file(path)}};
  }
  write_text(directory + kManifest, Json{{"format", kFormat}, {"hash", kHash}, {"files", files}}.dump(2) + "\n");
}

/// Step of a directory named step-NNNNNNNN; -1 for other names.
std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.size() != 13 || name.compare(0, 5, "step-") != 0 || name.find_first_not_of("0123456789", 5) != std::string::npos) return -1;
  return std::stoll(name.substr(5));
}

/// Checkpoint directories of a run, newest first; valid or not.
std::vector<fs::path> directories(const std::string& run_directory) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints_of(run_directory), ignored))
    if (entry.is_directory() && step_of(entry.path()) >= 0) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) { return step_of(a) > step_of(b); });
  return found;
}

[[noreturn]] void fail(const std::string& directory, const std::string& message) {
  throw Error(ErrorCode::kFile, fmt::format("{}: no valid checkpoint: {}", directory, message));
}

/// Throws unless every file the manifest lists is there with its size and, if asked, its hash.
void check_manifest(const std::string& directory, bool hashes) {
  if (!fs::exists(directory + kManifest)) fail(directory, "manifest.json is missing; it was not written to the end, or is another kind of directory");
  const Json manifest = config::parse_json(config::read_text(directory + kManifest), directory + kManifest, ErrorCode::kFile);
  if (!manifest.is_object() || manifest.value("format", 0) != kFormat || !manifest.contains("files") || !manifest["files"].is_object())
    fail(directory, fmt::format("manifest.json: expected format {}", kFormat));
  for (const char* needed : {kWeights, kOptimizer, kState})
    if (!manifest["files"].contains(needed + 1)) fail(directory, fmt::format("manifest.json does not list {}", needed + 1));
  for (const auto& [name, entry] : manifest["files"].items()) {
    const std::string path = directory + "/" + name;
    if (name.find('/') != std::string::npos || !entry.is_object()) fail(directory, "manifest.json is malformed");
    if (!fs::exists(path)) fail(directory, fmt::format("{} is missing", name));
    if (!fs::is_regular_file(path)) fail(directory, fmt::format("manifest.json lists {}, which is no file", name));
    const auto bytes = entry.value("bytes", std::uint64_t{0});
    if (fs::file_size(path) != bytes) fail(directory, fmt::format("{}: expected {} bytes, found {}", name, bytes, fs::file_size(path)));
    if (hashes && hash_file(path) != entry.value("hash", ""))
      fail(directory, fmt::format("{}: its content does not match its hash in manifest.json", name));
  }
}

TrainerState read_state(const std::string& path) {
  const Json j = config::parse_json(config::read_text(path), path, ErrorCode::kFile);
  const auto count = [&](const char* key) {
    const Json& v = j.at(key);
    if (!v.is_number_integer() || v.get<double>() < 0 || v.get<double>() > 9e18)
      throw Error(ErrorCode::kFile, fmt::format("{}: {}: expected a count, found {}", path, key, v.dump()));
    return v.get<std::int64_t>();
  };
  try {
    return {.step = count("step"), .updates = count("updates"), .data_position = count("data_position"), .tokens = count("tokens"),
            .skipped = count("skipped"), .skipped_in_a_row = count("skipped_in_a_row"),
            .identity = j.at("identity").dump(), .remat = j.at("remat").dump(),
            .policies = (j.contains("policies") ? j["policies"] : j["remat"]).dump(), .kernels = j.at("kernels")};
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::kFile, fmt::format("{}: no trainer state: {}", path, e.what()));
  }
}

bool is_whole(const fs::path& directory) {
  try {
    check_manifest(directory.string(), false);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Deletes the oldest whole ones beyond `keep`, and what earlier crashes left under temporary names. Damaged ones are not
/// counted: they must not push out the last one that works.
void remove_old(const std::string& run_directory, std::int64_t keep) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints_of(run_directory), ignored))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) fs::remove_all(entry.path(), ignored);
  std::int64_t whole = 0;
  for (const fs::path& path : directories(run_directory))
    if (is_whole(path) && ++whole > keep && keep > 0) fs::remove_all(path, ignored);
}

}  // namespace

std::string save_checkpoint(const std::string& run_directory, const TrainerState& state, const ModelConfig& model, const Tokenizer* tokenizer,
                            const ParameterLayout& layout, const Memory& memory, std::int64_t keep_last) {
  make_writable_directory(checkpoints_of(run_directory));
  const std::string directory = fmt::format("{}/step-{:08}", checkpoints_of(run_directory), state.step);
  if (fs::exists(directory)) return directory;  // the same step of the same run was saved already
  write_directory_atomically(directory, [&](const std::string& temporary) {
    write_hf_config(temporary, model, {.special = special_tokens_of(tokenizer)});
    if (tokenizer) export_tokenizer(*tokenizer, temporary, model.max_position_embeddings);
    write_hf_weights(temporary + kWeights, layout, {{"", reader(memory, names::kParameters)}});
    write_hf_weights(temporary + kOptimizer, layout,
                     {{"exp_avg.", reader(memory, names::kFirstMoment)}, {"exp_avg_sq.", reader(memory, names::kSecondMoment)}});
    write_text(temporary + kState, state_json(state));
    write_manifest(temporary);
  });
  remove_old(run_directory, keep_last);
  return directory;
}

Checkpoint open_checkpoint(const std::string& directory) {
  if (!fs::is_directory(directory)) fail(directory, "there is no such directory");
  try {
    check_manifest(directory, true);
    return {directory, read_state(directory + kState)};
  } catch (const Json::exception& e) {
    fail(directory, fmt::format("manifest.json is malformed: {}", e.what()));
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with(directory + ":")) throw;
    fail(directory, e.what());
  }
}

std::optional<Checkpoint> latest_checkpoint(const std::string& run_directory, std::vector<std::string>* rejected) {
  for (const fs::path& path : directories(run_directory)) {
    try {
      return open_checkpoint(path.string());
    } catch (const Error& e) {
      if (rejected) rejected->push_back(e.what());
    }
  }
  return std::nullopt;
}

void load_checkpoint(const Checkpoint& checkpoint, const ParameterLayout& layout, Memory& memory) {
  load_weights(checkpoint.directory, layout, memory);
  fill(HfWeights(checkpoint.directory + kOptimizer, layout, "exp_avg."), layout, memory, names::kFirstMoment);
  fill(HfWeights(checkpoint.directory + kOptimizer, layout, "exp_avg_sq."), layout, memory, names::kSecondMoment);
}

void load_weights(const std::string& directory, const ParameterLayout& layout, Memory& memory) {
  fill(HfWeights(directory, layout), layout, memory, names::kParameters);
}

}  // namespace relume
