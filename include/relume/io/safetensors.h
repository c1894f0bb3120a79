// safetensors files: strict reading of mapped files, streaming writes.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "relume/io/file.h"

namespace relume {

struct SafetensorsEntry {
  std::string dtype;  ///< as in the file: "F32", "BF16", …
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< bytes, from the end of the header

  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::string shape_text() const;  ///< "[2, 3]"
};

/// A safetensors file whose header was checked in full before anything else: sizes, types, offsets that tile the data, no
/// repeated names. Throws kFile with file, expected and found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] bool has(const std::string& name) const { return entries_.count(name) > 0; }
  /// Bytes of a tensor, in the mapped file; may be unaligned. Throws kFile if there is none of that name.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) const;
  /// Copies a tensor of a given dtype and number of elements. Throws kFile if it is not that.
  void copy(const std::string& name, std::string_view dtype, std::int64_t elements, void* destination) const;
  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  [[nodiscard]] const SafetensorsEntry& find(const std::string& name) const;
  MappedFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::int64_t data_begin_ = 0;
};

/// One tensor to write. `data` may be called late and once: it returns bytes that stay valid until the next call.
struct SafetensorsTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::function<std::span<const std::byte>()> data;
};

/// Writes the tensors in the given order, with metadata {"format": "pt", …} (transformers v4 refuses files without it).
void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace relume
