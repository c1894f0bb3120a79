// Checkpoints: Hugging Face model directories with what resuming needs beside the weights.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "relume/io/hf_directory.h"
#include "relume/plan/executor.h"

namespace relume {

class Tokenizer;

/// What is not in the weights and moments.
struct TrainerState {
  std::int64_t step = 0;           ///< optimizer steps done
  std::int64_t updates = 0;        ///< of these, applied (Adam's t)
  std::int64_t data_position = 0;  ///< windows taken
  std::int64_t tokens = 0;         ///< targets trained on
  std::int64_t skipped = 0;        ///< steps skipped because something was not finite
  std::int64_t skipped_in_a_row = 0;
  std::string identity;  ///< JSON: what must be the same for a resumed run to be the same run (model, seed, data, windows)
  std::string remat;     ///< JSON: the policies as the config writes them; with "auto" also what it was given to choose by
  std::string policies;  ///< JSON: the policies of every layer, those of "auto" chosen
  std::string kernels;   ///< device and instruction set; other ones may round differently
};

/// Writes RUN/checkpoints/step-NNNNNNNN atomically: weights, moments, state, manifest with sizes and hashes. Deletes the oldest
/// valid ones beyond keep_last (0 = none). Returns the directory. Throws kRuntime, leaving nothing half-done behind.
std::string save_checkpoint(const std::string& run_directory, const TrainerState& state, const ModelConfig& model,
                            const Tokenizer* tokenizer, const ParameterLayout& layout, const Memory& memory, std::int64_t keep_last);

struct Checkpoint {
  std::string directory;
  TrainerState state;
};

/// Opens a checkpoint after checking every file against the manifest. Throws kFile with what is wrong.
[[nodiscard]] Checkpoint open_checkpoint(const std::string& directory);

/// The newest checkpoint of a run whose manifest is valid; `rejected` gets a line for every newer one that is not.
[[nodiscard]] std::optional<Checkpoint> latest_checkpoint(const std::string& run_directory, std::vector<std::string>* rejected = nullptr);

/// Fills weights and moments in device memory.
void load_checkpoint(const Checkpoint& checkpoint, const ParameterLayout& layout, Memory& memory);
/// Fills weights alone, from any Hugging Face directory: one file or shards, f32, bf16 or f16.
void load_weights(const std::string& directory, const ParameterLayout& layout, Memory& memory);

}  // namespace relume
