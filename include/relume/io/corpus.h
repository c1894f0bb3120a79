// Text files to token shards.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "relume/io/token_shard.h"
#include "relume/io/tokenizer.h"

namespace relume {

struct CorpusOptions {
  std::vector<std::string> inputs;   ///< text files, or directories whose *.txt and *.jsonl files (at any depth) are taken
  std::string output;                ///< directory for train_NNNNNN.bin and val_NNNNNN.bin; must hold none yet
  std::string field = "text";        ///< of a .jsonl line, an object, that holds the document
  double validation_fraction = 0;    ///< share of the text, by whole documents, that goes to validation
  std::int64_t tokens_per_shard = 100'000'000;
  std::optional<ShardForm> form = {};  ///< default: default_shard_form()
  bool mask_boundaries = false;      ///< the token that begins a document is not trained on (llmq form)
  int threads = 0;                   ///< 0: all processors
};

struct CorpusSummary {
  std::int64_t documents = 0, validation_documents = 0, bytes = 0, train_tokens = 0, validation_tokens = 0;
  std::vector<std::string> files;
};

/// A .txt file is one document, a .jsonl file one a line; each is preceded by the tokenizer's BOS. Documents are encoded in parallel and
/// written in order. Which ones validate depends on their names (file, and line) alone.
/// Memory: the tokens of 64 MiB of text, or of the longest document. Throws kFile for unreadable, malformed or missing input, kRuntime
/// for output. `progress` gets bytes done and bytes in all.
CorpusSummary write_corpus(const CorpusOptions& options, const Tokenizer& tokenizer,
                           const std::function<void(std::int64_t done, std::int64_t all)>& progress = {});

/// The document a line of a .jsonl file holds. Throws kFile (`name`).
[[nodiscard]] std::string jsonl_document(std::string_view line, const std::string& name, const std::string& field);
[[nodiscard]] bool is_jsonl(const std::string& path);

/// Text files among files and directories, in order of name. Throws kFile if there is none.
[[nodiscard]] std::vector<std::string> find_text_files(const std::vector<std::string>& inputs);

}  // namespace relume
