// The description of the config, written once (describe.cpp) and visited by the reader, the writer, the schema and the
// table of docs/config.md.
#pragma once
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "relume/config/config.h"

namespace relume::config {

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
};

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  using Describe = std::function<void(FieldVisitor&)>;

  virtual void integer(std::string_view key, std::int64_t& value, Range range, std::string_view doc) = 0;
  virtual void number(std::string_view key, double& value, Range range, std::string_view doc) = 0;
  virtual void numbers(std::string_view key, std::vector<double>& value, std::size_t count, Range range, std::string_view doc) = 0;
  virtual void boolean(std::string_view key, bool& value, std::string_view doc) = 0;
  /// `choices` empty: any string.
  virtual void text(std::string_view key, std::string& value, const std::vector<std::string>& choices, std::string_view doc) = 0;
  /// Any number of the choices.
  virtual void texts(std::string_view key, std::vector<std::string>& value, const std::vector<std::string>& choices, std::string_view doc) = 0;
  /// "16GiB", or a number of bytes.
  virtual void bytes(std::string_view key, std::int64_t& value, std::string_view doc) = 0;
  virtual void object(std::string_view key, std::string_view doc, const Describe& describe) = 0;
  /// A string (a path) or an object.
  virtual void path_or_object(std::string_view key, std::string& path, std::string_view doc, const Describe& describe) = 0;
  virtual void remat(std::string_view key, RematConfig& value, std::string_view doc) = 0;
};

void describe(FieldVisitor& v, Config& config);
void describe(FieldVisitor& v, ModelConfig& model);

inline const std::vector<std::string> kPolicies{"store", "selective", "exact", "greedy", "sketch", "auto"};

/// What must hold between fields. Throws kConfig.
void validate(const Config& config, const std::string& origin);
void validate(const ModelConfig& model, const std::string& origin);

}  // namespace relume::config
