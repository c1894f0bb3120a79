// Text and JSON from files: `//` comments, no repeated keys, messages that name file and line.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "relume/base/error.h"

namespace relume::config {

[[nodiscard]] std::string read_text(const std::string& path);
/// Throws `code` with `origin` and the place in the text.
[[nodiscard]] nlohmann::json parse_json(const std::string& text, const std::string& origin, ErrorCode code = ErrorCode::kConfig);

/// A line for every value that differs between two documents: "\n  /path: theirs there, ours here".
[[nodiscard]] std::string differences(const nlohmann::json& theirs, const nlohmann::json& ours);

}  // namespace relume::config
