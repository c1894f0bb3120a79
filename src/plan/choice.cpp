#include "relume/plan/choice.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

constexpr std::int64_t kNone = kUnlimited * 2;

/// Bytes left for layers and head.
std::int64_t room(const ChoiceProblem& p, std::int64_t arena) { return arena < p.elsewhere_bytes ? -1 : arena - p.fixed_bytes; }

/// The path to a partial choice: layers before some layer have taken options.
struct Label {
  std::int64_t bytes = kNone;
  double cost = 0;
  int parent = -1, option = -1;
};

bool lighter(const Label& a, const Label& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost; }
bool cheaper(const Label& a, const Label& b) { return a.cost != b.cost ? a.cost < b.cost : a.bytes < b.bytes; }

/// Options worth a look: no other is as light, as low and as cheap.
std::vector<int> undominated(const std::vector<LayerCost>& options, const std::vector<double>& cost, std::vector<int> indices) {
  const auto dominates = [&](int a, int b) {
    const LayerCost &x = options[at(a)], &y = options[at(b)];
    const bool no_worse = x.saved_bytes <= y.saved_bytes && x.peak_bytes <= y.peak_bytes && cost[at(a)] <= cost[at(b)];
    const bool equal = x.saved_bytes == y.saved_bytes && x.peak_bytes == y.peak_bytes && cost[at(a)] == cost[at(b)];
    return no_worse && (!equal || a < b);
  };
  std::vector<int> kept;
  for (int b : indices)
    if (std::none_of(indices.begin(), indices.end(), [&](int a) { return a != b && dominates(a, b); })) kept.push_back(b);
  return kept;
}

/// Minimises seconds + lambda * variance.
std::optional<Choice> cheapest(const ChoiceProblem& p, std::int64_t arena, int buckets, double lambda) {
  const std::int64_t limit = room(p, arena);
  const std::size_t layers = p.allowed.size();
  if (limit < 0) return std::nullopt;
  std::vector<double> cost;
  for (const LayerCost& o : p.options) cost.push_back(o.seconds + lambda * o.variance);
  std::vector<std::int64_t> lightest_rest(layers + 1, 0);
  for (std::size_t l = layers; l-- > 0;) {
    std::int64_t lightest = kNone;
    for (int k : p.allowed[l]) lightest = std::min(lightest, p.options[at(k)].saved_bytes);
    lightest_rest[l] = lightest_rest[l + 1] + lightest;
  }
  std::int64_t widest = 1;  // of all prefixes: buckets cover what can occur, not the whole limit
  for (const auto& allowed : p.allowed) {
    std::int64_t heaviest = 0;
    for (int k : allowed) heaviest = std::max(heaviest, p.options[at(k)].saved_bytes);
    widest += heaviest;
  }
  const double per_bucket = static_cast<double>(std::min(widest, limit + 1)) / std::max(1, buckets);

  std::vector<std::vector<Label>> front(layers + 1);
  front[0] = {{.bytes = 0}};
  std::vector<Label> found;
  std::vector<std::pair<std::size_t, Label>> best(at(buckets) + 1, {layers, {}});  // the layer that filled the bucket, and its label
  for (std::size_t l = 0; l < layers; ++l) {
    found.clear();
    Label lightest;
    const std::vector<int> options = undominated(p.options, cost, p.allowed[l]);
    for (std::size_t i = 0; i < front[l].size(); ++i)
      for (int k : options) {
        const LayerCost& o = p.options[at(k)];
        const Label from = front[l][i];
        const Label label{from.bytes + o.saved_bytes, from.cost + cost[at(k)], static_cast<int>(i), k};
        if (from.bytes + o.peak_bytes > limit || label.bytes + lightest_rest[l + 1] + p.head_bytes > limit) continue;
        if (buckets == 0) {
          found.push_back(label);
          continue;
        }
        if (lighter(label, lightest)) lightest = label;  // without it a limit at the very minimum would find nothing
        auto& [filled_by, kept] = best[std::min(at(buckets), static_cast<std::size_t>(static_cast<double>(label.bytes) / per_bucket))];
        if (std::exchange(filled_by, l) != l || cheaper(label, kept)) kept = label;
      }
    if (buckets != 0) {
      for (const auto& [filled_by, label] : best)
        if (filled_by == l) found.push_back(label);
      if (lightest.option >= 0) found.push_back(lightest);
    }
    std::sort(found.begin(), found.end(), lighter);
    double least = std::numeric_limits<double>::infinity();
    for (const Label& label : found)
      if (label.cost < least) {  // more bytes must buy time
        least = label.cost;
        front[l + 1].push_back(label);
      }
    if (front[l + 1].empty()) return std::nullopt;
  }
  Choice c{.option = std::vector<int>(layers)};
  const Label* label = &*std::min_element(front[layers].begin(), front[layers].end(), cheaper);
  for (std::size_t l = layers; l-- > 0;) {
    c.option[l] = label->option;
    label = &front[l][at(label->parent)];
  }
  return c;
}

