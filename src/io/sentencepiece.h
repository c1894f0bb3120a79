// SentencePiece models.
#pragma once
#include "relume/io/tokenizer.h"

namespace relume {

/// Reads a SentencePiece model. Throws kFile if it is none.
[[nodiscard]] std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);

}  // namespace relume
