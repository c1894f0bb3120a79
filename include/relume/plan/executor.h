// Memory for one or more planned tapes, and the executor that replays them at fixed addresses.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "relume/backend/backend.h"
#include "relume/plan/plan.h"

namespace relume {

/// Two allocations for the whole run: persistent values, found by name, and the arena. Several tapes (training, evaluation)
/// share both; a name must have the same size on all of them.
class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}

  /// Adds the persistent values of a tape, and room for its arena. Call before allocate().
  void add(const Tape& tape, const Plan& plan);
  /// Throws kRuntime with bytes and remedy if the device has not enough.
  void allocate();

  [[nodiscard]] Backend& backend() const { return backend_; }
  [[nodiscard]] bool has(const std::string& name) const { return offset_.count(name) > 0; }
  /// Address of a persistent value, by the name it has on its tape.
  [[nodiscard]] std::byte* persistent(const std::string& name) const;
  [[nodiscard]] std::byte* arena() const { return arena_.data(); }
  [[nodiscard]] std::int64_t persistent_bytes() const { return persistent_bytes_; }
  [[nodiscard]] std::int64_t arena_bytes() const { return arena_bytes_; }

  template <class T>
  void write(const std::string& name, const T* data, std::int64_t count) {
    backend_.copy_to_device(persistent(name), data, count * static_cast<std::int64_t>(sizeof(T)));
  }
  template <class T>
  void read(const std::string& name, T* data, std::int64_t count) const {
    backend_.copy_to_host(data, persistent(name), count * static_cast<std::int64_t>(sizeof(T)));
  }

 private:
  Backend& backend_;
  std::map<std::string, std::int64_t> offset_;
  std::map<std::string, std::int64_t> bytes_;
  std::int64_t persistent_bytes_ = 0, arena_bytes_ = 0;
  DeviceBuffer persistent_, arena_;
};

/// Replays a planned tape, which must outlive it. Everything is resolved when it is made; run() allocates nothing.
class Executor {
 public:
  /// `memory` was allocated with this tape and plan added. With `poison` (host memory only; tests) buffers are filled with
  /// NaN before their first and after their last use, so that a read outside a lifetime shows.
  Executor(const Tape& tape, const Plan& plan, const Memory& memory, bool poison = false);

  /// Forward and backward of one micro-batch.
  void run_micro_batch() { run(micro_batch_); }
  /// The nodes after Tape::begin_update: once a step.
  void run_update() { run(update_); }

  /// From now on adds the seconds each node takes to `seconds`, one entry a node of the plan; the device is waited for after
  /// every node, so a step takes longer. Null stops.
  void time_nodes(std::vector<double>* seconds) { node_seconds_ = seconds; }

  /// Called after every node with its index in the plan and its operands, the device being waited for: for reading values that
  /// live only inside a step. Null stops.
  using Watcher = std::function<void(std::size_t node, const std::vector<TensorView>& in, const std::vector<TensorView>& out)>;
  void watch(Watcher watcher) { watcher_ = std::move(watcher); }

  /// Highest arena byte that some node was given, plus one.
  [[nodiscard]] std::int64_t touched_bytes() const { return touched_bytes_; }

 private:
  struct Launch {
    const OpDef* op;
    const std::any* attributes;
    std::vector<TensorView> in, out;
    void* workspace;
    std::string range;  ///< "layer 3 ffn, backward": neighbours with the same form one range in a profile
    std::vector<std::pair<std::byte*, std::int64_t>> poison_before, poison_after;
  };
  /// The nodes of a micro-batch, or those of the update, and their recording.
  struct Part {
    std::size_t begin = 0, end = 0;
    int runs = 0;
    std::unique_ptr<Backend::Recorded> recorded = {};
  };
  void run(Part& part);
  void launch(std::size_t begin, std::size_t end);

  Backend& backend_;
  std::vector<Launch> launches_;
  Part micro_batch_, update_;
  bool poison_ = false;
  std::int64_t touched_bytes_ = 0;
  std::vector<double>* node_seconds_ = nullptr;
  Watcher watcher_;
};

}  // namespace relume
