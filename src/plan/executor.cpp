#include "relume/plan/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "relume/base/check.h"
#include "relume/base/error.h"
#include "relume/base/units.h"

namespace relume {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::string range_of(const Tape& tape, const Node& node) {
  const std::string phase = node.recompute ? "recompute" : node.phase == Phase::kForward ? "forward" : node.phase == Phase::kBackward ? "backward" : "update";
  if (node.block < 0) return phase;
  const BlockSpec& spec = tape.blocks()[at(node.block)].spec;
  return fmt::format("layer {} {}, {}{}", spec.layer, spec.kind, spec.select ? "reduced " : spec.keep_all ? "" : "rematerialized ", phase);
}
}  // namespace

void Memory::add(const Tape& tape, const Plan& plan) {
  CHECK(!persistent_.data());
  for (const Value& v : tape.values()) {
    if (!v.persistent() || v.alias >= 0) continue;
    if (const auto [it, added] = bytes_.try_emplace(v.name, v.bytes()); !added) {
      if (it->second != v.bytes())
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("[memory] '{}' has {} bytes on one tape and {} on another", v.name, it->second, v.bytes()));
      continue;
    }
    offset_[v.name] = persistent_bytes_;
    persistent_bytes_ += align_up(v.bytes());
  }
  arena_bytes_ = std::max(arena_bytes_, plan.arena_bytes);
}

void Memory::allocate() {
  persistent_ = DeviceBuffer(backend_, persistent_bytes_);
  arena_ = DeviceBuffer(backend_, arena_bytes_);
}

std::byte* Memory::persistent(const std::string& name) const {
  const auto it = offset_.find(name);
  if (it == offset_.end()) throw Error(ErrorCode::kInvalidArgument, fmt::format("[memory] no persistent value named '{}'", name));
  CHECK(persistent_.data());
  return persistent_.data() + it->second;
}

Executor::Executor(const Tape& tape, const Plan& plan, const Memory& memory, bool poison)
    : backend_(memory.backend()), poison_(poison) {
  const auto address = [&](int v) -> std::byte* {
    const auto [root, offset] = tape.storage_of(v);
    if (tape.values()[at(root)].persistent()) return memory.persistent(tape.values()[at(root)].name) + offset;
    const Buffer& buffer = plan.buffers[at(plan.buffer_of[at(root)])];
    touched_bytes_ = std::max(touched_bytes_, buffer.offset + align_up(buffer.lifetime.bytes));
    return memory.arena() + buffer.offset;
  };
  std::size_t update_begin = plan.nodes.size();
  for (std::size_t tick = 0; tick < plan.nodes.size(); ++tick) {
    const PlannedNode& planned = plan.nodes[tick];
    const Node& node = tape.nodes()[at(planned.node)];
    if (node.phase == Phase::kUpdate) update_begin = std::min(update_begin, tick);
    NodeViews views = views_of(tape, node);
    for (std::size_t i = 0; i < node.in.size(); ++i)
      if (node.in[i] >= 0) views.in[i].data = address(node.in[i]);
    for (std::size_t i = 0; i < node.out.size(); ++i) views.out[i].data = address(node.out[i]);
    void* workspace = nullptr;
    if (planned.workspace_buffer >= 0) {
      const Buffer& buffer = plan.buffers[at(planned.workspace_buffer)];
      touched_bytes_ = std::max(touched_bytes_, buffer.offset + align_up(buffer.lifetime.bytes));
      workspace = memory.arena() + buffer.offset;
    }
    launches_.push_back({node.op, &node.attributes, std::move(views.in), std::move(views.out), workspace, range_of(tape, node), {}, {}});
  }
  CHECK(touched_bytes_ <= memory.arena_bytes());
  micro_batch_ = {0, update_begin};
  update_ = {update_begin, plan.nodes.size()};
  if (!poison) return;
  for (const Buffer& b : plan.buffers) {
    const std::pair range{memory.arena() + b.offset, b.lifetime.bytes};
    launches_[at(b.lifetime.begin)].poison_before.push_back(range);
    launches_[at(b.lifetime.end - 1)].poison_after.push_back(range);
  }
}

// The first run goes node by node, so that libraries choose and load what they need; then the device may record.
void Executor::run(Part& part) {
  if (part.begin == part.end) return;
  const Backend::Step step(backend_);
  const bool observed = poison_ || node_seconds_ || watcher_;
  if (!observed && part.runs == 1 && !part.recorded) part.recorded = backend_.record([&] { launch(part.begin, part.end); });
  part.runs = std::min(part.runs + 1, 2);
  if (!observed && part.recorded)
    part.recorded->replay();
  else
    launch(part.begin, part.end);
}

void Executor::launch(std::size_t begin, std::size_t end) {
  constexpr int kNan = 0xFF;  // all bits set is a NaN in every floating dtype and -1 in i32
  const KernelTable& kernels = backend_.kernels();
  const Stream stream = backend_.stream();
  for (std::size_t i = begin; i < end; ++i) {
    const Launch& l = launches_[i];
    if (i == begin || l.range != launches_[i - 1].range) {
      if (i > begin) backend_.end_range();
      backend_.begin_range(l.range);
    }
    for (const auto& [data, bytes] : l.poison_before) std::memset(data, kNan, static_cast<std::size_t>(bytes));
    if (!node_seconds_) {
      l.op->run({l.in, l.out, *l.attributes, kernels, stream, l.workspace});
    } else {
      const auto start = std::chrono::steady_clock::now();
      l.op->run({l.in, l.out, *l.attributes, kernels, stream, l.workspace});
      backend_.synchronize();
      (*node_seconds_)[i] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (watcher_) {
      backend_.synchronize();
      watcher_(i, l.in, l.out);
    }
    for (const auto& [data, bytes] : l.poison_after) std::memset(data, kNan, static_cast<std::size_t>(bytes));
  }
  if (begin < end) backend_.end_range();
}

}  // namespace relume
