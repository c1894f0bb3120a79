// From a tape to addresses: which nodes run, how long every value lives, where it is. Known to the byte before anything is
// allocated.
#pragma once
#include <string>
#include <vector>

#include "relume/plan/placement.h"
#include "relume/tape/tape.h"

namespace relume {

/// What a planned buffer is there for; the first value in it decides.
enum class Category : std::uint8_t {
  kSaved,             ///< forward to backward
  kForwardTemporary,  ///< between two forward nodes
  kRecomputed,        ///< computed again in backward, and what reduced blocks compute
  kGradient,          ///< made and used up in backward
  kHead,              ///< final norm, logits chunk, their gradients
  kWorkspace,         ///< inside one kernel
};
constexpr int kCategoryCount = 6;
[[nodiscard]] std::string_view to_string(Category category);

struct Buffer {
  Lifetime lifetime;  ///< ticks: indices into Plan::nodes
  std::int64_t offset = 0;
  Category category = Category::kSaved;
  int value = -1;  ///< the value it is for: the last one the forward puts there, else the first; -1 for workspace
  int node = -1;   ///< tape node that needs the workspace
};

struct PlannedNode {
  int node = -1;  ///< on the tape
  Cost cost;
  int workspace_buffer = -1;
};

struct Plan {
  std::vector<PlannedNode> nodes;  ///< the live ones, in the order they run
  std::vector<Buffer> buffers;
  std::vector<int> buffer_of;      ///< value -> buffer, -1 for persistent and dead values
  std::int64_t persistent_bytes = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t lower_bound_bytes = 0;  ///< most bytes live at once: no placement can do with less
  int peak_tick = 0;

  [[nodiscard]] std::int64_t peak_bytes() const { return persistent_bytes + arena_bytes; }
  /// Bytes live in each tick.
  [[nodiscard]] std::vector<std::int64_t> live_bytes() const;
};

/// Plans a tape for a backend's kernels (which state their workspace). Throws kRuntime if the graph is inconsistent: a value
/// read before it is made, or after its storage was overwritten.
[[nodiscard]] Plan make_plan(const Tape& tape, const KernelTable& kernels);
/// The same without offsets: arena_bytes stays 0. Enough to know what any placement needs.
[[nodiscard]] Plan plan_lifetimes(const Tape& tape, const KernelTable& kernels);

/// The views and attributes of a node without contents, for costing. `views` is scratch that must outlive the result.
struct NodeViews {
  std::vector<TensorView> in, out;
};
[[nodiscard]] NodeViews views_of(const Tape& tape, const Node& node);

}  // namespace relume
