#include "relume/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "relume/base/check.h"
#include "relume/base/error.h"

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// A node is live if something live reads it, if it writes persistent memory, or if its output was asked for.
std::vector<bool> live_nodes(const Tape& tape) {
  const auto& nodes = tape.nodes();
  std::vector<bool> live(nodes.size(), false), read(tape.values().size(), false);
  for (int v : tape.results()) read[at(v)] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    for (int v : nodes[i].out) live[i] = live[i] || read[at(v)] || tape.values()[at(v)].persistent();
    if (!live[i]) continue;
    for (int v : nodes[i].in)
      if (v >= 0) read[at(v)] = true;
  }
  return live;
}

/// Every value is made before it is read, and none is read after an accumulation in place replaced it.
void check_graph(const Tape& tape, const std::vector<bool>& live) {
  std::vector<int> overwritten_by(tape.values().size(), -1);
  std::vector<bool> made(tape.values().size(), false);
  for (std::size_t i = 0; i < tape.nodes().size(); ++i) {
    if (!live[i]) continue;
    const Node& node = tape.nodes()[i];
    for (int v : node.in) {
      if (v < 0) continue;
      const Value& value = tape.values()[at(v)];
      if (value.producer >= 0 && !made[at(v)])
        throw Error(ErrorCode::kRuntime, fmt::format("[graph check] node {} ({}) reads '{}' before it is made", i, node.op->name, tape.describe(v)));
      if (overwritten_by[at(v)] >= 0)
        throw Error(ErrorCode::kRuntime, fmt::format("[graph check] node {} ({}) reads '{}', which node {} has overwritten", i, node.op->name,
                                                     tape.describe(v), overwritten_by[at(v)]));
    }
    for (int v : node.out) {
      made[at(v)] = true;
      if (tape.values()[at(v)].alias >= 0) overwritten_by[at(tape.values()[at(v)].alias)] = static_cast<int>(i);
    }
  }
}

/// Collects buffers with their lifetimes, giving outputs the storage of inputs that die where the op allows it.
class Lifetimes {
 public:
  Lifetimes(const Tape& tape, Plan& plan) : tape_(tape), plan_(plan), last_read_(tape.values().size(), -1) {
    plan.buffer_of.assign(tape.values().size(), -1);
    for (std::size_t tick = 0; tick < plan.nodes.size(); ++tick)
      for (int v : node(tick).in)
        if (v >= 0) last_read_[at(v)] = static_cast<int>(tick);
    for (std::size_t i = 0; i < tape.nodes().size(); ++i)
      if (tape.nodes()[i].block >= 0 && tape.nodes()[i].phase == Phase::kForward) last_block_node_ = static_cast<int>(i);
  }

  void collect() {
    for (std::size_t tick = 0; tick < plan_.nodes.size(); ++tick) {
      for (int v : node(tick).in) touch(v, static_cast<int>(tick));
      for (int v : node(tick).out) {
        if (tape_.values()[at(v)].persistent()) continue;
        if (!share(v, static_cast<int>(tick))) open(v, static_cast<int>(tick));
        touch(v, static_cast<int>(tick));
      }
      PlannedNode& planned = plan_.nodes[tick];
      if (planned.cost.workspace_bytes == 0) continue;
      planned.workspace_buffer = static_cast<int>(plan_.buffers.size());
      const bool head = planned.node > last_block_node_ && node(tick).phase == Phase::kForward;
      plan_.buffers.push_back({.lifetime = {planned.cost.workspace_bytes, static_cast<int>(tick), static_cast<int>(tick) + 1},
                               .category = head ? Category::kHead : Category::kWorkspace,
                               .node = planned.node});
    }
    for (Buffer& b : plan_.buffers)  // what only the forward reads was not saved
      if (b.category == Category::kSaved && node(at(b.lifetime.end - 1)).phase == Phase::kForward)
        b.category = Category::kForwardTemporary;
  }

 private:
  const Node& node(std::size_t tick) const { return tape_.nodes()[at(plan_.nodes[tick].node)]; }

  void touch(int v, int tick) {
    if (v < 0) return;
    if (const int b = plan_.buffer_of[at(v)]; b >= 0) {
      int& end = plan_.buffers[at(b)].lifetime.end;
      end = std::max(end, tick + 1);
    }
  }

