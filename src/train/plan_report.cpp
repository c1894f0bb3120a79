#include "relume/train/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "relume/base/units.h"

namespace relume {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::string policy_text(const BlockPolicy& p, std::int64_t components) {
  if (p.approximate())
    return fmt::format("{} {:.2f} ({} of {})", p.policy, p.fraction, std::llround(p.fraction * static_cast<double>(components)), components);
  std::string text = p.policy;
  for (const std::string& name : p.keep) text += " +" + name;
  return text;
}

/// Which layer a saved buffer is kept for: the one whose backward reads it. A layer's output is the next one's input.
std::int64_t layer_of(const Tape& tape, const Buffer& b) {
  const Node& producer = tape.nodes()[at(tape.values()[at(b.value)].producer)];
  if (producer.block < 0) return 0;
  const Block& block = tape.blocks()[at(producer.block)];
  const bool output = block.spec.kind == "ffn" && block.out.id == b.value;
  return block.spec.layer + (output ? 1 : 0);
}

void add_layers(const Config& c, const Recording& r, PlanReport& report) {
  for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) {
    const LayerPolicy& policy = c.remat.layer(l);
    const std::string whole = policy.keep_mid ? "" : " (whole layer)";
    report.layers.push_back({l, policy_text(policy.attention, c.model.kv_heads()) + whole, policy_text(policy.ffn, c.model.intermediate_size) + whole, 0});
  }
  for (const Buffer& b : r.plan.buffers)
    if (b.category == Category::kSaved)
      if (const std::int64_t l = layer_of(*r.tape, b); l < c.model.num_hidden_layers)
        report.layers[static_cast<std::size_t>(l)].saved_bytes += b.lifetime.bytes;
}

void add_persistent(const Tape& tape, PlanReport& report) {
  static const std::map<std::string, std::string> kNames{{names::kParameters, "weights"}, {names::kGradients, "gradients"},
                                                         {names::kFirstMoment, "Adam m"}, {names::kSecondMoment, "Adam v"}};
  std::int64_t other = 0;
  for (const Value& v : tape.values()) {
    if (!v.persistent() || v.alias >= 0) continue;
    if (const auto it = kNames.find(v.name); it != kNames.end())
      report.persistent.push_back({it->second + " " + std::string(to_string(v.dtype)), align_up(v.bytes())});
    else
      other += align_up(v.bytes());
  }
  report.persistent.push_back({"inputs, tables", other});
}

std::string label_of(const Tape& tape, const Node& node) {
  const std::string what = node.out.empty() ? std::string(node.op->name) : tape.values()[at(node.out[0])].name;
  const std::string op = what == node.op->name ? what : fmt::format("{} ({})", what, node.op->name);
  if (node.block < 0) return op;
  const BlockSpec& spec = tape.blocks()[at(node.block)].spec;
  return fmt::format("layer {} {} {}{}", spec.layer, spec.kind, op, node.recompute ? ", recomputed" : "");
}

/// Seconds a node takes on a machine with a balance of 20 flops a byte; only ratios are used, for the time axis.
double modelled_seconds(const Cost& c) { return std::max(c.flops / 200e9, (c.bytes_read + c.bytes_written) / 10e9) + 1e-6; }

void add_ticks(const Recording& r, PlanReport& report) {
  for (const PlannedNode& planned : r.plan.nodes) {
    const Node& node = r.tape->nodes()[at(planned.node)];
    PlanReport::Tick tick{.label = label_of(*r.tape, node), .phase = node.phase, .seconds = modelled_seconds(planned.cost)};
    if (node.block >= 0) tick.layer = r.tape->blocks()[at(node.block)].spec.layer;
    report.ticks.push_back(std::move(tick));
  }
  for (const Buffer& b : r.plan.buffers)
    for (int t = b.lifetime.begin; t < b.lifetime.end; ++t)
      report.ticks[at(t)].bytes[static_cast<std::size_t>(b.category)] += align_up(b.lifetime.bytes);
}

void add_peak(const Recording& r, PlanReport& report) {
  const PlanReport::Tick& peak = report.ticks[at(r.plan.peak_tick)];
  report.at_peak = peak.bytes;
  report.peak_node = peak.label;
  std::map<std::string, std::int64_t> by_name;
  for (const Buffer& b : r.plan.buffers)
    if (b.category == Category::kSaved && b.lifetime.begin <= r.plan.peak_tick && r.plan.peak_tick < b.lifetime.end)
      by_name[r.tape->values()[at(b.value)].name] += align_up(b.lifetime.bytes);
  for (const auto& [name, bytes] : by_name) report.saved_at_peak.push_back({name, bytes});
  std::sort(report.saved_at_peak.begin(), report.saved_at_peak.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
}

}  // namespace

