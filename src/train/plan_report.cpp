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
  if (!p.approximate()) return policy_name(p);
  return fmt::format("{} ({} of {})", policy_name(p), p.selected(components), components);
}

/// Which layer a saved buffer is kept for: the one whose backward reads it. A layer's output is the next one's input.
std::int64_t layer_of(const Tape& tape, const Buffer& b) {
  const Node& producer = tape.nodes()[at(tape.values()[at(b.value)].producer)];
  if (producer.block < 0) return 0;
  const Block& block = tape.blocks()[at(producer.block)];
  const bool output = block.spec.kind == "ffn" && block.out.id == b.value;
  return block.spec.layer + (output ? 1 : 0);
}

void add_layers(const Config& c, const RematConfig& remat, const Recording& r, PlanReport& report) {
  for (std::int64_t l = 0; l < c.model.num_hidden_layers; ++l) {
    const LayerPolicy& policy = remat.layer(l);
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
                                                         {names::kMatricesBf16, "matrices"},
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

/// "d gate_up (matmul)"
std::string work_of(const Tape& tape, const Node& node) {
  const std::string what = node.out.empty() ? std::string(node.op->name) : tape.values()[at(node.out[0])].name;
  return what == node.op->name ? what : fmt::format("{} ({})", what, node.op->name);
}

std::string label_of(const Tape& tape, const Node& node) {
  const std::string op = work_of(tape, node);
  if (node.block < 0) return op;
  const BlockSpec& spec = tape.blocks()[at(node.block)].spec;
  return fmt::format("layer {} {} {}{}", spec.layer, spec.kind, op, node.recompute ? ", recomputed" : "");
}

void add_ticks(const Recording& r, const DeviceRates& rates, PlanReport& report) {
  for (const PlannedNode& planned : r.plan.nodes) {
    const Node& node = r.tape->nodes()[at(planned.node)];
    PlanReport::Tick tick{.label = label_of(*r.tape, node), .phase = node.phase, .seconds = seconds(planned.cost, rates) + 1e-7};
    if (node.block >= 0) tick.layer = r.tape->blocks()[at(node.block)].spec.layer;
    report.ticks.push_back(std::move(tick));
  }
  for (const Buffer& b : r.plan.buffers)
    for (int t = b.lifetime.begin; t < b.lifetime.end; ++t)
      report.ticks[at(t)].bytes[static_cast<std::size_t>(b.category)] += align_up(b.lifetime.bytes);
  for (const Buffer& b : r.plan.buffers)
    report.rectangles.push_back({b.value >= 0 ? r.tape->describe(b.value) : "workspace of " + label_of(*r.tape, r.tape->nodes()[at(b.node)]), b.category,
                                 b.lifetime.begin, b.lifetime.end, b.offset, b.lifetime.bytes});
}

/// What choosing found, and what other budgets would give.
void add_budget(const Config& c, const RematPlanner& planner, PlanReport& report) {
  if (c.memory.budget == 0) return;
  PlanReport::Budget b{.budget_bytes = c.memory.budget, .minimum_bytes = planner.minimum_bytes(), .automatic = c.remat.automatic()};
  if (b.automatic) {
    b.variance = planner.choose(c.memory.budget).value_or(RematPlanner::Result{}).variance;
    b.alternatives = pareto(planner, 5);
  }
  report.budget = std::move(b);
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

PlanReport report_plan(const Config& c, const Program& program, const KernelTable& kernels, const DeviceInfo& device, const DeviceRates& rates) {
  const Recording& r = program.training;
  PlanReport report;
  report.title = fmt::format("{:.1f}M parameters   layers {}   d {}   ffn {}   heads {}/{}   vocab {}   micro-batch {}x{}   {}",
                             static_cast<double>(program.layout.count) / 1e6, c.model.num_hidden_layers, c.model.hidden_size, c.model.intermediate_size,
                             c.model.num_attention_heads, c.model.kv_heads(), c.model.vocab_size, c.batch.micro_batch_size, c.data.sequence_length,
                             c.precision);
  report.device = device.description;
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
  const RematPlanner planner(c, kernels, rates);
  report.step_s = predicted_step_s(r, c.micro_batches(), rates);
  report.store_step_s = planner.store_step_s();
  report.rates = rates;
  Config resolved = c;
  resolved.remat = program.remat;
  report.remat = nlohmann::ordered_json::parse(to_json(resolved))["remat"].dump();
  report.identity = plan_identity(c);
  add_layers(c, program.remat, r, report);
  add_budget(c, planner, report);
  add_ticks(r, rates, report);
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
  Json j{{"parameters", r.parameters},
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
               {"predicted_step_s", r.step_s},
               {"predicted_store_step_s", r.store_step_s},
               {"overhead", r.overhead()},
               {"rates", {{"matmul_flops", r.rates.matmul_flops}, {"attention_flops", r.rates.attention_flops}, {"bandwidth", r.rates.bytes}}},
               {"layers", layers},
               {"remat", Json::parse(r.remat)},
               {"config", Json::parse(r.identity)}};
  if (r.budget) {
    Json alternatives = Json::array();
    for (const auto& a : r.budget->alternatives) alternatives.push_back({{"budget_bytes", a.budget_bytes}, {"overhead", a.overhead}});
    j.update({{"budget_bytes", r.budget->budget_bytes}, {"minimum_bytes", r.budget->minimum_bytes}, {"alternatives", alternatives}});
    if (r.budget->variance > 0) j["expected_variance"] = r.budget->variance;
  }
  return j.dump(2) + "\n";
}

std::string plan_nodes(const Config& c, const Recording& r, const DeviceRates& rates) {
  struct Kind {
    double calls = 0, s = 0, flops = 0, bytes = 0;
  };
  std::map<std::string, Kind> kinds;
  double all = 0;
  for (const PlannedNode& planned : r.plan.nodes) {
    const Node& node = r.tape->nodes()[at(planned.node)];
    std::string name = work_of(*r.tape, node);
    if (node.block >= 0) name = r.tape->blocks()[at(node.block)].spec.kind + " " + name;
    if (node.recompute) name += ", recomputed";
    const double times = node.phase == Phase::kUpdate ? 1 : static_cast<double>(c.micro_batches());
    Kind& k = kinds[name];
    k.calls += times;
    k.s += times * seconds(planned.cost, rates);
    k.flops += times * planned.cost.flops;
    k.bytes += times * (planned.cost.bytes_read + planned.cost.bytes_written);
    all += times * seconds(planned.cost, rates);
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, k] : kinds) order.emplace_back(k.s, name);
  std::sort(order.rbegin(), order.rend());
  std::string out = fmt::format(" {:>6} {:>7} {:>11} {:>10} {:>10}   nodes of a step, predicted\n", "share", "calls", "ms", "GFLOP", "GB");
  for (const auto& [s, name] : order) {
    const Kind& k = kinds[name];
    out += fmt::format(" {:5.1f}% {:7.0f} {:11.3f} {:10.1f} {:10.3f}   {}\n", 100 * s / all, k.calls, 1e3 * s, k.flops / 1e9, k.bytes / 1e9, name);
  }
  return out;
}

namespace {

std::string format_seconds(double s) { return s < 1 ? fmt::format("{:.0f} ms", s * 1e3) : fmt::format("{:.2f} s", s); }

/// Arena in use over the step's predicted time, as blocks of eight heights.
std::string timeline(const PlanReport& r) {
  constexpr int kColumns = 72;
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double total = 0;
  for (const auto& t : r.ticks) total += t.seconds;
  std::vector<std::int64_t> most(kColumns, 0);
  double now = 0;
  for (const auto& t : r.ticks) {
    std::int64_t bytes = 0;
    for (std::int64_t b : t.bytes) bytes += b;
    const int first = std::min(kColumns - 1, static_cast<int>(now / total * kColumns));
    now += t.seconds;
    const int last = std::min(kColumns - 1, static_cast<int>(now / total * kColumns));
    for (int c = first; c <= last; ++c) most[at(c)] = std::max(most[at(c)], bytes);
  }
  std::string out = " arena over time  ";
  for (std::int64_t bytes : most)
    out += kBlocks[std::clamp<std::int64_t>(8 * bytes / std::max<std::int64_t>(1, r.arena_bytes), 0, 7)];
  return out;
}

}  // namespace

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
  if (r.budget) out += row("budget", r.budget->budget_bytes, format_bytes(r.budget->budget_bytes - r.peak_bytes()) + " free");
  out += fmt::format(" {} nodes, {} buffers{}; head in chunks of {} tokens\n", r.nodes, r.buffers,
                     r.plan_s > 0 ? fmt::format(", planned in {:.0f} ms", r.plan_s * 1e3) : "", r.head_chunk_rows);
  for (std::size_t i = 0; i < r.layers.size();) {
    std::size_t end = i + 1;
    while (end < r.layers.size() && r.layers[end].attention == r.layers[i].attention && r.layers[end].ffn == r.layers[i].ffn) ++end;
    const std::string range = end - i == 1 ? fmt::format("layer  {:>5}", i) : fmt::format("layers {:>5}", fmt::format("{}-{}", i, end - 1));
    out += fmt::format(" {}   attention {}, ffn {}; saves {} each\n", range, r.layers[i].attention, r.layers[i].ffn, format_bytes(r.layers[i].saved_bytes));
    i = end;
  }
  out += fmt::format(" step of {} tokens: {:.4g} TFLOP, of these {:.4g} recomputed\n", format_count(r.tokens_per_step),
                     r.step_flops / 1e12, r.recompute_flops / 1e12);
  const double percent = 100 * r.overhead();
  out += fmt::format(" predicted time of a step: {}{}\n", format_seconds(r.step_s),
                     std::abs(percent) < 0.05 ? "" : fmt::format(", {:+.1f}% against storing everything", percent));
  if (r.budget && r.budget->automatic) {
    if (r.budget->variance > 0) out += fmt::format(" expected relative squared error of a block's gradient: {:.3f} on average\n", r.budget->variance);
    out += " other budgets:";
    for (const auto& a : r.budget->alternatives) out += fmt::format("  {} {:+.1f}%{}", format_bytes(a.budget_bytes), 100 * a.overhead, &a == &r.budget->alternatives.back() ? "" : " |");
    out += fmt::format(";  the smallest is {} ({})\n", format_bytes(r.budget->minimum_bytes), exact_bytes(r.budget->minimum_bytes));
  }
  out += timeline(r);
  return out;
}

}  // namespace relume
