#pragma once
#include <span>
#include <string>
#include <string_view>

#include "relume/backend/kernels.h"

namespace relume::cpu {

/// The kernels as compiled for one instruction set.
struct IsaTable {
  std::string_view isa;
  const KernelTable* kernels;
};

/// All instruction sets of this build, from the plainest to the widest.
[[nodiscard]] std::span<const IsaTable> isa_tables();
/// Whether this processor has instructions for products of bf16 (AVX512_BF16 or AMX), which oneDNN then uses.
[[nodiscard]] bool processor_multiplies_bf16();
/// Version of the library that forms matrix products (kernels/matmul_onednn.cpp).
[[nodiscard]] std::string onednn_version();
/// Whether this processor runs code compiled for `isa`.
[[nodiscard]] bool processor_supports(std::string_view isa);

}  // namespace relume::cpu
