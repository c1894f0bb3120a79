#include "relume/base/shape.h"

#include <fmt/format.h>

namespace relume {

std::string Shape::to_string() const {
  std::string text = "(";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i ? ", " : "", extent_[i]);
  return text + ")";
}

}  // namespace relume
