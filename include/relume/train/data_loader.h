#pragma once
#include <string>
#include <vector>

#include "relume/config/config.h"
#include "relume/io/token_shard.h"

namespace relume {

/// Windows of `length` inputs and targets (one token later) from token shards. Windows start every `length` tokens of a file
/// and do not cross files. The order is a pure function of (seed, epoch), so a position is one number and resuming is exact
/// across files and epochs.
class DataLoader {
 public:
  struct Options {
    std::int64_t length = 1024, vocab_size = 0;
    bool shuffle = false;  ///< false: file order, every epoch
    std::uint64_t seed = 0;
    std::optional<ShardForm> form = {};
  };
  /// Opens all files that match. Throws kFile naming the shortest file if none has a whole window.
  DataLoader(const std::string& pattern, const Options& options);

  /// Writes the next window, starting the next epoch after the last one. A target that the shard's mask leaves out is -100.
  void next(std::int32_t* tokens, std::int32_t* targets);

  [[nodiscard]] std::int64_t position() const { return position_; }  ///< windows taken since the start of the run
  void seek(std::int64_t position) { position_ = position; }
  [[nodiscard]] std::int64_t windows() const { return first_window_.back(); }  ///< in one epoch
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Identifies the data: names and sizes of the files. A resumed run must see the same.
  [[nodiscard]] std::string fingerprint() const;

 private:
  Options options_;
  std::vector<TokenShard> shards_;
  std::vector<std::int64_t> first_window_;  // of each shard; one more at the end
  std::vector<std::int32_t> window_;
  std::int64_t tokens_ = 0, position_ = 0;
};

/// How a config has its shards read.
[[nodiscard]] DataLoader::Options training_windows(const Config& config);
[[nodiscard]] DataLoader::Options validation_windows(const Config& config);  ///< in file order

}  // namespace relume
