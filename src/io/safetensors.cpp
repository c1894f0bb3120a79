#include "relume/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "relume/base/check.h"
#include "relume/base/error.h"
#include "relume/config/json_file.h"

namespace relume {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLongestHeader = 100'000'000;

/// Bits an element of a safetensors dtype takes; 0 if the name is unknown.
int bits_of(const std::string& dtype) {
  static const std::map<std::string, int> bits{{"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
                                               {"I16", 16},    {"U16", 16},    {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},
                                               {"F32", 32},    {"C64", 64},    {"F64", 64}, {"I64", 64},    {"U64", 64},    {"F4", 4},
                                               {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  const auto it = bits.find(dtype);
  return it == bits.end() ? 0 : it->second;
}

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kFile, fmt::format("{}: {}", path, message));
}

std::int64_t whole(const Json& j, const std::string& path, const std::string& what) {
  if (!j.is_number_unsigned() || j.get<std::uint64_t>() > std::uint64_t{1} << 62)
    fail(path, fmt::format("{}: expected a whole number >= 0, found {}", what, j.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return j.get<std::int64_t>();
}

SafetensorsEntry read_entry(const std::string& path, const std::string& name, const Json& j) {
  if (!j.is_object()) fail(path, fmt::format("tensor '{}': expected an object in the header", name));
  const auto member = [&](const char* key) -> const Json& {
    if (!j.contains(key)) fail(path, fmt::format("tensor '{}': the header lacks \"{}\"", name, key));
    return j[key];
  };
  SafetensorsEntry e;
  if (!member("dtype").is_string() || bits_of(member("dtype")) == 0)
    fail(path, fmt::format("tensor '{}': unknown dtype {}", name, member("dtype").dump(-1, ' ', true, Json::error_handler_t::replace)));
  e.dtype = member("dtype").get<std::string>();
  if (!member("shape").is_array()) fail(path, fmt::format("tensor '{}': shape is no array", name));
  for (const Json& extent : member("shape")) e.shape.push_back(whole(extent, path, fmt::format("tensor '{}', shape", name)));
  const Json& offsets = member("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) fail(path, fmt::format("tensor '{}': data_offsets is no pair", name));
  e.begin = whole(offsets[0], path, fmt::format("tensor '{}', data_offsets", name));
  e.end = whole(offsets[1], path, fmt::format("tensor '{}', data_offsets", name));
  std::int64_t bits = bits_of(e.dtype);
  for (std::int64_t extent : e.shape)
    if (__builtin_mul_overflow(bits, extent, &bits)) fail(path, fmt::format("tensor '{}': shape {} overflows", name, e.shape_text()));
  if (e.end < e.begin || bits % 8 != 0 || e.end - e.begin != bits / 8)
    fail(path, fmt::format("tensor '{}': {} {} takes {} bytes, data_offsets [{}, {}] give {}", name, e.dtype, e.shape_text(), bits / 8, e.begin,
                           e.end, e.end - e.begin));
  return e;
}

}  // namespace

std::int64_t SafetensorsEntry::elements() const {
  std::int64_t n = 1;
  for (std::int64_t extent : shape) n *= extent;
  return n;
}

std::string SafetensorsEntry::shape_text() const {
  std::string text;
  for (std::int64_t extent : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "[" + text + "]";
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  if (file_.size() < 8) fail(path, fmt::format("no safetensors file: {} bytes, the header length alone takes 8", file_.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, file_.bytes().data(), 8);
  if (length > kLongestHeader || static_cast<std::int64_t>(length) > file_.size() - 8)
    fail(path, fmt::format("no whole safetensors file: the header claims {} bytes, {} follow", length, file_.size() - 8));
  data_begin_ = 8 + static_cast<std::int64_t>(length);
  const std::string text(reinterpret_cast<const char*>(file_.bytes().data()) + 8, length);
  const Json header = config::parse_json(text, path + " (header)", ErrorCode::kFile);
  if (!header.is_object()) fail(path, "the header is no JSON object");
  for (const auto& [name, j] : header.items()) {
    if (name != "__metadata__") {
      entries_[name] = read_entry(path, name, j);
      continue;
    }
    if (j.is_null()) continue;
    if (!j.is_object()) fail(path, "__metadata__ is no object");
    for (const auto& [key, value] : j.items()) {
      if (!value.is_string()) fail(path, fmt::format("__metadata__ \"{}\" is no string", key));
      metadata_[key] = value.get<std::string>();
    }
  }
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  for (const auto& [name, e] : entries_) order.emplace_back(&e, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::int64_t expected = 0;
  for (const auto& [e, name] : order) {
    if (e->begin != expected) fail(path, fmt::format("tensor '{}' begins at byte {} of the data, expected {}: tensors must follow each other", *name, e->begin, expected));
    expected = e->end;
  }
  if (expected != file_.size() - data_begin_)
    fail(path, fmt::format("the header describes {} bytes of data, the file has {}", expected, file_.size() - data_begin_));
}

const SafetensorsEntry& SafetensorsFile::find(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) fail(path(), fmt::format("has no tensor '{}'", name));
  return it->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& e = find(name);
  file_.check_not_truncated();
  return file_.bytes().subspan(static_cast<std::size_t>(data_begin_ + e.begin), static_cast<std::size_t>(e.end - e.begin));
}

void SafetensorsFile::copy(const std::string& name, std::string_view dtype, std::int64_t elements, void* destination) const {
  const SafetensorsEntry& e = find(name);
  if (e.dtype != dtype) fail(path(), fmt::format("tensor '{}': expected dtype {}, found {}", name, dtype, e.dtype));
  if (e.elements() != elements) fail(path(), fmt::format("tensor '{}': expected {} elements, found {} {}", name, elements, e.elements(), e.shape_text()));
  const auto data = bytes(name);
  if (data.empty()) return;
  std::memcpy(destination, data.data(), data.size());
  file_.drop(data);
}

void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";
  std::int64_t end = 0;
  for (const SafetensorsTensor& t : tensors) {
    SafetensorsEntry e{.dtype = t.dtype, .shape = t.shape};
    const std::int64_t begin = std::exchange(end, end + e.elements() * bits_of(t.dtype) / 8);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  OutputFile file(path);
  const std::uint64_t length = text.size();
  file.write(&length, 8);
  file.write(text);
  for (const SafetensorsTensor& t : tensors) {
    const auto data = t.data();
    SafetensorsEntry e{.dtype = t.dtype, .shape = t.shape};
    CHECK(static_cast<std::int64_t>(data.size()) == e.elements() * bits_of(t.dtype) / 8);
    file.write(data.data(), static_cast<std::int64_t>(data.size()));
  }
  file.close();
}

}  // namespace relume
