// tokenizer.json of the GPT-2 and Llama-3 kind.
#pragma once
#include "relume/io/tokenizer.h"

namespace relume {

/// Reads tokenizer.json; what it asks for that is not implemented is refused by name. Throws kFile.
[[nodiscard]] std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::string& path, const TokenizerOptions& options);

}  // namespace relume
