// Token shards: files of token ids as llm.c, llmq and nanoGPT define them. All integers are little-endian.
//   llmc-gpt2     1024-byte header: int32 magic 20240520, version 1, count; then uint16 tokens
//   llmc-llama3   1024-byte header: int32 magic 20240801, version 7, count; then uint32 tokens
//   llmq          1024-byte header: "BIN.TOK\n", int32 version 1 or 2, 4 bytes a token, count; int32 tokens; perhaps a bit a token that
//                 says which are trained on
//   raw-u16       uint16 tokens alone (nanoGPT): any file looks like one, so it is read only where it is asked for
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "relume/io/file.h"

namespace relume {

enum class ShardForm { kLlmcGpt2, kLlmcLlama3, kLlmq, kRawU16 };

[[nodiscard]] std::string_view to_string(ShardForm form);
/// "auto": by the magic number. Throws kUsage for an unknown name.
[[nodiscard]] std::optional<ShardForm> parse_shard_form(std::string_view name);
/// "auto" and the names above, for options and configs.
[[nodiscard]] const std::vector<std::string>& shard_form_names();
/// What relume writes where nothing else is asked for: two bytes a token if the vocabulary has at most 65,536 entries, else four.
[[nodiscard]] ShardForm default_shard_form(std::int64_t vocab_size);

/// A shard mapped for reading; magic, version, count and exact size were checked. Throws kFile with what it found.
class TokenShard {
 public:
  explicit TokenShard(const std::string& path, std::optional<ShardForm> form = {});

  [[nodiscard]] ShardForm form() const { return form_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] int token_bytes() const { return form_ == ShardForm::kLlmcGpt2 || form_ == ShardForm::kRawU16 ? 2 : 4; }
  [[nodiscard]] bool has_mask() const { return mask_begin_ > 0; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }
  /// Copies `count` tokens from position `first`. Throws kFile (file, position) if one is not below `vocab_size`.
  void read(std::int64_t first, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) const;
  /// Whether the token at a position is to be trained on as a target.
  [[nodiscard]] bool trained(std::int64_t position) const;

 private:
  void read_llmc_header(std::span<const std::byte> bytes);
  void read_llmq_header(std::span<const std::byte> bytes);
  MappedFile file_;
  ShardForm form_ = ShardForm::kLlmcGpt2;
  std::int64_t tokens_ = 0, data_begin_ = 0, mask_begin_ = 0;
};

/// Files that match a pattern (*, ?, [...]), in order of name; a pattern without these is one file. Throws kFile if none does.
[[nodiscard]] std::vector<std::string> match_files(const std::string& pattern);

/// Writes a shard under a temporary name; close() completes the header and puts it in place. Not closed, nothing is left behind.
class TokenShardWriter {
 public:
  TokenShardWriter(const std::string& path, std::int64_t vocab_size) : TokenShardWriter(path, vocab_size, default_shard_form(vocab_size)) {}
  /// `masked` (llmq alone): append() is told which tokens are trained on. Throws kInvalidArgument if the form cannot hold the vocabulary
  /// or a mask.
  TokenShardWriter(const std::string& path, std::int64_t vocab_size, ShardForm form, bool masked = false);
  TokenShardWriter(const TokenShardWriter&) = delete;
  TokenShardWriter& operator=(const TokenShardWriter&) = delete;
  ~TokenShardWriter();
  void append(std::span<const std::int32_t> tokens, const std::vector<bool>& trained = {});
  void close();
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  std::string path_, temporary_;
  std::int64_t vocab_size_;
  ShardForm form_;
  bool masked_;
  std::int64_t tokens_ = 0;
  std::unique_ptr<OutputFile> file_;
  std::vector<std::byte> buffer_;
  std::vector<unsigned char> mask_;  // a bit a token
};

}  // namespace relume
