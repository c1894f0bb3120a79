// Runs the command line, on a small corpus, for tests.
#pragma once
#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "files.h"
#include "relume/io/token_shard.h"
#include "support.h"

namespace relume::test {

struct Result {
  int code;
  std::string out, err;
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// Runs relume with arguments as a shell would split them.
inline Result relume_cli(const std::string& arguments, const TemporaryDirectory& dir, const std::string& before = "") {
  const int status = std::system(fmt::format("cd {0} && export XDG_CACHE_HOME={0}/cache && {1} {2} {3} >out.txt 2>err.txt </dev/null", dir.path(), before, RELUME_BINARY, arguments).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text_file(dir / "out.txt"), read_text_file(dir / "err.txt")};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A small learnable corpus and a config of a few steps in a directory.
inline void prepare(const TemporaryDirectory& dir) {
  for (const auto& [name, n, seed] : {std::tuple{"train_0.bin", 3000, 1u}, std::tuple{"train_1.bin", 2000, 2u}, std::tuple{"val_0.bin", 800, 3u}}) {
    TokenShardWriter w(dir / name, 64);
    std::vector<std::int32_t> tokens{1};
    std::mt19937 random(seed);
    while (static_cast<int>(tokens.size()) < n)
      tokens.push_back(random() % 4 ? (tokens.back() * 5 + 3) % 64 : static_cast<std::int32_t>(random() % 64));
    w.append(tokens);
    w.close();
  }
  std::ofstream(dir / "c.json") << R"({
  "model": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
  "data": {"train": "train_*.bin", "validation": "val_*.bin", "sequence_length": 16},
  "batch": {"micro_batch_size": 2, "tokens_per_step": 64},
  "optimizer": {"learning_rate": 0.01},
  "schedule": {"warmup_steps": 3, "steps": 40},
  "remat": {"default": {"attention": "exact", "ffn": {"policy": "greedy", "fraction": 0.5}},
            "layers": {"0": "store", "2": {"policy": "sketch", "fraction": 0.5, "min_probability": 0.2}}},
  "evaluation": {"every_steps": 20, "tokens": 400},
  "checkpoint": {"every_steps": 10, "keep_last": 2},
  "output": "run"
})";
}

}  // namespace relume::test
