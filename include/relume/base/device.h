// Functions that kernels of every device and the host share are marked RELUME_DEVICE.
#pragma once

#ifdef __CUDACC__
#define RELUME_DEVICE __host__ __device__
#else
#define RELUME_DEVICE __attribute__((always_inline))  // CPU kernels are built for several instruction sets: nothing may be shared between them
#endif
