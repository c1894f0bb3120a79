// Counts what is allocated on the heap of the test binary while something runs, by who asks.
#pragma once
#include <cstdint>
#include <functional>

namespace relume::test {

struct Allocations {
  std::int64_t ours = 0;          ///< calls of operator new from relume and the tests
  std::int64_t onednn = 0;        ///< from inside oneDNN
  std::int64_t onednn_bytes = 0;
};

[[nodiscard]] Allocations count_allocations(const std::function<void()>& run);

}  // namespace relume::test