/// Among neighbouring layers with the same options, those that need most above what they save go first: no prefix gets
/// heavier where it counts (max(W_a, S_a + W_b) <= max(W_b, S_b + W_a) whenever W_a - S_a >= W_b - S_b).
void make_contiguous(const ChoiceProblem& p, std::vector<int>& option) {
  const auto key = [&](int k) {
    const LayerCost& o = p.options[at(k)];
    return std::tuple(o.saved_bytes - o.peak_bytes, o.saved_bytes, k);
  };
  for (std::size_t begin = 0; begin < option.size();) {
    std::size_t end = begin + 1;
    while (end < option.size() && p.allowed[end] == p.allowed[begin]) ++end;
    std::sort(option.begin() + static_cast<std::ptrdiff_t>(begin), option.begin() + static_cast<std::ptrdiff_t>(end),
              [&](int a, int b) { return key(a) < key(b); });
    begin = end;
  }
}

Choice finished(const ChoiceProblem& p, Choice c) {
  make_contiguous(p, c.option);
  for (int k : c.option) {
    c.seconds += p.options[at(k)].seconds;
    c.variance += p.options[at(k)].variance;
  }
  c.arena_bytes = arena_bytes(p, c.option);
  return c;
}

/// Uses what a multiplier leaves of the bound on variance: single layers take faster options while both limits hold.
Choice improved(const ChoiceProblem& p, const Choice& from, const ChoiceLimits& limits) {
  std::vector<int> option = from.option;
  double variance = from.variance;
  for (bool better = true; better;) {
    better = false;
    for (std::size_t l = 0; l < option.size(); ++l)
      for (int k : p.allowed[l]) {
        const LayerCost &now = p.options[at(option[l])], &then = p.options[at(k)];
        if (then.seconds >= now.seconds || variance - now.variance + then.variance > limits.variance) continue;
        const int before = std::exchange(option[l], k);
        if (arena_bytes(p, option) > limits.arena_bytes) {
          option[l] = before;
          continue;
        }
        variance += then.variance - now.variance;
        better = true;
      }
  }
  return finished(p, {.option = std::move(option)});
}

}  // namespace

std::int64_t arena_bytes(const ChoiceProblem& p, const std::vector<int>& option) {
  std::int64_t prefix = p.fixed_bytes, peak = p.elsewhere_bytes;
  for (int k : option) {
    peak = std::max(peak, prefix + p.options[at(k)].peak_bytes);
    prefix += p.options[at(k)].saved_bytes;
  }
  return std::max(peak, prefix + p.head_bytes);
}

std::int64_t minimum_arena(const ChoiceProblem& p) {
  // Within a given arena the lightest option that fits, layer by layer, gives the smallest prefix everywhere.
  const auto fits = [&](std::int64_t arena) {
    const std::int64_t limit = room(p, arena);
    std::int64_t prefix = 0;
    for (const auto& allowed : p.allowed) {
      std::int64_t lightest = kNone;
      for (int k : allowed)
        if (prefix + p.options[at(k)].peak_bytes <= limit) lightest = std::min(lightest, p.options[at(k)].saved_bytes);
      if (lightest == kNone) return false;
      prefix += lightest;
    }
    return prefix + p.head_bytes <= limit;
  };
  std::int64_t low = 0, high = kUnlimited;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    fits(middle) ? high = middle : low = middle + 1;
  }
  return low;
}

std::optional<Choice> choose(const ChoiceProblem& p, const ChoiceLimits& limits) {
  const auto best = [&](double lambda) -> std::optional<Choice> {
    std::optional<Choice> c = cheapest(p, limits.arena_bytes, limits.buckets, lambda);
    return c ? std::optional(finished(p, std::move(*c))) : std::nullopt;
  };
  std::optional<Choice> fastest = best(0);
  if (!fastest || fastest->variance <= limits.variance) return fastest;
  // seconds(lambda) rises and variance(lambda) falls: double until exact enough, then bisect.
  constexpr int kHalvings = 24;
  double low = 0, high = std::max(fastest->seconds, 1e-9);
  std::optional<Choice> within = best(high);
  for (int i = 0; i < 60 && within->variance > limits.variance; ++i) within = best(high *= 4);
  if (within->variance > limits.variance) return std::nullopt;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = low > 0 ? std::sqrt(low * high) : high / 64;
    std::optional<Choice> c = best(middle);
    if (c->variance <= limits.variance) {
      high = middle;
      if (c->seconds < within->seconds) within = std::move(c);
    } else {
      low = middle;
    }
  }
  return improved(p, *within, limits);
}

}  // namespace relume
