#include "kernel_tables.h"

namespace relume::cpu {

bool processor_multiplies_bf16() { return false; }

bool processor_supports(std::string_view isa) { return isa == "baseline"; }

}  // namespace relume::cpu
