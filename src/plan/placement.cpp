#include "relume/plan/placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <random>
#include <tuple>

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

int tick_count(std::span<const Lifetime> lifetimes) {
  int ticks = 1;
  for (const Lifetime& l : lifetimes) ticks = std::max(ticks, l.end);
  return ticks;
}

/// Segment tree over ticks: which buffers are alive in a range. A query may report an id more than once.
class LifetimeIndex {
 public:
  explicit LifetimeIndex(int ticks) {
    while (leaves_ < ticks) leaves_ *= 2;
    ids_.resize(at(2 * leaves_));
    occupied_.assign(at(2 * leaves_), false);
  }

  void insert(int id, const Lifetime& l) {
    for (int left = l.begin + leaves_, right = l.end + leaves_; left < right; left /= 2, right /= 2) {
      if (left & 1) add(left++, id);
      if (right & 1) add(--right, id);
    }
  }

  template <class Visit>
  void for_each_overlapping(const Lifetime& l, Visit&& visit) const {
    walk(1, 0, leaves_, l, visit);
  }

 private:
  void add(int node, int id) {
    ids_[at(node)].push_back(id);
    for (; node > 0 && !occupied_[at(node)]; node /= 2) occupied_[at(node)] = true;
  }

  template <class Visit>
  void walk(int node, int low, int high, const Lifetime& l, Visit&& visit) const {
    if (high <= l.begin || low >= l.end || !occupied_[at(node)]) return;
    for (int id : ids_[at(node)]) visit(id);
    if (high - low == 1) return;
    const int middle = (low + high) / 2;
    walk(2 * node, low, middle, l, visit);
    walk(2 * node + 1, middle, high, l, visit);
  }

  int leaves_ = 1;
  std::vector<std::vector<int>> ids_;
  std::vector<bool> occupied_;  // some id at or below the tree node
};

std::vector<std::int64_t> live_by_tick(std::span<const Lifetime> lifetimes) {
  std::vector<std::int64_t> live(at(tick_count(lifetimes)) + 1, 0);
  for (const Lifetime& l : lifetimes) {
    live[at(l.begin)] += align_up(l.bytes);
    live[at(l.end)] -= align_up(l.bytes);
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  return live;
}

/// What comes first among buffers with the same lowest offset.
enum class Key { kArea, kBusiestTick, kLifetime };

std::vector<int> ranks(std::span<const Lifetime> lifetimes, Key key) {
  const int n = static_cast<int>(lifetimes.size());
  const std::vector<std::int64_t> live = live_by_tick(lifetimes);
  std::vector<std::pair<double, double>> weight(at(n));
  for (int i = 0; i < n; ++i) {
    const Lifetime& l = lifetimes[at(i)];
    const double life = l.end - l.begin, area = life * static_cast<double>(l.bytes);
    if (key == Key::kArea) weight[at(i)] = {area, life};
    if (key == Key::kLifetime) weight[at(i)] = {life, area};
    if (key == Key::kBusiestTick)
      weight[at(i)] = {static_cast<double>(*std::max_element(live.begin() + l.begin, live.begin() + l.end)), area};
  }
  std::vector<int> order(at(n)), rank(at(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return weight[at(a)] != weight[at(b)] ? weight[at(a)] > weight[at(b)] : lifetimes[at(a)].begin < lifetimes[at(b)].begin;
  });
  for (int i = 0; i < n; ++i) rank[at(order[at(i)])] = i;
  return rank;
}

Placement place_bottom_up(std::span<const Lifetime> lifetimes, Key key) {
  const int n = static_cast<int>(lifetimes.size());
  LifetimeIndex index(tick_count(lifetimes));
  for (int i = 0; i < n; ++i) index.insert(i, lifetimes[at(i)]);
  const std::vector<int> rank = ranks(lifetimes, key);
  std::vector<std::int64_t> lowest(at(n), 0);
  std::vector<bool> placed(at(n), false);
  using Entry = std::tuple<std::int64_t, int, int>;  // lowest feasible offset, rank, id
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (int i = 0; i < n; ++i) queue.push({0, rank[at(i)], i});
  Placement result{std::vector<std::int64_t>(at(n), 0), 0};
  while (!queue.empty()) {
    const auto [offset, unused, i] = queue.top();
    queue.pop();
    if (placed[at(i)] || offset != lowest[at(i)]) continue;  // an older entry of the same buffer
    placed[at(i)] = true;
    result.offsets[at(i)] = offset;
    const std::int64_t top = offset + align_up(lifetimes[at(i)].bytes);
    result.arena_bytes = std::max(result.arena_bytes, top);
    index.for_each_overlapping(lifetimes[at(i)], [&](int j) {
      if (placed[at(j)] || lowest[at(j)] >= top) return;
      lowest[at(j)] = top;
      queue.push({top, rank[at(j)], j});
    });
  }
  return result;
}

/// In the given order, each buffer into the lowest gap that fits; gives up once the arena reaches `limit`.
Placement place_lowest_fit(std::span<const Lifetime> lifetimes, std::span<const int> order, std::int64_t limit) {
  LifetimeIndex index(tick_count(lifetimes));
  Placement result{std::vector<std::int64_t>(lifetimes.size(), 0), 0};
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (int i : order) {
    taken.clear();
    index.for_each_overlapping(lifetimes[at(i)], [&](int j) {
      taken.push_back({result.offsets[at(j)], result.offsets[at(j)] + align_up(lifetimes[at(j)].bytes)});
    });
    std::sort(taken.begin(), taken.end());
    const std::int64_t size = align_up(lifetimes[at(i)].bytes);
    std::int64_t offset = 0;
    for (const auto& [low, high] : taken) {
      if (low - offset >= size) break;
      offset = std::max(offset, high);
    }
    result.offsets[at(i)] = offset;
    result.arena_bytes = std::max(result.arena_bytes, offset + size);
    if (result.arena_bytes >= limit) return result;
    index.insert(i, lifetimes[at(i)]);
  }
  return result;
}

}  // namespace

