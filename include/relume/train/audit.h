// What each approximate policy does to the gradient of each block, measured on real batches against the exact gradient.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "relume/backend/backend.h"
#include "relume/config/config.h"

namespace relume {

struct AuditOptions {
  std::vector<std::string> policies{"greedy", "sketch"};
  std::vector<double> fractions{2.0 / 3.0, 0.5};
  double min_probability = 0.35;
  std::int64_t batches = 4;   ///< micro-batches of the training data; at least 2
  std::int64_t draws = 16;    ///< of a sketch for every batch; at least 2
  std::int64_t sequences = 0; ///< of a batch; 0 = the config's micro_batch_size
  std::string from;           ///< checkpoint or Hugging Face directory with the weights; empty = the config's initial ones
};

/// One block under one policy. "gradient" is that of the block's matrices, from the same input and the same incoming gradient;
/// "dx" that of its input, without the residual path. Relative figures are over the exact gradient's squared norm (error: norm).
struct AuditRow {
  std::int64_t layer = 0;
  std::string block, policy;
  double fraction = 0;
  std::int64_t k = 0, components = 0;
  double cosine = 0, relative_error = 0;        ///< of the gradient: mean over draws; error is the root mean square
  double dx_cosine = 0, dx_relative_error = 0;
  double bias_ratio = 0, bias_ratio_error = 0;  ///< |mean of draws - exact|^2 over what independent draws leave, and its standard error over batches: 1 = unbiased; draws = deterministic
  double dx_bias_ratio = 0;
  double variance = 0, theory_variance = 0;     ///< relative, of one draw; theory: sum over components of (1/p - 1) |G|^2; greedy: what it drops, with no variance
  double adam_noise = 0;                        ///< error over the variation between batches, both divided by the mean squared gradient
  double never = 0, always = 0;                 ///< shares of components with mean probability below 2 %, above 98 %
  double flops_saved = 0, time_saved = 0;       ///< of the block's forward and backward against exact rematerialization
};

struct AuditResult {
  std::vector<AuditRow> rows;  ///< by policy, fraction, block, layer
  std::string weights, device, precision;
  std::int64_t sequences = 0, tokens = 0, batches = 0, draws = 0;
};

/// Throws kConfig, kFile as training would. `progress` gets the share done. Cost: batches forward and backward passes, then
/// batches * draws backward passes of every block for every sketched fraction.
[[nodiscard]] AuditResult audit(const Config& config, Backend& backend, const AuditOptions& options, const std::function<void(double share)>& progress = {});

[[nodiscard]] std::string audit_json(const AuditResult& result);
/// Throws kFile if the text is no such JSON.
[[nodiscard]] AuditResult read_audit(const std::string& json, const std::string& origin);
/// Means over layers with the worst layer; with `all` every block.
[[nodiscard]] std::string audit_table(const AuditResult& result, bool all);
/// Relative error of every block as a heat map over layers.
[[nodiscard]] std::string audit_svg(const AuditResult& result);

}  // namespace relume
