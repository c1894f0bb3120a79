#include "object_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume::config {

void fail(const std::string& origin, const std::string& path, const std::string& message) {
  throw Error(ErrorCode::kConfig, fmt::format("{}: {}: {}", origin, path.empty() ? "config" : path, message));
}

std::string type_of(const Json& j) {
  if (j.is_null()) return "null";
  if (j.is_object()) return "an object";
  if (j.is_array()) return "an array";
  const std::string text = j.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

ObjectReader::ObjectReader(const Json& json, std::string origin, std::string path) : json_(json), origin_(std::move(origin)), path_(std::move(path)) {
  if (!json.is_object()) fail(origin_, path_, fmt::format("expected an object, found {}", type_of(json)));
}

const Json* ObjectReader::member(std::string_view key) {
  known_.emplace_back(key);
  const auto it = json_.find(key);
  return it == json_.end() ? nullptr : &*it;
}

std::string ObjectReader::path(std::string_view key) const { return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key); }

void ObjectReader::wrong(std::string_view key, const std::string& expected, const Json& found) const {
  fail(origin_, path(key), fmt::format("expected {}, found {}", expected, type_of(found)));
}

void ObjectReader::finish() const {
  for (const auto& [key, unused] : json_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end() || key == "$schema") continue;
    const std::string nearest = nearest_name(key, known_);
    std::string list;
    for (const std::string& k : known_) list += (list.empty() ? "" : ", ") + k;
    fail(origin_, path(key), "unknown key" + (nearest.empty() ? "; known keys: " + list : fmt::format("; did you mean '{}'?", nearest)));
  }
}

}  // namespace relume::config
