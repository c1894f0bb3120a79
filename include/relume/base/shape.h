#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>

namespace relume {

/// Extents of a dense row-major tensor, at most kMaxRank of them. A value without heap, so that views cost nothing.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> extents) {
    for (std::int64_t extent : extents) extent_[rank_++] = extent;
  }

  [[nodiscard]] constexpr int rank() const { return rank_; }
  /// Extent of axis i; a negative i counts from the last.
  [[nodiscard]] constexpr std::int64_t operator[](int i) const { return extent_[i < 0 ? rank_ + i : i]; }
  [[nodiscard]] constexpr std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extent_[i];
    return n;
  }
  /// Product of all extents but the last: the rows of a matrix view.
  [[nodiscard]] constexpr std::int64_t rows() const { return rank_ == 0 ? 1 : elements() / extent_[rank_ - 1]; }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.extent_[i] != b.extent_[i]) return false;
    return true;
  }

  /// "(2, 48, 64)"
  [[nodiscard]] std::string to_string() const;

 private:
  std::int64_t extent_[kMaxRank] = {};
  int rank_ = 0;
};

}  // namespace relume
