#include "relume/io/token_shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
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
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr std::int64_t kMostTokens = 2147483647;  // the header counts in int32

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kFile, fmt::format("{}: {}", path, message));
}

std::int32_t word(std::span<const std::byte> bytes, std::size_t i) {
  std::int32_t w = 0;
  std::memcpy(&w, bytes.data() + 4 * i, 4);
  return w;
}

bool is_llmq(std::span<const std::byte> bytes) { return bytes.size() >= kLlmqMagic.size() && std::memcmp(bytes.data(), kLlmqMagic.data(), kLlmqMagic.size()) == 0; }

/// What a file with an unexpected beginning looks like.
std::string what_it_looks_like(std::span<const std::byte> bytes) {
  if (static_cast<char>(bytes[8]) == '{') return "it looks like a safetensors file";
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
  return "it may be a file without header, such as nanoGPT writes (form raw-u16), or no token file at all";
}

struct FormName {
  ShardForm form;
  const char* name;
};
constexpr std::array<FormName, 4> kForms{{{ShardForm::kLlmcGpt2, "llmc-gpt2"}, {ShardForm::kLlmcLlama3, "llmc-llama3"}, {ShardForm::kLlmq, "llmq"}, {ShardForm::kRawU16, "raw-u16"}}};

}  // namespace

std::string_view to_string(ShardForm form) {
  return std::find_if(kForms.begin(), kForms.end(), [&](const FormName& f) { return f.form == form; })->name;
}

std::optional<ShardForm> parse_shard_form(std::string_view name) {
  if (name == "auto") return {};
  for (const FormName& f : kForms)
    if (f.name == name) return f.form;
  throw Error(ErrorCode::kUsage, fmt::format("token shards: unknown form '{}'; hint: {}", name, fmt::join(shard_form_names(), ", ")));
}

const std::vector<std::string>& shard_form_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> n{"auto"};
    for (const FormName& f : kForms) n.emplace_back(f.name);
    return n;
  }();
  return names;
}

ShardForm default_shard_form(std::int64_t vocab_size) { return vocab_size <= 65536 ? ShardForm::kLlmcGpt2 : ShardForm::kLlmcLlama3; }

TokenShard::TokenShard(const std::string& path, std::optional<ShardForm> form) : file_(path) {
  const auto bytes = file_.bytes();
  if (form == ShardForm::kRawU16) {
    form_ = *form;
    if (file_.size() == 0 || file_.size() % 2 != 0) fail(path, fmt::format("form raw-u16: expected tokens of 2 bytes, found a file of {} bytes", file_.size()));
    tokens_ = file_.size() / 2;
    return;
  }
  if (file_.size() < kHeaderBytes) fail(path, fmt::format("no token shard: the header takes {} bytes, the file has {}", kHeaderBytes, file_.size()));
  data_begin_ = kHeaderBytes;
  is_llmq(bytes) ? read_llmq_header(bytes) : read_llmc_header(bytes);
  if (form && *form != form_) fail(path, fmt::format("expected a token shard of the form {}, found {}", to_string(*form), to_string(form_)));
  if (tokens_ <= 0) fail(path, fmt::format("token count in the header: expected at least 1, found {}", tokens_));
  const std::int64_t expected = kHeaderBytes + tokens_ * token_bytes() + (has_mask() ? (tokens_ + 7) / 8 : 0);
  if (file_.size() != expected) {
    const bool four = token_bytes() == 2 && file_.size() == kHeaderBytes + 4 * tokens_;
    fail(path, fmt::format("{} tokens of {} bytes{} make a file of {} bytes, found {}{}", tokens_, token_bytes(), has_mask() ? " and their mask" : "", expected,
                           file_.size(), four ? "; the tokens look 4 bytes wide" : file_.size() < expected ? "; the file is cut short" : ""));
  }
}

void TokenShard::read_llmc_header(std::span<const std::byte> bytes) {
  const std::int32_t magic = word(bytes, 0), version = word(bytes, 1);
  if (magic != kGpt2Magic && magic != kLlama3Magic)
    fail(path(), fmt::format("no token shard: expected magic {}, {} or \"BIN.TOK\", found {}; {}", kGpt2Magic, kLlama3Magic, magic, what_it_looks_like(bytes)));
  form_ = magic == kGpt2Magic ? ShardForm::kLlmcGpt2 : ShardForm::kLlmcLlama3;
  if (const int expected = magic == kGpt2Magic ? 1 : 7; version != expected)
    fail(path(), fmt::format("token shard version: expected {} with magic {}, found {}", expected, magic, version));
  tokens_ = word(bytes, 2);
}

