// What approximate policies select while a model trains: the part of the audit that costs nothing.
#pragma once
#include <string>
#include <vector>

#include "relume/plan/executor.h"
#include "relume/remat/policy.h"

namespace relume {

/// How much of a block's scores a selection keeps.
struct SelectionQuality {
  double kept = 0;           ///< share of the squared scores in what is selected (sketch: expected)
  double variance = 0;       ///< sum of (1/p - 1) score^2 over sum of score^2; greedy: what it drops, 1 - kept
  double largest_weight = 1; ///< 1 / p of the least likely component
  std::vector<double> probability;  ///< of each component to be selected
};
[[nodiscard]] SelectionQuality selection_quality(const std::vector<float>& scores, const BlockPolicy& policy);

/// Reads the persistent scores of the last micro-batch, which a tape with GraphShape::keep_scores has.
class SelectionAudit {
 public:
  SelectionAudit(const ModelConfig& model, const RematConfig& remat);

  /// One JSON object: for each approximate block how much is kept, and which share of components was selected in fewer than 2 %
  /// and in more than 98 % of the records so far.
  [[nodiscard]] std::string record(std::int64_t step, const Memory& memory);

 private:
  struct Block {
    std::int64_t layer;
    std::string kind;
    BlockPolicy policy;
    std::vector<double> selected;  // sum of probabilities over records
  };
  ModelConfig model_;
  std::vector<Block> blocks_;
  std::int64_t records_ = 0;
};

}  // namespace relume
