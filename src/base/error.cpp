#include "relume/base/error.h"

#include <fmt/format.h>

#include "relume/base/check.h"

namespace relume {

Error::Error(ErrorCode code, const std::string& message, const char* file, int line)
    : std::runtime_error(message), code_(code), where_(fmt::format("{}:{}", file, line)) {}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUsage:
    case ErrorCode::kConfig:
    case ErrorCode::kFile:
      return 2;
    case ErrorCode::kBudget:
      return 3;
    case ErrorCode::kRuntime:
      return 1;
  }
  return 1;
}

void check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::kRuntime, fmt::format("internal error: {} is false at {}:{}; please report it", condition, file, line),
              file, line);
}

}  // namespace relume
