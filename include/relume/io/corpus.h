// Text files to token shards.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "relume/io/tokenizer.h"

namespace relume {

struct CorpusOptions {
  std::vector<std::string> inputs;  ///< text files, or directories whose *.txt files (at any depth) are taken
  std::string output;               ///< directory for train_NNNNNN.bin and val_NNNNNN.bin; must hold none yet
  double validation_fraction = 0;   ///< share of the text, by whole documents, that goes to validation
  std::int64_t tokens_per_shard = 100'000'000;
};

struct CorpusSummary {
  std::int64_t documents = 0, validation_documents = 0, bytes = 0, train_tokens = 0, validation_tokens = 0;
  std::vector<std::string> files;
};

/// Every file is one document, preceded by the tokenizer's BOS. Which documents validate depends on their names alone.
/// Throws kFile for unreadable or missing input, kRuntime for output. `progress` gets bytes done and bytes in all.
CorpusSummary write_corpus(const CorpusOptions& options, const Tokenizer& tokenizer,
                           const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// Text files among files and directories, in order of name. Throws kFile if there is none.
[[nodiscard]] std::vector<std::string> find_text_files(const std::vector<std::string>& inputs);

}  // namespace relume
