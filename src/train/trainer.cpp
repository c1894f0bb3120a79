#include "relume/train/trainer.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "relume/base/error.h"
#include "relume/base/units.h"
#include "relume/config/json_file.h"
#include "relume/io/tokenizer.h"
#include "relume/train/checkpoint.h"
#include "relume/train/data_loader.h"
#include "relume/train/device_facts.h"
#include "relume/train/evaluation.h"
#include "relume/train/generation.h"
#include "relume/train/metrics.h"
#include "relume/train/plan_report.h"
#include "relume/train/schedule.h"
#include "relume/train/selection_audit.h"
#include "relume/train/stop_signal.h"

namespace relume {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr int kMostSkippedInARow = 10;

class Trainer {
 public:
  Trainer(const Config& config, Backend& backend, const TrainOptions& options)
      : config_(with_precision(config, backend)),
        options_(options),
        backend_(backend),
        data_(config.data.train, training_windows(config)),
        memory_(backend),
        progress_(options.json ? stderr : stdout, 5, options.live) {
    if (!config.data.validation.empty())
      validation_.emplace(config.data.validation, validation_windows(config));
    open_tokenizer();
    if (!config.init.empty()) check_init();
  }

  TrainSummary run() {
    const StopSignal stop;
    const std::optional<Checkpoint> resumed = find_checkpoint();
    plan_run(resumed);
    prepare_run_directory();
    peak_flops_ = measure_peak_flops(backend_, config_.precision);
    allocate(resumed);
    MetricsFile metrics(config_.output + "/metrics.jsonl");
    const std::int64_t last = options_.stop_after ? std::min(config_.schedule.steps, state_.step + options_.stop_after) : config_.schedule.steps;
    while (state_.step < last) {
      train_step(metrics, last);
      const bool stopping = StopSignal::received() != 0, done = state_.step == last;
      if (selection_ && state_.step % config_.audit.every_steps == 0) metrics.line(selection_->record(state_.step, memory_));
      const auto due = [&](std::int64_t every) { return every > 0 && state_.step % every == 0; };
      if (!stopping && validation_ && (due(config_.evaluation.every_steps) || done)) validate(metrics);
      if (due(config_.checkpoint.every_steps) || done || stopping) save();
      if (stopping) break;
    }
    summary_.signal = StopSignal::received();
    return finish(metrics);
  }

 private:
  // --- before the first step ---

  static Config with_precision(Config config, const Backend& backend) {
    config.precision = resolve_precision(config.precision, backend.device());
    return config;
  }

  /// The tokenizer of the data, else the one of the model that training starts from. Shards made with another one than the model's would
  /// train it on noise.
  void open_tokenizer() {
    const std::string of_init = config_.init.empty() ? "" : find_tokenizer(config_.init);
    std::string path = config_.data.tokenizer.empty() ? of_init : config_.data.tokenizer;
    if (path.empty()) return;
    tokenizer_ = load_tokenizer(path);
    if (tokenizer_->vocab_size() > config_.model.vocab_size)
      throw Error(ErrorCode::kConfig, fmt::format("data.tokenizer: {} has {} entries, more than model.vocab_size {}", path, tokenizer_->vocab_size(), config_.model.vocab_size));
    if (!of_init.empty() && hash_file(tokenizer_->path()) != hash_file(of_init))
      throw Error(ErrorCode::kConfig, fmt::format("data.tokenizer: {} differs from {}, which belongs to the weights of init; hint: shards made with the model's own "
                                                  "tokenizer, or init without tokenizer files if they are the same in content", tokenizer_->path(), of_init));
  }

  /// Weights fit other models of the same shapes too: what else makes the model must be the same.
  void check_init() const {
    const auto shape_of = [&](ModelConfig m) {
      m.num_key_value_heads = m.kv_heads();  // 0 stands for these
      m.head_dim = m.head_size();
      Config c = config_;
      c.model_path.clear();
      c.model = m;
      Json j = Json::parse(to_json(c))["model"];
      for (const char* free : {"max_position_embeddings", "initializer_range"}) j.erase(free);
      return j;
    };
    const Json ours = shape_of(config_.model), theirs = shape_of(read_hf_config(config_.init));
    if (ours != theirs)
      throw Error(ErrorCode::kConfig, fmt::format("init: {}/config.json is another model than the config's:{}\n  hint: \"model\": \"{}\"", config_.init,
                                                  config::differences(theirs, ours), config_.init));
    const HfWeights complete(config_.init, make_parameter_layout(config_.model));  // before anything is allocated
  }

