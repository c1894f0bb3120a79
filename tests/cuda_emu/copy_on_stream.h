#pragma once
#include <cstdint>

#include "relume/backend/kernels.h"

namespace relume::test {

/// Copies on a stream of a device whose memory the host cannot write while work is queued.
void copy_on_stream(void* to, const void* from, std::int64_t bytes, Stream stream);

}  // namespace relume::test
