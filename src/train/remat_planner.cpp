#include "relume/train/remat_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/plan/layer_costs.h"
#include "relume/train/program.h"

namespace relume {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// What auto may do with a block: the named exact policies, with `fine` every set of kept values, and what is allowed.
std::vector<BlockPolicy> block_options(const Config& c, const std::string& kind) {
  std::vector<BlockPolicy> options{{.policy = "store"}, {.policy = "selective"}, {.policy = "exact"}};
  const std::vector<std::string>& names = block_value_names(kind);
  if (c.memory.fine)
    for (unsigned set = 1; set + 1 < 1u << names.size(); ++set) {
      BlockPolicy p{.policy = "exact"};
      for (std::size_t i = 0; i < names.size(); ++i)
        if (set >> i & 1) p.keep.push_back(names[i]);
      options.push_back(p);
    }
  const double components = static_cast<double>(kind == "attention" ? c.model.kv_heads() : c.model.intermediate_size);
  for (const std::string& policy : c.memory.allow)
    for (double fraction : {2.0 / 3.0, 0.5}) {
      const BlockPolicy p{.policy = policy, .fraction = fraction};
      const double k = std::round(fraction * components);
      if (k >= 1 && (policy != "sketch" || p.min_probability * components <= k)) options.push_back(p);
    }
  return options;
}

std::vector<LayerPolicy> layer_options(const Config& c, const LayerPolicy& written) {
  if (!written.automatic()) return {written};
  const auto of = [&](const BlockPolicy& p, const std::string& kind) { return p.automatic() ? block_options(c, kind) : std::vector{p}; };
  std::vector<LayerPolicy> options;
  for (const BlockPolicy& attention : of(written.attention, "attention"))
    for (const BlockPolicy& ffn : of(written.ffn, "ffn")) options.push_back({attention, ffn});
  if (!written.attention.automatic() || !written.ffn.automatic()) return options;
  for (std::size_t i = 0, count = options.size(); i < count; ++i) {  // the same from the layer's input alone
    LayerPolicy whole = options[i];
    whole.keep_mid = false;
    if (whole.attention.policy == "exact" && whole.ffn.policy == "exact") options.push_back(whole);
  }
  return options;
}

double variance_of(const LayerPolicy& p) { return expected_relative_variance(p.attention) + expected_relative_variance(p.ffn); }

/// Halves of the micro-batch's rows down to the smallest chunk.
std::vector<std::int64_t> chunk_sizes(std::int64_t rows) {
  std::vector<std::int64_t> sizes{rows};
  while (sizes.back() > kSmallestHeadChunk) sizes.push_back(std::max(kSmallestHeadChunk, (sizes.back() + 1) / 2));
  return sizes;
}

}  // namespace

RematPlanner::RematPlanner(const Config& c, const KernelTable& kernels, const DeviceRates& rates)
    : micro_batches_(c.micro_batches()), variance_limit_(c.memory.max_variance * static_cast<double>(2 * c.model.num_hidden_layers)) {
  collect_options(c);
  measure_layers(c, kernels, rates);
  measure_heads(c, kernels, rates);
}

int RematPlanner::option_index(const LayerPolicy& policy, bool chosen) {
  const double variance = chosen ? variance_of(policy) : 0;
  for (std::size_t i = 0; i < options_.size(); ++i)
    if (options_[i].policy == policy && options_[i].cost.variance == variance) return static_cast<int>(i);
  options_.push_back({policy, {.variance = variance}});
  return static_cast<int>(options_.size()) - 1;
}

void RematPlanner::collect_options(const Config& c) {
  store_ = option_index({}, true);
  for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) {
    const LayerPolicy& written = c.remat.layer(l);
    std::vector<int> indices;
    for (const LayerPolicy& p : layer_options(c, written)) indices.push_back(option_index(p, written.automatic()));
    problem_.allowed.push_back(std::move(indices));
  }
}

void RematPlanner::measure_layers(const Config& c, const KernelTable& kernels, const DeviceRates& rates) {
  Config probe = c;
  probe.model.num_hidden_layers = std::ssize(options_);
  probe.remat = {};
  for (std::int64_t i = 0; i < std::ssize(options_); ++i) probe.remat.ranges.push_back({i, i, options_[at(i)].policy});
  const ParameterLayout layout = make_parameter_layout(probe.model);
  const auto tape = record_training(probe, layout, std::min(kSmallestHeadChunk, c.micro_batch_tokens()));
  const StepCosts costs = step_costs(*tape, plan_lifetimes(*tape, kernels), rates);
  for (std::size_t i = 0; i < options_.size(); ++i) {
    const double variance = options_[i].cost.variance;
    options_[i].cost = costs.layers[i];
    options_[i].cost.variance = variance;
    problem_.options.push_back(options_[i].cost);
  }
  problem_.fixed_bytes = costs.fixed_bytes;
}

