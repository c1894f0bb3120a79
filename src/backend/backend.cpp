#include "relume/backend/backend.h"

#include <fmt/format.h>

#include "relume/base/error.h"

namespace relume {

void* Backend::allocate(std::int64_t bytes) {
  if (in_step_)
    throw Error(ErrorCode::kRuntime, fmt::format("[{} backend] {} bytes asked for inside a step; a kernel must declare them as workspace", name(), bytes));
  return allocate_memory(bytes);
}

}  // namespace relume
