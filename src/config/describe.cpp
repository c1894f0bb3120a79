// Every field of the config: key, bounds, and what it means. Defaults are those of the structs.
#include "field_visitor.h"

namespace relume::config {

void describe(FieldVisitor& v, ModelConfig& m) {
  v.integer("vocab_size", m.vocab_size, {.min = 1, .max = 2147483647}, "number of token ids; at least the tokenizer's");
  v.integer("hidden_size", m.hidden_size, {.min = 1}, "width of the residual stream");
  v.integer("intermediate_size", m.intermediate_size, {.min = 1}, "FFN neurons of a layer");
  v.integer("num_hidden_layers", m.num_hidden_layers, {.min = 1}, "layers");
  v.integer("num_attention_heads", m.num_attention_heads, {.min = 1}, "query heads");
  v.integer("num_key_value_heads", m.num_key_value_heads, {.min = 0}, "key and value heads; 0 = as many as query heads. Must divide num_attention_heads");
  v.integer("head_dim", m.head_dim, {.min = 0}, "size of a head; 0 = hidden_size / num_attention_heads. Even");
  v.integer("max_position_embeddings", m.max_position_embeddings, {.min = 1}, "longest sequence the model is meant for");
  v.number("rms_norm_eps", m.rms_norm_eps, {.min = 0, .min_excluded = true}, "epsilon of RMSNorm");
  v.number("rope_theta", m.rope_theta, {.min = 0, .min_excluded = true}, "base of the rotary frequencies");
  v.object("rope_scaling", "rotary frequencies for longer contexts", [&](FieldVisitor& o) {
    o.text("rope_type", m.rope_scaling.rope_type, {"default", "llama3"}, "default: none");
    o.number("factor", m.rope_scaling.factor, {.min = 1}, "llama3: what low frequencies are divided by");
    o.number("low_freq_factor", m.rope_scaling.low_freq_factor, {.min = 0, .min_excluded = true}, "llama3: frequencies with fewer turns over the original context are divided");
    o.number("high_freq_factor", m.rope_scaling.high_freq_factor, {.min = 0, .min_excluded = true}, "llama3: frequencies with more turns are kept");
    o.integer("original_max_position_embeddings", m.rope_scaling.original_max_position_embeddings, {.min = 0}, "llama3: the original context");
  });
  v.boolean("tie_word_embeddings", m.tie_word_embeddings, "the head shares the embedding table");
  v.number("initializer_range", m.initializer_range, {.min = 0}, "standard deviation of initial weights; residual projections get it divided by sqrt(2 layers)");
}

void describe(FieldVisitor& v, Config& c) {
  v.path_or_object("model", c.model_path, "shape of the model with Hugging Face names, or a Hugging Face directory to take it from",
                   [&](FieldVisitor& o) { describe(o, c.model); });
  v.text("init", c.init, {}, "Hugging Face directory whose weights training starts from; empty = random");
  v.object("data", "token shards", [&](FieldVisitor& o) {
    o.text("train", c.data.train, {}, "file name pattern of the training shards");
    o.text("validation", c.data.validation, {}, "file name pattern of the validation shards; empty = no evaluation");
    o.text("format", c.data.format, {"auto", "raw-u16"}, "auto: shards with a header (llm.c, llmq); raw-u16: uint16 tokens alone, as nanoGPT writes them");
    o.text("tokenizer", c.data.tokenizer, {}, "tokenizer (SentencePiece model or tokenizer.json) the shards were made with; copied into checkpoints");
    o.integer("sequence_length", c.data.sequence_length, {.min = 1}, "tokens of a window");
    o.boolean("shuffle", c.data.shuffle, "windows in a new order every epoch (from the seed); false: in file order");
  });
  v.object("batch", "how many tokens at once", [&](FieldVisitor& o) {
    o.integer("micro_batch_size", c.batch.micro_batch_size, {.min = 1}, "windows of one forward and backward");
    o.integer("tokens_per_step", c.batch.tokens_per_step, {.min = 0}, "tokens one optimizer step averages over, whole micro-batches; 0 = one micro-batch");
  });
  v.object("optimizer", "AdamW; decay acts on projection matrices and lm_head, not on norms and embeddings", [&](FieldVisitor& o) {
    o.number("learning_rate", c.optimizer.learning_rate, {.min = 0}, "peak rate");
    o.numbers("betas", c.optimizer.betas, 2, {.min = 0, .max = 0.999999}, "decay of the two moments");
    o.number("eps", c.optimizer.eps, {.min = 0, .min_excluded = true}, "added to the root of the second moment");
    o.number("weight_decay", c.optimizer.weight_decay, {.min = 0}, "decoupled: w -= rate * weight_decay * w");
    o.number("grad_clip", c.optimizer.grad_clip, {.min = 0}, "largest global gradient norm; 0 = no clipping");
  });
  v.object("schedule", "learning rate over the run", [&](FieldVisitor& o) {
    o.text("name", c.schedule.name, {"cosine", "linear", "wsd", "constant"}, "shape after warm-up");
    o.integer("warmup_steps", c.schedule.warmup_steps, {.min = 0}, "steps in which the rate rises linearly");
    o.integer("steps", c.schedule.steps, {.min = 1}, "optimizer steps of the run");
    o.number("final_fraction", c.schedule.final_fraction, {.min = 0, .max = 1}, "the last step's rate as a share of learning_rate");
    o.number("decay_fraction", c.schedule.decay_fraction, {.min = 0, .max = 1}, "wsd: share of the steps in which the rate falls");
  });
  v.text("precision", c.precision, {"fp32", "bf16", "auto"}, "dtype of activations and of weights in matrix products; master weights, statistics, gradients of weights and the optimizer are fp32; auto = bf16 where the processor has it");
  v.remat("remat", c.remat, "what each block keeps for backward and how its backward is formed");
  v.object("memory", "limit of a plan, and what the policy auto may choose", [&](FieldVisitor& o) {
    o.bytes("budget", c.memory.budget, "bytes for weights, gradients, optimizer, inputs and activations together, as \"16GiB\"; 0 = no limit. Needed by the policy auto");
    o.texts("allow", c.memory.allow, {"greedy", "sketch"}, "approximate policies that auto may choose, within max_variance");
    o.number("max_variance", c.memory.max_variance, {.min = 0}, "bound on the expected relative squared error of a block's gradient, averaged over all blocks, when auto may choose approximate policies");
    o.boolean("fine", c.memory.fine, "auto chooses among all sets of kept values, not only store, selective and exact");
    o.number("matmul_flops", c.memory.matmul_flops, {.min = 0}, "matrix product rate in flop/s for predicted times; 0 = measured once on the device and kept");
    o.number("attention_flops", c.memory.attention_flops, {.min = 0}, "the same for attention");
    o.number("bandwidth", c.memory.bandwidth, {.min = 0}, "bytes read and written a second; 0 = measured");
  });
  v.object("audit", "what approximate policies do to the gradient", [&](FieldVisitor& o) {
    o.integer("every_steps", c.audit.every_steps, {.min = 0}, "log how much of the scores greedy and sketch select, and which components never, every so many steps; 0 = never");
  });
  v.object("evaluation", "validation during training", [&](FieldVisitor& o) {
    o.integer("every_steps", c.evaluation.every_steps, {.min = 0}, "0 = only at the end");
    o.integer("tokens", c.evaluation.tokens, {.min = 1}, "validation targets scored, at most");
    o.integer("samples", c.evaluation.samples, {.min = 0}, "beginnings of validation windows the model continues at each evaluation, for people to read (samples.jsonl)");
  });
  v.object("checkpoint", "Hugging Face directories with optimizer state", [&](FieldVisitor& o) {
    o.integer("every_steps", c.checkpoint.every_steps, {.min = 0}, "0 = only at the end");
    o.integer("keep_last", c.checkpoint.keep_last, {.min = 0}, "older ones are deleted; 0 = keep all");
  });
  v.text("device", c.device, {"auto", "cpu", "cuda"}, "where to train; auto = a GPU if the build and the machine have one");
  v.integer("threads", c.threads, {.min = 0, .max = 4096}, "CPU threads; 0 = all cores (or OMP_NUM_THREADS)");
  v.integer("seed", c.seed, {.min = 0}, "of initial weights, data order and sketch draws");
  v.text("output", c.output, {}, "run directory");
}

}  // namespace relume::config