  [[nodiscard]] std::string identity() const {
    const Json all = Json::parse(to_json(config_));
    return Json{{"model", all["model"]}, {"precision", config_.precision}, {"seed", config_.seed}, {"sequence_length", config_.data.sequence_length}, {"shuffle", config_.data.shuffle},
                {"data", data_.fingerprint()}}
        .dump();
  }

  std::optional<Checkpoint> find_checkpoint() const {
    if (!options_.resume) return std::nullopt;
    const std::string from = options_.resume_from.empty() ? config_.output : options_.resume_from;
    if (!fs::exists(from + "/checkpoints") && !options_.resume_from.empty()) return matching(open_checkpoint(from));
    std::vector<std::string> rejected;
    std::optional<Checkpoint> latest = latest_checkpoint(from, &rejected);
    for (const std::string& line : rejected) spdlog::warn("passed over: {}", line);
    if (!latest)
      throw Error(ErrorCode::kFile, fmt::format("{}: no valid checkpoint to resume from; hint: start without --resume", from));
    return matching(*latest);
  }

  Checkpoint matching(Checkpoint c) const {
    const Json ours = Json::parse(identity()), theirs = Json::parse(c.state.identity);
    if (ours != theirs)
      throw Error(ErrorCode::kConfig, fmt::format("{}: belongs to another run; it cannot be continued with this config:{}", c.directory,
                                                  config::differences(theirs, ours)));
    const std::string policies = written_policies();
    if (policies != c.state.remat) {
      if (!options_.remat_overridden)
        throw Error(ErrorCode::kConfig, fmt::format("{}: was made under other rematerialization policies; hint: give them with --set remat=… (or memory=…) to change "
                                                    "them on purpose\n  there {}\n  here  {}", c.directory, c.state.remat, policies));
      spdlog::warn("policies change from {} to {}", c.state.remat, policies);
    }
    if (const std::string kernels = kernel_name(); kernels != c.state.kernels)
      spdlog::warn("{} was made by {}, this is {}: results may differ in the last bits", c.directory, c.state.kernels, kernels);
    return c;
  }

  [[nodiscard]] std::string kernel_name() const { return fmt::format("{}: {} threads, {}", backend_.name(), backend_.device().threads, backend_.device().kernels); }

  /// The policies as the config writes them, and what "auto" chooses by.
  [[nodiscard]] std::string written_policies() const {
    const Json all = Json::parse(to_json(config_));
    return config_.remat.automatic() ? Json{{"remat", all["remat"]}, {"memory", all["memory"]}}.dump() : all["remat"].dump();
  }

  /// A resumed run keeps the policies that were chosen when it started, whatever the device's rates are measured to be today.
  void plan_run(const std::optional<Checkpoint>& resumed) {
    rates_ = device_rates(config_, backend_, options_.cache_directory);
    Config planned = config_;
    if (resumed && resumed->state.remat == written_policies()) {
      Json all = Json::parse(to_json(config_));
      all["remat"] = Json::parse(resumed->state.policies);
      planned.remat = parse_config(all.dump(), resumed->directory).remat;
    }
    program_ = make_program(planned, backend_.kernels(), rates_);
    report_ = report_plan(config_, program_, backend_.kernels(), backend_.device(), rates_);
    if (config_.audit.every_steps > 0) selection_.emplace(config_.model, program_.remat);
  }

  void prepare_run_directory() {
    const std::string& out = config_.output;
    if (!options_.resume && (fs::exists(out + "/checkpoints") || fs::exists(out + "/metrics.jsonl")))
      throw Error(ErrorCode::kConfig, fmt::format("{}: holds a run already; hint: --resume continues it, --set output=DIR starts another", out));
    make_writable_directory(out);
    write_file_atomically(out + "/config.json", to_json(config_));
    write_file_atomically(out + "/plan.json", plan_json(report_));
    write_file_atomically(out + "/plan.svg", plan_svg(report_));
    log_ = spdlog::basic_logger_mt("train.log", out + "/train.log");
    log_->info("relume {} on {}", kernel_name(), out);
    say(plan_table(report_));
  }

