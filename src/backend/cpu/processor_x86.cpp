#include <cpuid.h>

#include "kernel_tables.h"

namespace relume::cpu {

namespace {

/// Processors with AMX multiply bf16 in tiles, through oneDNN; their vdpbf16ps is slower than their fp32 FMA, so the kernels of
/// our own that it serves are better built for avx512.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1u);
}

}  // namespace

bool processor_multiplies_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16");
}

bool processor_supports(std::string_view isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  if (isa == "avx512_bf16") return avx512 && __builtin_cpu_supports("avx512bf16") && !has_amx();
  if (isa == "avx512") return avx512;
  if (isa == "avx2") return avx2;
  return isa == "baseline";
}

}  // namespace relume::cpu
