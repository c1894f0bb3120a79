// Runs a config: prepares the run directory, trains, evaluates, saves, stops on a signal, resumes.
#pragma once
#include <optional>
#include <string>

#include "relume/backend/backend.h"
#include "relume/config/config.h"

namespace relume {

struct TrainOptions {
  bool resume = false;
  std::string resume_from;         ///< checkpoint or run directory; empty = the run's own newest checkpoint
  bool remat_overridden = false;   ///< the user asked for other policies than a checkpoint's on purpose
  std::string cache_directory;     ///< where rates measured of the device are kept; empty = nowhere
  std::int64_t stop_after = 0;     ///< stop and save after this many steps of this call; 0 = run the schedule out
  bool json = false;               ///< stdout belongs to the caller: progress goes to stderr
  bool live = true;                ///< terminals get a bar
};

struct TrainSummary {
  std::int64_t steps = 0;  ///< done in all
  double final_loss = 0, validation_loss = 0, validation_perplexity = 0;
  bool evaluated = false;
  double predicted_step_s = 0, measured_step_s = 0;
  double tokens_per_s = 0;  ///< over this call, without its first two steps, evaluation and saving
  std::int64_t planned_bytes = 0, arena_bytes = 0, touched_bytes = 0, peak_rss_bytes = 0;
  std::int64_t skipped = 0;
  std::string checkpoint;
  int signal = 0;  ///< that stopped the run; 0 = none
};

/// Trains. Throws kConfig or kFile before anything is written or allocated if the run cannot work, kRuntime later.
[[nodiscard]] TrainSummary train(const Config& config, Backend& backend, const TrainOptions& options);

}  // namespace relume
