// What the fuzz targets share. A reader may refuse anything with relume::Error; every other way out is a finding.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "relume/base/error.h"

namespace relume::fuzz {

/// The input as a file, without a file system.
class File {
 public:
  File(const std::uint8_t* data, std::size_t size) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(descriptor_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

/// Calls f; a refusal is fine if it says something.
template <class F>
void may_refuse(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    if (std::string_view(e.what()).empty()) std::abort();
  }
}

}  // namespace relume::fuzz
