// A checkpoint directory whose manifest.json, or trainer_state.json behind a right manifest, is the input.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "relume/io/file.h"
#include "relume/train/checkpoint.h"

using namespace relume;

namespace {

const std::string& directory() {
  static const std::string& path = *new std::string([] {  // outlives what runs at exit
    std::string pattern = "/dev/shm/relume-fuzz-XXXXXX";
    if (!mkdtemp(pattern.data())) std::abort();
    std::atexit([] { std::filesystem::remove_all(directory()); });
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}) std::ofstream(pattern + "/" + name) << "{}";
    return pattern;
  }());
  return path;
}

void write(const std::string& name, std::string_view text) { std::ofstream(directory() + "/" + name, std::ios::binary) << text; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data, size).substr(1);
  if (data[0] == 'm') {
    write("manifest.json", rest);
  } else {
    write("trainer_state.json", rest);
    nlohmann::json files;
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"}) {
      const std::string path = directory() + "/" + name;
      files[name] = {{"bytes", std::filesystem::file_size(path)}, {"hash", hash_file(path)}};
    }
    write("manifest.json", nlohmann::json{{"format", 1}, {"hash", "xxh3-128"}, {"files", files}}.dump());
  }
  fuzz::may_refuse([] { (void)open_checkpoint(directory()); });
  return 0;
}
