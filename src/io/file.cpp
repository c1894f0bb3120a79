#include "relume/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "relume/base/error.h"

namespace relume {

namespace {

[[noreturn]] void fail_writing(const std::string& path) {
  const int reason = errno;
  throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be written: {}{}", path, std::strerror(reason),
                                               reason == ENOSPC ? "; hint: free some space, the run can be resumed" : ""));
}

void sync_directory(const std::string& path) {
  const int d = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (d < 0) return;  // some file systems cannot; the rename itself is still atomic
  fsync(d);
  close(d);
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw Error(ErrorCode::kFile, fmt::format("{}: is no regular file", path));
  }
  size_ = status.st_size;
  if (size_ == 0) return;
  void* data = mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (data == MAP_FAILED) {
    close(descriptor_);
    throw Error(ErrorCode::kFile, fmt::format("{}: cannot be mapped: {}", path, std::strerror(errno)));
  }
  data_ = static_cast<const std::byte*>(data);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
  if (descriptor_ >= 0) close(descriptor_);
}

void MappedFile::check_not_truncated() const {
  struct stat status = {};
  if (fstat(descriptor_, &status) == 0 && status.st_size >= size_) return;
  throw Error(ErrorCode::kFile, fmt::format("{}: had {} bytes when it was opened, now has {}; hint: do not change data while it is being read",
                                            path_, size_, status.st_size));
}

void MappedFile::drop(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(part.data()) + part.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

OutputFile::OutputFile(const std::string& path) : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail_writing(path);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, std::int64_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor_, p, static_cast<std::size_t>(std::min<std::int64_t>(bytes, 1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_writing(path_);
    p += n;
    bytes -= n;
  }
}

void OutputFile::close() {
  const int d = std::exchange(descriptor_, -1);
  const bool synced = fsync(d) == 0 || errno == EINVAL;  // EINVAL: a pipe or device, which has no disk
  const bool closed = ::close(d) == 0;
  if (!synced || !closed) fail_writing(path_);
}

void write_file_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = fmt::format("{}.tmp-{}", path, getpid());
  OutputFile file(temporary);
  file.write(text);
  file.close();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail_writing(path);
  sync_directory(parent_of(path));
}

void write_directory_atomically(const std::string& path, const std::function<void(const std::string&)>& fill) {
  if (std::filesystem::exists(path))
    throw Error(ErrorCode::kRuntime, fmt::format("{}: exists already; it is not overwritten", path));
  const std::string temporary = fmt::format("{}.tmp-{}", path, getpid());
  std::filesystem::remove_all(temporary);
  make_writable_directory(temporary);
  try {
    fill(temporary);
    sync_directory(temporary);
    if (std::rename(temporary.c_str(), path.c_str()) != 0) fail_writing(path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
  sync_directory(parent_of(path));
}

void make_writable_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!std::filesystem::is_directory(path))
    throw Error(ErrorCode::kRuntime, fmt::format("{}: cannot be made a directory: {}", path, error ? error.message() : "a file is in the way"));
  if (access(path.c_str(), W_OK) != 0) fail_writing(path);
}

// Read in pieces: mapped pages would count as resident memory of the process.
std::string hash_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), std::ssize(piece)) || file.gcount() > 0)
    XXH3_128bits_update(state.get(), piece.data(), static_cast<std::size_t>(file.gcount()));
  return hex(XXH3_128bits_digest(state.get()));
}

std::string hash_bytes(std::string_view bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace relume
