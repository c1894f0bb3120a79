// CHECK(condition): a programmer's error ends in an Error, in release builds too. For sources; headers do not include it.
#pragma once

namespace relume {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::relume::check_failed(#condition, __FILE__, __LINE__))