  void allocate(const std::optional<Checkpoint>& resumed) {
    memory_.add(*program_.training.tape, program_.training.plan);
    memory_.add(*program_.evaluation.tape, program_.evaluation.plan);
    if (config_.evaluation.samples > 0) generator_.emplace(config_.model, program_.layout, sample_shape(config_), config_.precision, memory_);
    memory_.allocate();
    const auto table = rope_table(config_.model, config_.data.sequence_length);
    memory_.write(names::kRopeTable, table.data(), static_cast<std::int64_t>(table.size()));
    if (resumed) {
      load_checkpoint(*resumed, program_.layout, memory_);
      state_ = resumed->state;
      data_.seek(state_.data_position);
      say(fmt::format("resumed from {} at step {}", resumed->directory, state_.step));
    } else if (!config_.init.empty()) {
      load_weights(config_.init, program_.layout, memory_);
      say(fmt::format("weights from {}", config_.init));
    } else {
      initialize_weights(config_, program_.layout, memory_);
    }
    refresh_derived_weights(program_.layout, memory_);
    state_.identity = identity();
    state_.remat = written_policies();
    state_.policies = report_.remat;
    state_.kernels = kernel_name();
    training_.emplace(*program_.training.tape, program_.training.plan, memory_);
    evaluation_.emplace(*program_.evaluation.tape, program_.evaluation.plan, memory_);
    clear_result();
  }

  void clear_result() {
    const StepResult clear{.updates = state_.updates};
    memory_.write(names::kResult, &clear, 1);
  }

  // --- steps ---

  /// The windows of one step, and where the data stands after them.
  struct StepData {
    std::vector<std::int32_t> tokens, targets;
    std::int64_t position = 0;
    double trained = 0;  // targets; at least one, so that a step without any is a step of zero gradients
  };

  StepData fetch() {
    const std::int64_t windows = config_.batch.micro_batch_size * config_.micro_batches(), length = config_.data.sequence_length;
    StepData d;
    d.tokens.resize(static_cast<std::size_t>(windows * length));
    d.targets.resize(d.tokens.size());
    for (std::int64_t w = 0; w < windows; ++w) data_.next(d.tokens.data() + w * length, d.targets.data() + w * length);
    d.position = data_.position();
    d.trained = static_cast<double>(std::max<std::ptrdiff_t>(1, std::count_if(d.targets.begin(), d.targets.end(), [](std::int32_t t) { return t >= 0; })));
    return d;
  }

  void train_step(MetricsFile& metrics, std::int64_t last) {
    const auto start = Clock::now();
    const StepData data = fetched_ ? std::move(*fetched_) : fetch();
    fetched_.reset();
    const std::int64_t rows = config_.micro_batch_tokens();
    const double targets = data.trained;
    for (std::int64_t m = 0; m < config_.micro_batches(); ++m) {
      const StepState s{.seed = static_cast<std::uint64_t>(config_.seed), .step = state_.step, .micro_batch = m, .micro_batches = config_.micro_batches(),
                        .learning_rate = learning_rate(config_.optimizer, config_.schedule, state_.step), .inverse_targets = 1 / targets};
      memory_.write(names::kState, &s, 1);
      memory_.write(names::kTokens, data.tokens.data() + m * rows, rows);
      memory_.write(names::kTargets, data.targets.data() + m * rows, rows);
      training_->run_micro_batch();
    }
    training_->run_update();
    if (state_.step + 1 < last) fetched_ = fetch();  // while a device works; then it waits for nothing but the result's few bytes
    StepResult r;
    memory_.read(names::kResult, &r, 1);
    record(r, targets, data.position, seconds_since(start), metrics, last);
    clear_result();
  }

