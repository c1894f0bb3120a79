// One JSON object being read, with messages that name the path.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "relume/config/config.h"

namespace relume::config {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& origin, const std::string& path, const std::string& message);

/// What was found, for messages: the value itself if it is short.
[[nodiscard]] std::string type_of(const Json& j);

/// Hands out members, and at the end refuses those nobody asked for.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string origin, std::string path);

  const Json* member(std::string_view key);
  [[nodiscard]] std::string path(std::string_view key) const;
  [[noreturn]] void wrong(std::string_view key, const std::string& expected, const Json& found) const;
  void finish() const;
  [[nodiscard]] const std::string& origin() const { return origin_; }

 private:
  const Json& json_;
  std::string origin_, path_;
  std::vector<std::string> known_;
};

/// The "remat" section (remat_section.cpp).
[[nodiscard]] RematConfig read_remat(const Json& j, const std::string& origin, const std::string& path);
[[nodiscard]] nlohmann::ordered_json write_remat(const RematConfig& remat);

}  // namespace relume::config
