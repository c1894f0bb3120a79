#pragma once

namespace relume {

/// While it lives, SIGINT and SIGTERM ask for a stop instead of ending the process; a second one ends it at once.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();
  /// The signal that came, or 0.
  [[nodiscard]] static int received();
};

}  // namespace relume
