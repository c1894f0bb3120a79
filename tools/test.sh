#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests.
#   tools/test.sh [PRESET]        default cpu-release; also cpu-debug, cpu-asan, cpu-tsan
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packages.sh
preset=${1:-cpu-release}
packages=("${RELUME_BUILD_PACKAGES[@]}" "${RELUME_TEST_PACKAGES[@]}")
[ "$preset" = cpu-tsan ] && packages+=(clang libomp-dev)
ensure_packages "${packages[@]}"

cmake --preset "$preset" -DRELUME_TESTS=ON >/dev/null
cmake --build --preset "$preset"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1}
ctest --preset "$preset" -j "$(nproc)"