LiveBytes max_live(std::span<const Lifetime> lifetimes) {
  LiveBytes peak;
  const std::vector<std::int64_t> live = live_by_tick(lifetimes);
  for (std::size_t t = 0; t < live.size(); ++t)
    if (live[t] > peak.bytes) peak = {live[t], static_cast<int>(t)};
  return peak;
}

Placement place(std::span<const Lifetime> lifetimes) {
  constexpr int kRestarts = 400;
  const std::int64_t lower_bound = max_live(lifetimes).bytes;
  Placement best;
  for (Key key : {Key::kArea, Key::kBusiestTick, Key::kLifetime}) {
    Placement trial = place_bottom_up(lifetimes, key);
    if (best.offsets.empty() || trial.arena_bytes < best.arena_bytes) best = std::move(trial);
    if (best.arena_bytes == lower_bound) return best;
  }
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  std::vector<double> weight(lifetimes.size());
  std::vector<int> order(lifetimes.size());
  for (int restart = 0; restart < kRestarts && best.arena_bytes > lower_bound; ++restart) {
    const double spread = 1.5 * (0.3 + 0.7 * (restart % 4) / 3.0);
    for (std::size_t i = 0; i < lifetimes.size(); ++i)
      weight[i] = std::log(static_cast<double>(lifetimes[i].bytes) + 1.0) + spread * uniform(random);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[at(a)] > weight[at(b)]; });
    Placement trial = place_lowest_fit(lifetimes, order, best.arena_bytes);
    if (trial.arena_bytes < best.arena_bytes) best = std::move(trial);
  }
  return best;
}

std::optional<std::pair<int, int>> find_overlap(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> offsets) {
  std::vector<int> order(lifetimes.size()), live;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return lifetimes[at(a)].begin < lifetimes[at(b)].begin; });
  for (int i : order) {
    std::erase_if(live, [&](int j) { return lifetimes[at(j)].end <= lifetimes[at(i)].begin; });
    for (int j : live)
      if (offsets[at(i)] < offsets[at(j)] + lifetimes[at(j)].bytes && offsets[at(j)] < offsets[at(i)] + lifetimes[at(i)].bytes)
        return std::pair{i, j};
    live.push_back(i);
  }
  return std::nullopt;
}

}  // namespace relume
