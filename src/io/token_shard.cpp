#include "relume/io/token_shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "relume/base/error.h"

namespace relume {

namespace {

constexpr std::int64_t kHeaderBytes = 1024;
constexpr std::int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801;
constexpr std::int64_t kMostTokens = 2147483647;  // the header counts in int32

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kFile, fmt::format("{}: {}", path, message));
}

std::int32_t word(std::span<const std::byte> bytes, std::size_t i) {
  std::int32_t w = 0;
  std::memcpy(&w, bytes.data() + 4 * i, 4);
  return w;
}

/// What a file with an unexpected beginning looks like.
std::string what_it_looks_like(std::span<const std::byte> bytes) {
  if (bytes.size() >= 8 && std::memcmp(bytes.data(), "BIN.TOK\n", 8) == 0) return "it looks like an llmq shard (BIN.TOK)";
  if (bytes.size() >= 9 && static_cast<char>(bytes[8]) == '{') return "it looks like a safetensors file";
  const std::int32_t magic = word(bytes, 0);
  const auto swapped = static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(magic)));
  if (swapped == kGpt2Magic || swapped == kLlama3Magic)
    return "it looks like an llm.c shard with its bytes swapped";
  static constexpr std::array<std::pair<std::int32_t, const char*>, 6> kOthers{{{20240326, "an llm.c model"},
                                                                                {20240803, "an llm.c Llama-3 model or debug state"},
                                                                                {20240527, "an llm.c optimizer state"},
                                                                                {20240522, "an llm.c multiple-choice evaluation file"},
                                                                                {20240328, "an llm.c tokenizer"},
                                                                                {0x46554747, "a GGUF model"}}};
  for (const auto& [m, name] : kOthers)
    if (magic == m) return fmt::format("it looks like {}", name);
  return "it may be a file without header, such as nanoGPT writes, or no token file at all";
}

}  // namespace

TokenShard::TokenShard(const std::string& path) : file_(path) {
  const auto bytes = file_.bytes();
  if (file_.size() < kHeaderBytes) fail(path, fmt::format("no token shard: the header takes {} bytes, the file has {}", kHeaderBytes, file_.size()));
  const std::int32_t magic = word(bytes, 0), version = word(bytes, 1), count = word(bytes, 2);
  if (magic != kGpt2Magic && magic != kLlama3Magic)
    fail(path, fmt::format("no token shard: expected magic {} or {}, found {}; {}", kGpt2Magic, kLlama3Magic, magic, what_it_looks_like(bytes)));
  token_bytes_ = magic == kGpt2Magic ? 2 : 4;
  if (const int expected = magic == kGpt2Magic ? 1 : 7; version != expected)
    fail(path, fmt::format("token shard version: expected {} with magic {}, found {}", expected, magic, version));
  if (count <= 0) fail(path, fmt::format("token count in the header: expected at least 1, found {}", count));
  tokens_ = count;
  const std::int64_t expected = kHeaderBytes + tokens_ * token_bytes_;
  if (file_.size() != expected) {
    const bool four = token_bytes_ == 2 && file_.size() == kHeaderBytes + 4 * tokens_;
    fail(path, fmt::format("{} tokens of {} bytes make a file of {} bytes, found {}{}", tokens_, token_bytes_, expected, file_.size(),
                           four ? "; the tokens look 4 bytes wide" : file_.size() < expected ? "; the file is cut short" : ""));
  }
}

void TokenShard::read(std::int64_t first, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) const {
  file_.check_not_truncated();
  const std::byte* data = file_.bytes().data() + kHeaderBytes + first * token_bytes_;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t token = 0;
    std::memcpy(&token, data + i * token_bytes_, static_cast<std::size_t>(token_bytes_));
    if (token >= static_cast<std::uint64_t>(vocab_size))
      fail(path(), fmt::format("token {} at position {} is not below the vocabulary size {}; hint: the shard was made with another tokenizer", token,
                               first + i, vocab_size));
    out[i] = static_cast<std::int32_t>(token);
  }
}

std::vector<std::string> match_files(const std::string& pattern) {
  glob_t matches = {};
  const int status = glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::string> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (status != 0 || files.empty())
    throw Error(ErrorCode::kFile, fmt::format("{}: no file matches (looked in {})", pattern, std::filesystem::current_path().string()));
  return files;
}

TokenShardWriter::TokenShardWriter(const std::string& path, std::int64_t vocab_size)
    : path_(path), temporary_(fmt::format("{}.tmp-{}", path, getpid())), wide_(vocab_size > 65536), file_(std::make_unique<OutputFile>(temporary_)) {
  const std::vector<char> header(kHeaderBytes, 0);
  file_->write(header.data(), kHeaderBytes);
}

void TokenShardWriter::append(std::span<const std::int32_t> tokens) {
  const std::size_t width = wide_ ? 4 : 2;
  buffer_.resize(tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i) std::memcpy(buffer_.data() + i * width, &tokens[i], width);  // little-endian
  file_->write(buffer_.data(), static_cast<std::int64_t>(buffer_.size()));
  tokens_ += static_cast<std::int64_t>(tokens.size());
}

void TokenShardWriter::close() {
  if (tokens_ > kMostTokens) fail(path_, fmt::format("{} tokens do not fit one shard", tokens_));
  file_->close();
  const std::int32_t header[3] = {wide_ ? kLlama3Magic : kGpt2Magic, wide_ ? 7 : 1, static_cast<std::int32_t>(tokens_)};
  const int d = open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = d >= 0 && pwrite(d, header, sizeof header, 0) == sizeof header && fsync(d) == 0;
  if (d >= 0) ::close(d);
  if (!written || std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
}

}  // namespace relume
