// The one exception type of relume. A message says where, what was expected, what was found, and what to do.
#pragma once
#include <stdexcept>
#include <string>

namespace relume {

/// Decides the exit code of the command line (exit_code()).
enum class ErrorCode {
  kInvalidArgument,  ///< an op or library call got what it cannot take
  kUsage,            ///< command line
  kConfig,           ///< config file or override; the message names the JSON path
  kFile,             ///< an input file is missing, unreadable or malformed
  kBudget,           ///< no plan fits the memory budget
  kRuntime,          ///< failed while running: disk full, diverged, out of memory
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, const char* file = __builtin_FILE(), int line = __builtin_LINE());
  [[nodiscard]] ErrorCode code() const { return code_; }
  /// Source file and line that threw, for bug reports; not part of what().
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  ErrorCode code_;
  std::string where_;
};

/// 1 failed while running, 2 bad usage, config or input file, 3 budget impossible (design: CLI contract).
[[nodiscard]] int exit_code(ErrorCode code);

}  // namespace relume
