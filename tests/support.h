// What several tests need: a tape that can be run, and access to what it computed.
#pragma once
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "cuda_emu/copy_on_stream.h"
#include "relume/base/error.h"
#include "relume/io/safetensors.h"
#include "relume/model/llama.h"
#include "relume/plan/executor.h"

namespace relume::test {

inline std::string data_path(const std::string& name) { return std::string(RELUME_TEST_DATA) + "/" + name; }
inline std::string source_path(const std::string& name) { return std::string(RELUME_SOURCE_DIR) + "/" + name; }

/// An op of the tests' own: copies a planned value into a persistent one, so that it can be read after the run.
inline const OpDef kStore{
    "store",
    [](const InferContext& c) -> std::vector<OutputSpec> { return {{.shape = c.shape(1), .dtype = c.dtype(1), .alias = 1}}; },
    nullptr,
    [](const NodeContext&) { return Cost{}; },
    [](const NodeContext& n) {
      if (n.stream.handle)
        copy_on_stream(n.out[0].data, n.in[0].data, n.in[0].bytes(), n.stream);
      else
        std::memcpy(n.out[0].data, n.in[0].data, static_cast<std::size_t>(n.in[0].bytes()));
    },
};

/// A tape with memory. Declare inputs, record, then start(); after that write, run, read.
class Bench {
 public:
  explicit Bench(const CpuOptions& options = {}) : Bench(make_cpu_backend(options)) {}
  explicit Bench(std::unique_ptr<Backend> backend) : backend_(std::move(backend)), memory_(*backend_) {}

  Tape tape;

  Tensor input(const std::string& name, Shape shape, DType dtype, Role role = Role::kInput) {
    return tape.persistent(name, shape, dtype, role);
  }
  /// A parameter whose gradient accumulates in "d NAME".
  Tensor parameter(const std::string& name, Shape shape, DType dtype) {
    const Tensor w = tape.persistent(name, shape, dtype, Role::kParameter);
    tape.set_accumulator(w, tape.persistent("d " + name, shape, accumulation_dtype(dtype), Role::kGradient));
    return w;
  }
  /// Makes the value readable as `name` after a run.
  void keep(Tensor t, const std::string& name) {
    tape.emit(kStore, {t, tape.persistent(name, t.shape(), t.dtype(), Role::kInput)});
  }
  void start(bool poison = true) {
    plan_ = make_plan(tape, backend_->kernels());
    memory_.add(tape, plan_);
    memory_.allocate();
    executor_ = std::make_unique<Executor>(tape, plan_, memory_, poison && !backend_->stream().handle);  // poison needs host memory
  }
  void run() {
    executor_->run_micro_batch();
    executor_->run_update();
  }
  [[nodiscard]] Executor& executor() { return *executor_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] Memory& memory() { return memory_; }
  [[nodiscard]] Backend& backend() { return *backend_; }

  /// Reads and writes values of any floating dtype as doubles; bf16 is truncated, so write what it can hold.
  void write_as(DType dtype, const std::string& name, const std::vector<double>& values) {
    if (dtype == DType::f64) return write(name, values);
    const std::vector<float> f(values.begin(), values.end());
    if (dtype == DType::f32) return write(name, f);
    std::vector<std::uint16_t> upper;
    for (float x : f) upper.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
    write(name, upper);
  }
  std::vector<double> read_as(DType dtype, const std::string& name, std::int64_t count) const {
    if (dtype == DType::f64) return read<double>(name, count);
    std::vector<double> values;
    if (dtype == DType::f32)
      for (float x : read<float>(name, count)) values.push_back(static_cast<double>(x));
    else
      for (std::uint16_t x : read<std::uint16_t>(name, count)) values.push_back(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16)));
    return values;
  }

  template <class T>
  void write(const std::string& name, const std::vector<T>& values) {
    memory_.write(name, values.data(), static_cast<std::int64_t>(values.size()));
  }
  template <class T>
  std::vector<T> read(const std::string& name, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    memory_.read(name, values.data(), count);
    return values;
  }

 private:
  std::unique_ptr<Backend> backend_;
  Memory memory_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
};

/// ||a - b|| / ||b||; 1e300 if anything is not finite.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0, norm = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double error = std::sqrt(difference / std::max(norm, 1e-300));
  return std::isfinite(error) ? error : 1e300;
}

template <class T = double>
std::vector<T> random_values(std::int64_t n, unsigned seed, double scale = 1.0) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) v = static_cast<T>(normal(random));
  return values;
}

/// Values that bf16 holds exactly.
inline std::vector<double> coarse_values(std::int64_t n, unsigned seed, double scale = 1.0) {
  std::vector<double> values;
  for (float x : random_values<float>(n, seed, scale)) values.push_back(static_cast<double>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xFFFF0000u)));
  return values;
}

inline std::vector<float> read_f32(const SafetensorsFile& file, const std::string& name) {
  std::vector<float> values(static_cast<std::size_t>(file.entries().at(name).elements()));
  file.copy(name, "F32", static_cast<std::int64_t>(values.size()), values.data());
  return values;
}

inline std::vector<std::int32_t> read_i32(const SafetensorsFile& file, const std::string& name) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(file.entries().at(name).elements()));
  file.copy(name, "I32", static_cast<std::int64_t>(values.size()), values.data());
  return values;
}

/// The message of the Error that `f` throws; empty if it throws none.
template <class F>
std::string error_if_any(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// The same; fails the test if it throws none.
template <class F>
std::string error_of(F&& f) {
  const std::string message = error_if_any(std::forward<F>(f));
  if (message.empty()) FAIL("no error was thrown");
  return message;
}

}  // namespace relume::test
