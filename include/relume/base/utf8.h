// What text must be before tokenizers see it, and what bytes become before people do.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace relume {

/// Bytes of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms, nothing above U+10FFFF).
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view bytes);

/// Every maximal invalid prefix becomes one U+FFFD, as the Unicode standard recommends.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view bytes);

/// Appends a code point.
void append_utf8(std::string& text, char32_t code_point);
/// The code point that begins at `at`, which moves behind it. The text is valid UTF-8.
[[nodiscard]] char32_t next_code_point(std::string_view text, std::size_t& at);

}  // namespace relume