  void record(const StepResult& r, double targets, std::int64_t data_position, double step_s, MetricsFile& metrics, std::int64_t last) {
    StepMetrics m{.loss = r.nll / targets, .gradient_norm = r.gradient_norm, .learning_rate = learning_rate(config_.optimizer, config_.schedule, state_.step)};
    ++state_.step;
    state_.updates = r.updates;
    state_.data_position = data_position;
    state_.tokens += static_cast<std::int64_t>(targets);
    state_.skipped += r.skipped;
    state_.skipped_in_a_row = r.skipped ? state_.skipped_in_a_row + 1 : 0;
    if (++steps_here_ > 2 || last - state_.step + steps_here_ <= 2) {
      timed_s_ += step_s;
      timed_tokens_ += targets;
      ++timed_steps_;
    }
    m.step = state_.step;
    m.tokens = state_.tokens;
    m.step_s = step_s;
    m.tokens_per_s = targets / step_s;
    m.mfu = targets * model_flops_per_token(config_.model, config_.data.sequence_length) / step_s / peak_flops_;
    m.hfu = step_flops(program_.training, config_.micro_batches()).executed / step_s / peak_flops_;
    m.skipped = r.skipped != 0;
    m.skipped_total = state_.skipped;
    summary_.final_loss = m.loss;
    metrics.step(m);
    const double average_s = timed_steps_ > 0 ? timed_s_ / timed_steps_ : step_s;
    const std::string line = step_line(m, config_.schedule.steps, program_.planned_bytes(), average_s * static_cast<double>(last - state_.step));
    log_->info("{}", line);
    progress_.show(line, static_cast<double>(state_.step) / static_cast<double>(last), m.skipped || state_.step == last || steps_here_ == 1);
    if (state_.skipped_in_a_row >= kMostSkippedInARow)
      throw Error(ErrorCode::kRuntime, fmt::format("{} steps in a row were skipped because the loss, the gradient norm or a component score was not finite "
                                                   "(loss {}, gradient norm {}); the weights are those of step {}. hint: a lower optimizer.learning_rate or a "
                                                   "longer schedule.warmup_steps, from the last checkpoint", kMostSkippedInARow, m.loss, m.gradient_norm,
                                                   state_.step - kMostSkippedInARow));
  }