void RematPlanner::measure_heads(const Config& c, const KernelTable& kernels, const DeviceRates& rates) {
  const ParameterLayout layout = make_parameter_layout(c.model);
  {
    Tape tape;
    record_update(tape, c, layout);
    const Plan plan = plan_lifetimes(tape, kernels);
    persistent_bytes_ = plan.persistent_bytes;
    update_bytes_ = plan.lower_bound_bytes;
    for (const PlannedNode& n : plan.nodes) update_s_ += seconds(n.cost, rates);
  }
  Config one = c;
  one.model.num_hidden_layers = 1;
  one.remat = {};
  const ParameterLayout small = make_parameter_layout(one.model);
  for (std::int64_t rows : chunk_sizes(c.micro_batch_tokens())) {
    const auto training = record_training(one, small, rows), evaluation = record_evaluation(one, small, rows);
    const StepCosts costs = step_costs(*training, plan_lifetimes(*training, kernels), rates);
    heads_.push_back({rows, costs.head_bytes, std::max({costs.elsewhere_bytes, update_bytes_, plan_lifetimes(*evaluation, kernels).lower_bound_bytes}),
                      costs.head_s + costs.elsewhere_s});
  }
  const Head& smallest = *std::min_element(heads_.begin(), heads_.end(), [](const Head& a, const Head& b) { return std::max(a.bytes, a.elsewhere_bytes) < std::max(b.bytes, b.elsewhere_bytes); });
  problem_.head_bytes = smallest.bytes;
  problem_.elsewhere_bytes = smallest.elsewhere_bytes;
}

double RematPlanner::step_s(double layers_s, const Head& head) const {
  return static_cast<double>(micro_batches_) * (layers_s + head.seconds) + update_s_;
}

std::optional<RematPlanner::Result> RematPlanner::choose(const ChoiceProblem& problem, std::int64_t budget_bytes) const {
  ChoiceLimits limits{.arena_bytes = budget_bytes - persistent_bytes_};
  if (variance_limit_ > 0) limits.variance = variance_limit_;
  if (limits.arena_bytes < 0) return std::nullopt;
  const std::optional<Choice> choice = relume::choose(problem, limits);
  if (!choice) return std::nullopt;
  Result r{.option = choice->option, .variance = choice->variance / static_cast<double>(2 * problem.allowed.size())};
  for (const Head& head : heads_) {  // the largest chunks that cost next to nothing in memory
    ChoiceProblem with = problem;
    with.head_bytes = head.bytes;
    with.elsewhere_bytes = head.elsewhere_bytes;
    const std::int64_t arena = relume::arena_bytes(with, choice->option);
    const double least = static_cast<double>(persistent_bytes_ + choice->arena_bytes);
    if (arena > limits.arena_bytes || static_cast<double>(persistent_bytes_ + arena) > (1 + kHeadShare) * least) continue;
    r.head_chunk_rows = head.chunk_rows;
    r.peak_bytes = persistent_bytes_ + arena;
    r.step_s = step_s(choice->seconds, head);
    break;
  }
  const LayerPolicy* previous = nullptr;
  for (std::int64_t l = 0; l < std::ssize(r.option); ++l) {
    const LayerPolicy& p = options_[at(r.option[at(l)])].policy;
    if (previous && p == *previous)
      r.remat.ranges.back().last = l;
    else
      r.remat.ranges.push_back({l, l, p});
    previous = &p;
  }
  return r;
}

std::optional<RematPlanner::Result> RematPlanner::choose(std::int64_t budget_bytes) const { return choose(problem_, budget_bytes); }

std::optional<RematPlanner::Result> RematPlanner::choose(std::int64_t budget_bytes, std::int64_t layer, int option) const {
  ChoiceProblem pinned = problem_;
  pinned.allowed[at(layer)] = {option};
  return choose(pinned, budget_bytes);
}

std::int64_t RematPlanner::minimum_bytes() const { return persistent_bytes_ + minimum_arena(problem_); }