  /// The buffer of the input that v may take over, if this node is the last to read it and reads it once.
  bool share(int v, int tick) {
    const int input = tape_.values()[at(v)].may_alias;
    if (input < 0 || plan_.buffer_of[at(input)] < 0 || last_read_[at(input)] != tick || tape_.results().count(input)) return false;
    const int b = plan_.buffer_of[at(input)];
    const Node& n = node(at(tick));
    if (std::count(n.in.begin(), n.in.end(), input) != 1 || plan_.buffers[at(b)].lifetime.bytes != tape_.values()[at(v)].bytes()) return false;
    plan_.buffer_of[at(v)] = b;
    if (n.phase == Phase::kForward) plan_.buffers[at(b)].value = v;
    return true;
  }

  void open(int v, int tick) {
    plan_.buffer_of[at(v)] = static_cast<int>(plan_.buffers.size());
    plan_.buffers.push_back({.lifetime = {tape_.values()[at(v)].bytes(), tick, tick + 1}, .category = category(tick), .value = v});
  }

  Category category(int tick) const {
    const Node& n = node(at(tick));
    if (n.recompute) return Category::kRecomputed;
    if (n.phase != Phase::kForward) return Category::kGradient;
    return plan_.nodes[at(tick)].node > last_block_node_ ? Category::kHead : Category::kSaved;
  }

  const Tape& tape_;
  Plan& plan_;
  std::vector<int> last_read_;  // value -> last tick that reads it
  int last_block_node_ = -1;
};

std::vector<Lifetime> lifetimes_of(const Plan& plan) {
  std::vector<Lifetime> lifetimes;
  for (const Buffer& b : plan.buffers) lifetimes.push_back(b.lifetime);
  return lifetimes;
}

}  // namespace

std::string_view to_string(Category category) {
  static constexpr std::string_view kNames[kCategoryCount] = {"saved",    "forward temporaries", "recomputed",
                                                              "gradient temporaries", "head", "workspace"};
  return kNames[static_cast<std::size_t>(category)];
}

std::vector<std::int64_t> Plan::live_bytes() const {
  std::vector<std::int64_t> live(nodes.size(), 0);
  for (const Buffer& b : buffers)
    for (int t = b.lifetime.begin; t < b.lifetime.end; ++t) live[at(t)] += align_up(b.lifetime.bytes);
  return live;
}

NodeViews views_of(const Tape& tape, const Node& node) {
  NodeViews views;
  for (int v : node.in)
    views.in.push_back(v < 0 ? TensorView{} : TensorView{nullptr, tape.values()[at(v)].dtype, tape.values()[at(v)].shape});
  for (int v : node.out) views.out.push_back({nullptr, tape.values()[at(v)].dtype, tape.values()[at(v)].shape});
  return views;
}

Plan plan_lifetimes(const Tape& tape, const KernelTable& kernels) {
  Plan plan;
  const std::vector<bool> live = live_nodes(tape);
  check_graph(tape, live);
  for (std::size_t i = 0; i < tape.nodes().size(); ++i) {
    if (!live[i]) continue;
    const Node& node = tape.nodes()[i];
    const NodeViews views = views_of(tape, node);
    plan.nodes.push_back({.node = static_cast<int>(i), .cost = node.op->cost({views.in, views.out, node.attributes, kernels, {}})});
  }
  Lifetimes(tape, plan).collect();
  const LiveBytes peak = max_live(lifetimes_of(plan));
  plan.lower_bound_bytes = peak.bytes;
  plan.peak_tick = peak.tick;
  for (const Value& v : tape.values())
    if (v.persistent() && v.alias < 0) plan.persistent_bytes += align_up(v.bytes());
  return plan;
}

Plan make_plan(const Tape& tape, const KernelTable& kernels) {
  Plan plan = plan_lifetimes(tape, kernels);
  const std::vector<Lifetime> lifetimes = lifetimes_of(plan);
  const Placement placement = place(lifetimes);
  CHECK(!find_overlap(lifetimes, placement.offsets));
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) plan.buffers[i].offset = placement.offsets[i];
  plan.arena_bytes = placement.arena_bytes;
  return plan;
}

}  // namespace relume