  void validate(MetricsFile& metrics) {
    validation_->seek(0);
    std::int64_t left = std::min(validation_->windows(), std::max<std::int64_t>(1, config_.evaluation.tokens / config_.data.sequence_length));
    const std::int64_t all = left;
    const EvaluationResult e = evaluate(
        *evaluation_, memory_, config_.batch.micro_batch_size, config_.data.sequence_length,
        [&](std::int32_t* tokens, std::int32_t* targets) {
          if (left == 0) return false;
          --left;
          validation_->next(tokens, targets);
          return true;
        },
        [&](std::int64_t done) { progress_.show(fmt::format("evaluating: {} of {} windows", done, all), static_cast<double>(done) / static_cast<double>(all)); });
    summary_.evaluated = true;
    summary_.validation_loss = e.mean_nll();
    summary_.validation_perplexity = e.perplexity();
    metrics.evaluation(state_.step, e.mean_nll(), e.perplexity());
    say(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f} (unigram {:.1f}) over {} tokens", state_.step, e.mean_nll(), e.perplexity(),
                    e.unigram_perplexity(), format_count(e.tokens_scored)));
    if (generator_) write_samples();
  }

  /// Beginnings of validation windows, and how the model goes on.
  void write_samples() {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(config_.data.sequence_length)), targets(tokens.size());
    const auto prompt = std::span(tokens).first(static_cast<std::size_t>(std::min(kSamplePrompt, std::max<std::int64_t>(1, config_.data.sequence_length / 2))));
    StepResult kept;
    memory_.read(names::kResult, &kept, 1);
    for (std::int64_t i = 0; i < config_.evaluation.samples; ++i) {
      validation_->seek(i * validation_->windows() / config_.evaluation.samples);
      validation_->next(tokens.data(), targets.data());
      generator_->restart();
      const GenerationOptions options{.max_tokens = kSampleTokens, .sampling = {.temperature = 0.8, .seed = static_cast<std::uint64_t>(config_.seed + i)}};
      const std::vector<std::int32_t> continuation = generate(*generator_, prompt, options);
      nlohmann::ordered_json line{{"step", state_.step}, {"sample", i}, {"prompt_tokens", prompt}, {"tokens", continuation}};
      if (tokenizer_) {
        const std::string before = tokenizer_->decode(prompt), after = tokenizer_->decode(continuation);
        line.update({{"prompt", before}, {"text", after}});
        say(fmt::format("sample {}: {} | {}", i, nlohmann::json(before).dump(), nlohmann::json(after).dump()));
      }
      std::ofstream(config_.output + "/samples.jsonl", std::ios::app) << line.dump() << "\n";
    }
    memory_.write(names::kResult, &kept, 1);
  }

  void save() {
    summary_.checkpoint =
        save_checkpoint(config_.output, state_, config_.model, tokenizer_.get(), program_.layout, memory_, config_.checkpoint.keep_last);
    say(fmt::format("saved {}", summary_.checkpoint));
  }

  /// Predicted against measured, in the log, the metrics and the run's picture.
  void compare_with_plan(MetricsFile& metrics) {
    summary_.predicted_step_s = report_.step_s;
    summary_.measured_step_s = timed_steps_ > 0 ? timed_s_ / timed_steps_ : 0;
    log_->info("arena planned {} bytes, touched {}; process peak {}; step predicted {:.1f} ms, measured {:.1f} ms", summary_.arena_bytes, summary_.touched_bytes,
               format_bytes(summary_.peak_rss_bytes), summary_.predicted_step_s * 1e3, summary_.measured_step_s * 1e3);
    metrics.line(nlohmann::ordered_json{{"step", state_.step},
                                        {"planned_bytes", summary_.planned_bytes},
                                        {"touched_bytes", program_.persistent_bytes() + summary_.touched_bytes},
                                        {"peak_rss_bytes", summary_.peak_rss_bytes},
                                        {"predicted_step_ms", summary_.predicted_step_s * 1e3},
                                        {"measured_step_ms", summary_.measured_step_s * 1e3}}
                     .dump());
    report_.measured_bytes = program_.persistent_bytes() + summary_.touched_bytes;
    write_file_atomically(config_.output + "/plan.svg", plan_svg(report_));
  }

  TrainSummary finish(MetricsFile& metrics) {
    summary_.steps = state_.step;
    summary_.tokens_per_s = timed_s_ > 0 ? timed_tokens_ / timed_s_ : 0;
    summary_.planned_bytes = program_.planned_bytes();
    summary_.arena_bytes = program_.arena_bytes();
    summary_.touched_bytes = std::max(training_->touched_bytes(), evaluation_->touched_bytes());
    summary_.peak_rss_bytes = peak_rss_bytes();
    summary_.skipped = state_.skipped;
    if (summary_.touched_bytes != summary_.arena_bytes)
      throw Error(ErrorCode::kRuntime, fmt::format("internal error: planned an arena of {} bytes, touched {}", summary_.arena_bytes, summary_.touched_bytes));
    compare_with_plan(metrics);
    spdlog::drop("train.log");
    return summary_;
  }

  void say(const std::string& text) {
    progress_.print(text);
    log_->info("{}", text);
    log_->flush();
  }

  const Config config_;
  const TrainOptions& options_;
  Backend& backend_;
  DataLoader data_;
  std::optional<DataLoader> validation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<Generator> generator_;
  DeviceRates rates_;
  Program program_;
  PlanReport report_;
  std::optional<SelectionAudit> selection_;
  Memory memory_;
  std::optional<Executor> training_, evaluation_;
  ProgressLine progress_;
  std::shared_ptr<spdlog::logger> log_;
  TrainerState state_;
  TrainSummary summary_;
  std::optional<StepData> fetched_;
  double peak_flops_ = 0, timed_s_ = 0, timed_tokens_ = 0, timed_steps_ = 0;
  std::int64_t steps_here_ = 0;
};

}  // namespace

TrainSummary train(const Config& config, Backend& backend, const TrainOptions& options) {
  if (config.data.train.empty()) throw Error(ErrorCode::kConfig, "data.train: missing; expected a file name pattern of token shards");
  return Trainer(config, backend, options).run();
}

}  // namespace relume
