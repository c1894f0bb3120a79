// What tokenizers remember between pieces of text, and how threads share it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace relume {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

/// Ids of pieces that came before. Text repeats, and merging is what costs.
class PieceMemory {
 public:
  /// Appends the ids of the piece; those of a new one come from `encode(ids)`, which appends them.
  template <class Encode>
  void append(std::string_view piece, std::vector<std::int32_t>& ids, const Encode& encode) {
    if (const auto known = known_.find(piece); known != known_.end()) {
      ids.insert(ids.end(), known->second.begin(), known->second.end());
      return;
    }
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    encode(ids);
    if (piece.size() > kLongest) return;
    if (known_.size() >= kMost) known_.clear();
    known_.emplace(piece, std::vector<std::int32_t>(ids.begin() + before, ids.end()));
  }

 private:
  static constexpr std::size_t kMost = 1 << 17, kLongest = 64;  // pieces; bytes of a piece
  StringMap<std::vector<std::int32_t>> known_;
};

/// Objects that one thread uses at a time and that live on for the next.
template <class T>
class Pool {
 public:
  /// Calls use(T&) with an object nobody else has; make() gives a std::unique_ptr<T> where all are taken.
  template <class Make, class Use>
  void with(const Make& make, const Use& use) {
    std::unique_ptr<T> object;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        object = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!object) object = make();
    use(*object);
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(object));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace relume
