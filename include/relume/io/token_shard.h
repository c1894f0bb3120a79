// Token shards: files of token ids behind a 1024-byte header, as llm.c defines them.
//   GPT-2 form     int32 magic 20240520, version 1, count; then uint16 tokens
//   Llama-3 form   int32 magic 20240801, version 7, count; then uint32 tokens
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "relume/io/file.h"

namespace relume {

/// A shard mapped for reading; magic, version, count and exact size were checked. Throws kFile with what it found.
class TokenShard {
 public:
  explicit TokenShard(const std::string& path);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] int token_bytes() const { return token_bytes_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// Copies `count` tokens from position `first`. Throws kFile (file, position) if one is not below `vocab_size`.
  void read(std::int64_t first, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) const;

 private:
  MappedFile file_;
  std::int64_t tokens_ = 0;
  int token_bytes_ = 2;
};

/// Files that match a pattern (*, ?, [...]), in order of name; a pattern without these is one file. Throws kFile if none does.
[[nodiscard]] std::vector<std::string> match_files(const std::string& pattern);

/// Writes a shard under a temporary name; close() completes the header and puts it in place.
class TokenShardWriter {
 public:
  /// Two bytes a token if the vocabulary has at most 65,536 entries, else four.
  TokenShardWriter(const std::string& path, std::int64_t vocab_size);
  void append(std::span<const std::int32_t> tokens);
  void close();
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  std::string path_, temporary_;
  bool wide_;
  std::int64_t tokens_ = 0;
  std::unique_ptr<OutputFile> file_;
  std::vector<std::byte> buffer_;
};

}  // namespace relume