/// The rest of this header is not zero in files of llmq: only the fields count.
void TokenShard::read_llmq_header(std::span<const std::byte> bytes) {
  form_ = ShardForm::kLlmq;
  const std::int32_t version = word(bytes, 2), width = word(bytes, 3);
  if (version != 1 && version != 2) fail(path(), fmt::format("BIN.TOK version: expected 1 or 2, found {}", version));
  if (width != 4) fail(path(), fmt::format("BIN.TOK bytes a token: expected 4, found {}", width));
  tokens_ = word(bytes, 4);
  if (version == 2 && word(bytes, 6) != 0) mask_begin_ = kHeaderBytes + 4 * tokens_;
}

void TokenShard::read(std::int64_t first, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) const {
  file_.check_not_truncated();
  const int width = token_bytes();
  const std::byte* data = file_.bytes().data() + data_begin_ + first * width;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t token = 0;
    std::memcpy(&token, data + i * width, static_cast<std::size_t>(width));
    if (token >= static_cast<std::uint64_t>(vocab_size))
      fail(path(), fmt::format("token {} at position {} is not below the vocabulary size {}; hint: the shard was made with another tokenizer", token,
                               first + i, vocab_size));
    out[i] = static_cast<std::int32_t>(token);
  }
}

bool TokenShard::trained(std::int64_t position) const {
  if (!has_mask()) return true;
  return (static_cast<unsigned>(file_.bytes()[static_cast<std::size_t>(mask_begin_ + position / 8)]) >> (position % 8) & 1u) != 0;
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

TokenShardWriter::TokenShardWriter(const std::string& path, std::int64_t vocab_size, ShardForm form, bool masked)
    : path_(path), temporary_(fmt::format("{}.tmp-{}", path, getpid())), vocab_size_(vocab_size), form_(form), masked_(masked) {
  const bool narrow = form == ShardForm::kLlmcGpt2 || form == ShardForm::kRawU16;
  if (narrow && vocab_size > 65536)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: form {} holds ids below 65536, the vocabulary has {}; hint: llmc-llama3 or llmq", path, to_string(form), vocab_size));
  if (masked && form != ShardForm::kLlmq)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: form {} has no place for a loss mask; hint: llmq", path, to_string(form)));
  file_ = std::make_unique<OutputFile>(temporary_);
  if (form == ShardForm::kRawU16) return;
  std::vector<char> header(kHeaderBytes, form == ShardForm::kLlmq ? '*' : '\0');  // llmq's own filling
  if (form == ShardForm::kLlmq) header.back() = '\n';
  file_->write(header.data(), kHeaderBytes);
}

TokenShardWriter::~TokenShardWriter() {
  if (file_) std::remove(temporary_.c_str());
}

void TokenShardWriter::append(std::span<const std::int32_t> tokens, const std::vector<bool>& trained) {
  const std::size_t width = form_ == ShardForm::kLlmcGpt2 || form_ == ShardForm::kRawU16 ? 2 : 4;
  buffer_.resize(tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i) std::memcpy(buffer_.data() + i * width, &tokens[i], width);  // little-endian
  file_->write(buffer_.data(), static_cast<std::int64_t>(buffer_.size()));
  for (std::size_t i = 0; masked_ && i < tokens.size(); ++i) {
    const std::size_t bit = static_cast<std::size_t>(tokens_) + i;
    mask_.resize(bit / 8 + 1);
    if (trained.empty() || trained[i]) mask_[bit / 8] |= static_cast<unsigned char>(1u << (bit % 8));
  }
  tokens_ += static_cast<std::int64_t>(tokens.size());
}

void TokenShardWriter::close() {
  if (tokens_ > kMostTokens) fail(path_, fmt::format("{} tokens do not fit one shard", tokens_));
  if (masked_) file_->write(mask_.data(), static_cast<std::int64_t>(mask_.size()));
  file_->close();
  std::vector<std::int32_t> header;
  if (form_ == ShardForm::kLlmq) {
    header.resize(2);
    std::memcpy(header.data(), kLlmqMagic.data(), kLlmqMagic.size());
    header.insert(header.end(), {2, 4, static_cast<std::int32_t>(tokens_), static_cast<std::int32_t>(vocab_size_), masked_ ? 1 : 0});
  } else if (form_ != ShardForm::kRawU16) {
    const bool gpt2 = form_ == ShardForm::kLlmcGpt2;
    header = {gpt2 ? kGpt2Magic : kLlama3Magic, gpt2 ? 1 : 7, static_cast<std::int32_t>(tokens_)};
  }
  const auto bytes = static_cast<ssize_t>(4 * header.size());
  const int d = open(temporary_.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = d >= 0 && pwrite(d, header.data(), static_cast<std::size_t>(bytes), 0) == bytes && fsync(d) == 0;
  if (d >= 0) ::close(d);
  if (!written || std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
  file_.reset();
}

}  // namespace relume
