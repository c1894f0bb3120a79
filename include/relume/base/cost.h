#pragma once
#include <cstdint>

namespace relume {

/// What one node costs. A multiply-add is 2 flops; bytes are those of operands and results, each counted once.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  std::int64_t workspace_bytes = 0;
};

}  // namespace relume
