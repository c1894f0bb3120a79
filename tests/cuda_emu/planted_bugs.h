// Mistakes that the emulator must notice, as regression tests of the emulator itself.
#pragma once
#include <span>
#include <string_view>

namespace relume::test {

enum class Noticed {
  kStops,   ///< the emulator says what is wrong and aborts
  kFails,   ///< a call returns an error
  kDiffers  ///< the result is wrong, every time
};

struct PlantedBug {
  std::string_view name;
  Noticed noticed;
  /// Runs the right version, or the one with the bug. True if all calls succeeded and the result is right.
  bool (*run)(bool bug);
};

/// Empty where CUDA is not emulated.
[[nodiscard]] std::span<const PlantedBug> planted_bugs();

}  // namespace relume::test
