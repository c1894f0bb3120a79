#!/usr/bin/env bash
# Asks cuDNN, on a machine without a GPU, whether it plans relume's attention graphs for an H200, and with how much workspace.
# cuDNN plans for a described device if it finds a driver library that answers a few calls; this builds one that answers just those.
#   tools/cudnn_plans.sh          FAKE_DRIVER_TRACE=1 also prints the names of the kernels it builds
set -euo pipefail
cd "$(dirname "$0")/.."
cuda=${CUDA_HOME:-/usr/local/cuda}
stub=$cuda/lib64/stubs/libcuda.so
[ -e "$stub" ] || { echo "error: $stub: not found; set CUDA_HOME" >&2; exit 2; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cat >"$out/driver.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
static void trace(const char* name) { if (getenv("FAKE_DRIVER_TRACE")) fprintf(stderr, "driver: %s\n", name); }
int cuLibraryLoadData(void** library, const void* code) { *library = (void*)code; return 0; }
int cuLibraryUnload(void* library) { return 0; }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) { trace(name); *kernel = library; return 0; }
int cuKernelGetFunction(void** function, void* kernel) { *function = kernel; return 0; }
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) { return 0; }
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) { *value = 0; return 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
C
# Everything else answers CUDA_ERROR_STUB_LIBRARY, as the toolkit's own stub does.
nm -D --defined-only "$stub" | awk '$2 == "T" && $3 ~ /^cu/ { print $3 }' | grep -vwE "$(sed -n 's/^int \(cu[A-Za-z0-9]*\)(.*/\1/p' "$out/driver.c" | paste -sd'|')" |
  sed 's/.*/int &(void) { return 34; }/' >>"$out/driver.c"
gcc -w -shared -fPIC -o "$out/libcuda.so.1" "$out/driver.c" -Wl,-soname,libcuda.so.1
g++ -std=c++20 -O1 -Iinclude -Isrc/backend/cuda -I"$cuda/include" tools/cudnn_plans.cpp src/backend/cuda/cudnn_graph.cpp src/base/error.cpp \
  -o "$out/plans" -L"$cuda/lib64" -lcudnn -lfmt
LD_LIBRARY_PATH=$out:$cuda/lib64:${LD_LIBRARY_PATH:-} "$out/plans"
