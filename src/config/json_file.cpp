#include "relume/config/json_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "relume/base/error.h"

namespace relume::config {

std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorCode::kFile, fmt::format("{}: is a directory; expected a JSON file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kFile, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json parse_json(const std::string& text, const std::string& origin, ErrorCode code) {
  using Json = nlohmann::json;
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos)  // the parser would take it for the end
    throw Error(code, fmt::format("{}: not valid JSON: a NUL at byte {}", origin, nul));
  std::vector<std::set<std::string>> open;  // keys seen so far of every object that is open
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second)
      throw Error(code, fmt::format("{}: the key \"{}\" appears twice in one object", origin, parsed.get<std::string>()));
    return true;
  };
  try {
    return Json::parse(text, watch, true, true);
  } catch (const Json::parse_error& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 3, column 5: …"
    if (const std::size_t at = what.find("at line"); at != std::string::npos) what = what.substr(at);
    throw Error(code, fmt::format("{}: not valid JSON {}", origin, what));
  } catch (const Json::out_of_range& e) {  // a number that is none
    throw Error(code, fmt::format("{}: {}", origin, e.what()));
  }
}

std::string differences(const nlohmann::json& theirs, const nlohmann::json& ours) {
  std::string text;
  const auto value = [](const nlohmann::json& j, const std::string& path) {
    const nlohmann::json::json_pointer at(path);
    return j.contains(at) ? j.at(at).dump() : "absent";
  };
  for (const auto& change : nlohmann::json::diff(theirs, ours)) {
    const auto path = change["path"].get<std::string>();
    text += fmt::format("\n  {}: {} there, {} here", path, value(theirs, path), value(ours, path));
  }
  return text;
}

}  // namespace relume::config
