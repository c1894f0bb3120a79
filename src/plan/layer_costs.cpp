#include "relume/plan/layer_costs.h"

#include <algorithm>

#include "relume/base/check.h"

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Ticks of a layer.
struct Span {
  int forward_begin = -1, forward_end = 0, backward_begin = -1, backward_end = 0;
};

std::vector<Span> layer_spans(const Tape& tape, const Plan& plan) {
  std::vector<Span> spans;
  for (int t = 0; t < static_cast<int>(plan.nodes.size()); ++t) {
    const Node& node = tape.nodes()[at(plan.nodes[at(t)].node)];
    if (node.block < 0) continue;
    const std::size_t layer = at(tape.blocks()[at(node.block)].spec.layer);
    if (spans.size() <= layer) spans.resize(layer + 1);
    Span& s = spans[layer];
    int& begin = node.phase == Phase::kForward ? s.forward_begin : s.backward_begin;
    if (begin < 0) begin = t;
    (node.phase == Phase::kForward ? s.forward_end : s.backward_end) = t + 1;
  }
  return spans;
}

}  // namespace

StepCosts step_costs(const Tape& tape, const Plan& plan, const DeviceRates& rates) {
  const std::vector<Span> spans = layer_spans(tape, plan);
  CHECK(!spans.empty());
  const std::vector<std::int64_t> live = plan.live_bytes();
  const auto most_live = [&](int begin, int end) {
    return begin < end ? *std::max_element(live.begin() + begin, live.begin() + end) : 0;
  };
  const auto time = [&](int begin, int end) {
    double s = 0;
    for (int t = begin; t < end; ++t) s += seconds(plan.nodes[at(t)].cost, rates);
    return s;
  };
  /// Bytes that are live throughout the ticks [begin, end) and already before.
  const auto held = [&](int begin, int end) {
    std::int64_t bytes = 0;
    for (const Buffer& b : plan.buffers)
      if (b.lifetime.begin < begin && b.lifetime.end > end) bytes += align_up(b.lifetime.bytes);
    return bytes;
  };

  StepCosts costs;
  const Span &first = spans.front(), &last = spans.back();
  std::vector<std::int64_t> before;  // a layer -> bytes that those before it hold
  for (const Span& s : spans) before.push_back(held(s.forward_begin, s.backward_end));
  before.push_back(held(last.forward_end, last.backward_begin));
  costs.fixed_bytes = before.front();
  for (std::size_t l = 0; l < spans.size(); ++l) {
    const Span& s = spans[l];
    const std::int64_t most = std::max(most_live(s.forward_begin, s.forward_end), most_live(s.backward_begin, s.backward_end));
    costs.layers.push_back({.saved_bytes = before[l + 1] - before[l],
                            .peak_bytes = most - before[l],
                            .seconds = time(s.forward_begin, s.forward_end) + time(s.backward_begin, s.backward_end)});
  }
  costs.head_bytes = most_live(last.forward_end, last.backward_begin) - before.back();
  costs.head_s = time(last.forward_end, last.backward_begin);
  int update = static_cast<int>(plan.nodes.size());
  while (update > 0 && tape.nodes()[at(plan.nodes[at(update - 1)].node)].phase == Phase::kUpdate) --update;
  costs.elsewhere_bytes = std::max(most_live(0, first.forward_begin), most_live(first.backward_end, update));
  costs.elsewhere_s = time(0, first.forward_begin) + time(first.backward_end, update);
  costs.update_bytes = most_live(update, static_cast<int>(plan.nodes.size()));
  costs.update_s = time(update, static_cast<int>(plan.nodes.size()));
  return costs;
}

}  // namespace relume