std::int64_t RematPlanner::enough_bytes() const { return choose(kUnlimited)->peak_bytes; }

double RematPlanner::store_step_s() const { return step_s(static_cast<double>(problem_.allowed.size()) * options_[at(store_)].cost.seconds, heads_.back()); }

std::int64_t RematPlanner::store_arena_bytes() const { return relume::arena_bytes(problem_, std::vector<int>(problem_.allowed.size(), store_)); }

std::string policy_name(const BlockPolicy& p) {
  std::string text = p.policy;
  if (p.approximate()) text += fmt::format(" {:.2f}", p.fraction);
  for (const std::string& name : p.keep) text += " +" + name;
  return text;
}

std::string policy_name(const LayerPolicy& p) {
  if (!p.keep_mid && p.attention.keep.empty() && p.ffn.keep.empty()) return "whole layer exact";
  return fmt::format("attention {}, ffn {}{}", policy_name(p.attention), policy_name(p.ffn), p.keep_mid ? "" : ", without mid");
}

namespace {

/// Changes of the config with which a plan would fit, as --set takes them.
std::vector<std::string> what_fits(const Config& c, const KernelTable& kernels, const DeviceRates& rates) {
  std::vector<std::string> found;
  const auto try_config = [&](const Config& changed, const std::string& text) {
    const std::int64_t needs = RematPlanner(changed, kernels, rates).minimum_bytes();
    if (needs <= c.memory.budget) found.push_back(fmt::format("{} (needs {})", text, format_bytes(needs)));
    return needs <= c.memory.budget;
  };
  const auto whole = [&](const Config& changed) { return changed.tokens_per_step() == c.tokens_per_step() || c.batch.tokens_per_step == 0; };
  Config changed = c;
  for (changed.batch.micro_batch_size = c.batch.micro_batch_size - 1; changed.batch.micro_batch_size > 0; --changed.batch.micro_batch_size) {
    const bool try_it = changed.batch.micro_batch_size <= 16 || (changed.batch.micro_batch_size & (changed.batch.micro_batch_size - 1)) == 0;
    if (try_it && whole(changed) && try_config(changed, fmt::format("batch.micro_batch_size={}", changed.batch.micro_batch_size))) break;
  }
  changed = c;
  for (std::int64_t length = c.data.sequence_length / 2; length >= 16; length /= 2) {
    changed.data.sequence_length = length;
    if (whole(changed) && try_config(changed, fmt::format("data.sequence_length={}", length))) break;
  }
  if (c.memory.allow.empty()) {
    changed = c;
    changed.memory.allow = {"greedy"};
    try_config(changed, "memory.allow='[\"greedy\"]', approximate gradients");
  }
  bool pinned = false;
  for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) pinned |= !c.remat.layer(l).automatic();
  if (pinned) {
    changed = c;
    changed.remat = {};
    changed.remat.defaults = {{.policy = "auto"}, {.policy = "auto"}};
    try_config(changed, "remat='{\"default\": \"auto\"}'");
  }
  return found;
}

}  // namespace

RematPlanner::Result resolve_remat(const Config& c, const KernelTable& kernels, const DeviceRates& rates) {
  const RematPlanner planner(c, kernels, rates);
  if (auto result = planner.choose(c.memory.budget)) return *result;
  const std::int64_t needs = planner.minimum_bytes();
  if (needs <= c.memory.budget)
    throw Error(ErrorCode::kBudget, fmt::format("memory.max_variance: no choice within {} has an error of at most {}; hint: a larger budget, or a larger bound",
                                                exact_bytes(c.memory.budget), c.memory.max_variance));
  std::string message = fmt::format("memory.budget: {} is impossible: this model and batch need at least {} ({}: {} of weights, gradients, optimizer and inputs, {} of activations)",
                                    exact_bytes(c.memory.budget), format_bytes(needs), exact_bytes(needs), format_bytes(planner.persistent_bytes()),
                                    format_bytes(needs - planner.persistent_bytes()));
  const std::vector<std::string> fits = what_fits(c, kernels, rates);
  for (std::size_t i = 0; i < fits.size(); ++i) message += (i == 0 ? "\n  fits with --set " : "\n         or --set ") + fits[i];
  if (fits.empty()) message += "\n  no smaller micro-batch or sequence fits either; hint: a smaller model";
  throw Error(ErrorCode::kBudget, message);
}

}  // namespace relume