PlanReport report_plan(const Config& c, const Program& program, const std::string& device) {
  const Recording& r = program.training;
  PlanReport report;
  report.title = fmt::format("{:.1f}M parameters   layers {}   d {}   ffn {}   heads {}/{}   vocab {}   micro-batch {}x{}   {}",
                             static_cast<double>(program.layout.count) / 1e6, c.model.num_hidden_layers, c.model.hidden_size, c.model.intermediate_size,
                             c.model.num_attention_heads, c.model.kv_heads(), c.model.vocab_size, c.batch.micro_batch_size, c.data.sequence_length,
                             c.precision);
  report.device = device;
  report.parameters = program.layout.count;
  report.tokens_per_step = c.tokens_per_step();
  report.micro_batches = c.micro_batches();
  report.head_chunk_rows = program.head_chunk_rows;
  report.persistent_bytes = r.plan.persistent_bytes;
  report.arena_bytes = r.plan.arena_bytes;
  report.lower_bound_bytes = r.plan.lower_bound_bytes;
  report.evaluation_arena_bytes = program.evaluation.plan.arena_bytes;
  const StepFlops flops = step_flops(r, c.micro_batches());
  report.step_flops = flops.executed;
  report.recompute_flops = flops.recomputed;
  report.model_flops = model_flops_per_token(c.model, c.data.sequence_length) * static_cast<double>(c.tokens_per_step());
  report.nodes = r.plan.nodes.size();
  report.buffers = r.plan.buffers.size();
  add_persistent(*r.tape, report);
  add_layers(c, r, report);
  add_ticks(r, report);
  add_peak(r, report);
  return report;
}

std::string plan_json(const PlanReport& r) {
  using Json = nlohmann::ordered_json;
  Json layers = Json::array(), persistent = Json::object(), saved = Json::object(), at_peak = Json::object();
  for (const auto& l : r.layers) layers.push_back({{"layer", l.layer}, {"attention", l.attention}, {"ffn", l.ffn}, {"saved_bytes", l.saved_bytes}});
  for (const auto& i : r.persistent) persistent[i.name] = i.bytes;
  for (const auto& i : r.saved_at_peak) saved[i.name] = i.bytes;
  for (int c = 0; c < kCategoryCount; ++c) at_peak[std::string(to_string(static_cast<Category>(c)))] = r.at_peak[at(c)];
  const Json j{{"parameters", r.parameters},
               {"persistent_bytes", r.persistent_bytes},
               {"arena_bytes", r.arena_bytes},
               {"lower_bound_bytes", r.lower_bound_bytes},
               {"peak_bytes", r.peak_bytes()},
               {"evaluation_arena_bytes", r.evaluation_arena_bytes},
               {"step_flops", r.step_flops},
               {"recompute_flops", r.recompute_flops},
               {"model_flops", r.model_flops},
               {"tokens_per_step", r.tokens_per_step},
               {"micro_batches", r.micro_batches},
               {"head_chunk_rows", r.head_chunk_rows},
               {"device", r.device},
               {"nodes", r.nodes},
               {"buffers", r.buffers},
               {"persistent", persistent},
               {"at_peak", at_peak},
               {"saved_at_peak", saved},
               {"peak_node", r.peak_node},
               {"layers", layers}};
  return j.dump(2) + "\n";
}

std::string plan_table(const PlanReport& r) {
  const auto row = [](const std::string& name, std::int64_t bytes, const std::string& note = "") {
    return fmt::format(" {:<26}{:>10}   {}\n", name, format_bytes(bytes), note);
  };
  std::string out = r.title + "   " + r.device + "\n";
  for (const auto& i : r.persistent) out += row(i.name, i.bytes);
  std::string saved;
  for (const auto& i : r.saved_at_peak) saved += fmt::format("{}{} {}", saved.empty() ? "" : ", ", i.name, format_bytes(i.bytes));
  out += row(fmt::format("activations (arena)"), r.arena_bytes, fmt::format("max-live lower bound {}, ratio {:.5f}", format_bytes(r.lower_bound_bytes),
                                                                            static_cast<double>(r.arena_bytes) / static_cast<double>(r.lower_bound_bytes)));
  for (int c = 0; c < kCategoryCount; ++c)
    if (r.at_peak[at(c)] > 0)
      out += row("   " + std::string(to_string(static_cast<Category>(c))), r.at_peak[at(c)], c == 0 ? saved : "");
  out += row("planned peak", r.peak_bytes(), "at " + r.peak_node);
  out += fmt::format(" {} nodes, {} buffers{}; head in chunks of {} tokens\n", r.nodes, r.buffers,
                     r.plan_s > 0 ? fmt::format(", planned in {:.0f} ms", r.plan_s * 1e3) : "", r.head_chunk_rows);
  for (std::size_t i = 0; i < r.layers.size();) {
    std::size_t end = i + 1;
    while (end < r.layers.size() && r.layers[end].attention == r.layers[i].attention && r.layers[end].ffn == r.layers[i].ffn) ++end;
    const std::string range = end - i == 1 ? fmt::format("layer  {:>5}", i) : fmt::format("layers {:>5}", fmt::format("{}-{}", i, end - 1));
    out += fmt::format(" {}   attention {}, ffn {}; saves {} each\n", range, r.layers[i].attention, r.layers[i].ffn, format_bytes(r.layers[i].saved_bytes));
    i = end;
  }
  out += fmt::format(" step of {} tokens: {:.4g} TFLOP, of these {:.4g} recomputed ({:+.1f}% against storing everything)\n", format_count(r.tokens_per_step),
                     r.step_flops / 1e12, r.recompute_flops / 1e12, 100 * (r.step_flops / (r.model_flops > 0 ? r.model_flops : 1) - 1));
  out.pop_back();
  return out;
}

}  // namespace relume
