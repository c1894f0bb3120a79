// The whole configuration of a run as plain structs with their defaults, and the one parser.
#pragma once
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace relume {

/// Rotary frequencies for contexts longer than the model was first trained on.
struct RopeScaling {
  std::string rope_type = "default";  ///< or "llama3": low frequencies divided by `factor`, high ones kept, blended between
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

/// Hugging Face names. Zero means: must be given.
struct ModelConfig {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;      ///< 0: as many as attention heads
  std::int64_t head_dim = 0;                 ///< 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;

  [[nodiscard]] std::int64_t kv_heads() const { return num_key_value_heads ? num_key_value_heads : num_attention_heads; }
  [[nodiscard]] std::int64_t head_size() const { return head_dim ? head_dim : hidden_size / num_attention_heads; }
  [[nodiscard]] std::int64_t query_width() const { return num_attention_heads * head_size(); }
  [[nodiscard]] std::int64_t kv_width() const { return kv_heads() * head_size(); }
};

/// How the backward of one block is formed, as the config says it.
struct BlockPolicy {
  std::string policy = "store";
  double fraction = 2.0 / 3.0;     ///< greedy, sketch: share of components recomputed
  double min_probability = 0.35;   ///< sketch: no component is drawn with less
  std::vector<std::string> keep = {};  ///< exact: values saved in addition to the block input
  [[nodiscard]] bool approximate() const { return policy == "greedy" || policy == "sketch"; }
  [[nodiscard]] bool automatic() const { return policy == "auto"; }
  /// How many of n components greedy and sketch recompute.
  [[nodiscard]] std::int64_t selected(std::int64_t n) const { return std::llround(fraction * static_cast<double>(n)); }
  bool operator==(const BlockPolicy&) const = default;
};

struct LayerPolicy {
  BlockPolicy attention, ffn;
  bool keep_mid = true;  ///< false (layer-level "exact" with "keep" lacking "mid"): recompute the whole layer from its input
  [[nodiscard]] bool automatic() const { return attention.automatic() || ffn.automatic(); }
  bool operator==(const LayerPolicy&) const = default;
};

struct RematConfig {
  LayerPolicy defaults;
  /// "0-1" -> what differs from the default there, as written; ranges do not overlap.
  struct Range {
    std::int64_t first = 0, last = 0;
    LayerPolicy policy;
  };
  std::vector<Range> ranges;
  [[nodiscard]] const LayerPolicy& layer(std::int64_t l) const;
  /// Whether the planner chooses something.
  [[nodiscard]] bool automatic() const;
};

/// What plans must keep to, and what "auto" may choose.
struct MemoryConfig {
  std::int64_t budget = 0;          ///< bytes of persistent values and arena; 0 = no limit
  std::vector<std::string> allow;   ///< approximate policies that auto may choose
  double max_variance = 0;          ///< allow: bound on the relative squared error of a block's gradient, averaged over all blocks
  bool fine = false;                ///< auto also chooses among all sets of kept values
  double matmul_flops = 0, attention_flops = 0, bandwidth = 0;  ///< of the device, a second; 0 = measured once
};

struct DataConfig {
  std::string train, validation;  ///< file name patterns of token shards
  std::string format = "auto";    ///< of the shards: "auto" (they have a header) or "raw-u16"
  std::string tokenizer;          ///< SentencePiece model or tokenizer.json; copied into checkpoints
  std::int64_t sequence_length = 1024;
  bool shuffle = true;
};

struct BatchConfig {
  std::int64_t micro_batch_size = 8;
  std::int64_t tokens_per_step = 0;  ///< 0: one micro-batch
};

struct OptimizerConfig {
  double learning_rate = 6e-4;
  std::vector<double> betas{0.9, 0.95};
  double eps = 1e-8, weight_decay = 0.1;
  double grad_clip = 1.0;  ///< global L2 norm; 0 = off
};

struct ScheduleConfig {
  std::string name = "cosine";
  std::int64_t warmup_steps = 0, steps = 1000;
  double final_fraction = 0.1;  ///< of learning_rate, reached in the last step
  double decay_fraction = 0.2;  ///< wsd: share of the steps in which the rate falls
};

struct EvaluationConfig {
  std::int64_t every_steps = 250;  ///< 0: never during training
  std::int64_t tokens = 1048576;   ///< at most this many validation targets
  std::int64_t samples = 0;        ///< beginnings of validation windows to continue at each evaluation
};

struct AuditConfig {
  std::int64_t every_steps = 0;  ///< log what approximate policies select every so many steps; 0: never
};

struct CheckpointConfig {
  std::int64_t every_steps = 500;  ///< 0: only at the end
  std::int64_t keep_last = 3;      ///< older ones are deleted; 0 = keep all
};

struct Config {
  std::string model_path;  ///< "model": "DIR" takes the shape (not the weights) of a Hugging Face directory
  ModelConfig model;
  std::string init;        ///< Hugging Face directory whose weights training starts from
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  std::string precision = "fp32";
  RematConfig remat;
  MemoryConfig memory;
  AuditConfig audit;
  EvaluationConfig evaluation;
  CheckpointConfig checkpoint;
  std::string device = "auto";
  std::int64_t threads = 0;
  std::int64_t seed = 1;
  std::string output = "runs/relume";

  [[nodiscard]] std::int64_t micro_batch_tokens() const { return batch.micro_batch_size * data.sequence_length; }
  [[nodiscard]] std::int64_t micro_batches() const {
    return batch.tokens_per_step ? batch.tokens_per_step / micro_batch_tokens() : 1;
  }
  [[nodiscard]] std::int64_t tokens_per_step() const { return micro_batches() * micro_batch_tokens(); }
};

/// Reads and checks a config file; `overrides` are "a.b.c=value" as --set takes them. `//` comments are allowed.
/// Throws kConfig or kFile with file, JSON path, expected, found and hint.
[[nodiscard]] Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});
/// The same from text; `origin` names it in messages.
[[nodiscard]] Config parse_config(const std::string& text, const std::string& origin, const std::vector<std::string>& overrides = {});
/// Every field with its value; parse_config(to_json(c)) gives c.
[[nodiscard]] std::string to_json(const Config& config);
/// Shape of a Hugging Face config.json of a Llama. What relume does not implement is refused by name.
[[nodiscard]] ModelConfig parse_model_config(const std::string& text, const std::string& origin);
/// JSON Schema (draft 2020-12), and a table for people, from the same description of the fields.
[[nodiscard]] std::string config_schema();
[[nodiscard]] std::string config_markdown();

/// What relume takes from the environment.
struct Environment {
  std::string isa;        ///< RELUME_ISA: a plainer instruction set than the processor has
  bool colour = true;     ///< not NO_COLOR, not TERM=dumb
  std::string cache;      ///< directory for what is measured once: XDG_CACHE_HOME or HOME/.cache, /relume; empty = none
};
[[nodiscard]] Environment read_environment();

/// Names of the values a block can keep, by block kind; "mid" belongs to the layer.
[[nodiscard]] const std::vector<std::string>& block_value_names(std::string_view kind);

}  // namespace relume
