// Files: mapped for reading, written so that nothing half-done is ever taken for whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace relume {

/// A file mapped read-only. Throws kFile with the reason if it cannot be.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Throws kFile if the file is shorter than when it was mapped: reading on would end the process. Cost: one system call.
  void check_not_truncated() const;
  /// Lets the system take back pages that were read and are not needed again, so that they do not count as resident.
  void drop(std::span<const std::byte> part) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Buffered output to a new file; the data is on disk after close(). Errors throw kRuntime with path and reason.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(const void* data, std::int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<std::int64_t>(text.size())); }
  void close();  ///< flush, fsync, close

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Replaces or creates `path` with `text`: written beside it, synced, renamed.
void write_file_atomically(const std::string& path, std::string_view text);
/// Calls `fill` with the path of a fresh temporary directory beside `path`, then syncs and renames it to `path`, which must
/// not exist. On failure the temporary directory is removed and the error passed on.
void write_directory_atomically(const std::string& path, const std::function<void(const std::string& temporary)>& fill);
/// Creates a directory and its parents; throws kRuntime if it cannot be written to.
void make_writable_directory(const std::string& path);

/// XXH3 128-bit hash as 32 hex digits. Throws kFile if the file cannot be read.
[[nodiscard]] std::string hash_file(const std::string& path);
[[nodiscard]] std::string hash_bytes(std::string_view bytes);

}  // namespace relume
