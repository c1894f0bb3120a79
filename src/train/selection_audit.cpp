#include "relume/train/selection_audit.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "relume/base/selection.h"
#include "relume/model/llama.h"

namespace relume {

SelectionQuality selection_quality(const std::vector<float>& scores, const BlockPolicy& policy) {
  const auto n = static_cast<std::int64_t>(scores.size());
  const std::int64_t k = policy.selected(n);
  SelectionQuality q;
  q.probability.assign(scores.size(), 0.0);
  if (policy.policy == "greedy") {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    for (std::int64_t i = 0; i < k; ++i) q.probability[order[static_cast<std::size_t>(i)]] = 1;
  } else {
    std::vector<std::int32_t> units(scores.size());
    water_fill(scores.data(), n, k, policy.min_probability, units.data());
    for (std::size_t j = 0; j < scores.size(); ++j) q.probability[j] = static_cast<double>(units[j]) / static_cast<double>(kDrawUnit);
  }
  double all = 0;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const double energy = static_cast<double>(scores[j]) * static_cast<double>(scores[j]), p = q.probability[j];
    all += energy;
    q.kept += p * energy;
    q.variance += p > 0 ? (1 / p - 1) * energy : energy;
    if (p > 0) q.largest_weight = std::max(q.largest_weight, policy.policy == "greedy" ? 1.0 : 1 / p);
  }
  if (all > 0) {
    q.kept /= all;
    q.variance /= all;
  }
  return q;
}

SelectionAudit::SelectionAudit(const ModelConfig& model, const RematConfig& remat) : model_(model) {
  for (std::int64_t l = 0; l < model.num_hidden_layers; ++l)
    for (const char* kind : {"attention", "ffn"}) {
      const LayerPolicy& layer = remat.layer(l);
      const BlockPolicy& policy = std::string_view(kind) == "attention" ? layer.attention : layer.ffn;
      if (policy.approximate()) blocks_.push_back({l, kind, policy, std::vector<double>(static_cast<std::size_t>(score_range(model, l, kind).count), 0.0)});
    }
}

std::string SelectionAudit::record(std::int64_t step, const Memory& memory) {
  ++records_;
  std::vector<float> all(static_cast<std::size_t>(score_range(model_, model_.num_hidden_layers - 1, "ffn").offset + model_.intermediate_size));
  memory.read(names::kScores, all.data(), std::ssize(all));
  auto rows = nlohmann::ordered_json::array();
  for (Block& b : blocks_) {
    const ScoreRange range = score_range(model_, b.layer, b.kind);
    const std::vector<float> scores(all.begin() + range.offset, all.begin() + range.offset + range.count);
    if (std::any_of(scores.begin(), scores.end(), [](float s) { return is_bad_score(s); })) continue;  // the step was skipped
    const SelectionQuality q = selection_quality(scores, b.policy);
    double never = 0, always = 0;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      b.selected[j] += q.probability[j];
      never += b.selected[j] < 0.02 * static_cast<double>(records_);
      always += b.selected[j] > 0.98 * static_cast<double>(records_);
    }
    rows.push_back({{"layer", b.layer}, {"block", b.kind}, {"policy", b.policy.policy}, {"fraction", b.policy.fraction}, {"kept", q.kept},
                    {"variance", q.variance}, {"largest_weight", q.largest_weight}, {"never", never / static_cast<double>(scores.size())},
                    {"always", always / static_cast<double>(scores.size())}});
  }
  return nlohmann::ordered_json{{"step", step}, {"audit", rows}}.dump();
}

}  // namespace relume
