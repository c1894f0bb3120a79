// From the policy a config names to what a block keeps and how its backward is formed. Pure but for the selection nodes
// that selectors emit.
#pragma once
#include <optional>
#include <set>
#include <span>
#include <string>

#include "relume/config/config.h"
#include "relume/ops/ops.h"

namespace relume {

/// Backward on chosen components only.
struct Reduction {
  std::string selector;
  std::int64_t k = 0;  ///< components chosen
  double min_probability = 0;
};

struct RematDecision {
  bool keep_all = true;
  std::set<std::string> keep = {};  ///< names of saved values, besides the block input
  std::optional<Reduction> reduction = {};
};

/// What `policy` means for a block with `components` components.
[[nodiscard]] RematDecision decide(const BlockPolicy& policy, const std::string& kind, std::int64_t components);

/// Expected squared error of a block's gradient under a policy, relative to its squared norm; 0 for exact policies. Modelled:
/// components contribute independently, with lognormal scores (log-sd 0.5, the middle of what small models show; relume audit
/// measures it). greedy loses what it drops, sketch has the variance of its draw.
[[nodiscard]] double expected_relative_variance(const BlockPolicy& policy);

/// What a selector may use besides its profile.
struct SelectionContext {
  std::int64_t layer = 0, block = 0;  ///< block: 0 attention, 1 ffn; part of the key of random draws
  Tensor state, result;
  Tensor scores;  ///< persistent memory for the profile; absent: a planned value like others
};

/// A way to choose components: what the forward leaves (at most one fp32 a component), and the choice made from it.
struct Selector {
  std::string_view name;
  Tensor (*profile)(const BlockRecord&, Tensor into);  ///< `into` may be absent
  Selection (*select)(Tensor profile, const Reduction&, const SelectionContext&);
};

/// All selectors; one file each in src/remat.
[[nodiscard]] std::span<const Selector* const> selectors();

/// Fills in how the block's backward is formed.
void apply(const RematDecision& decision, const SelectionContext& context, BlockSpec& spec);

}  // namespace relume
