#include "kernel_tables.h"

namespace relume::cpu {

bool processor_supports(std::string_view isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  if (isa == "avx512_bf16") return avx512 && __builtin_cpu_supports("avx512bf16");
  if (isa == "avx512") return avx512;
  if (isa == "avx2") return avx2;
  return isa == "baseline";
}

}  // namespace relume::cpu
