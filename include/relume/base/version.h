#pragma once
#include <string_view>

namespace relume {
/// Version of the project and the commit it was built from.
[[nodiscard]] std::string_view version();
[[nodiscard]] std::string_view commit();
}  // namespace relume
