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
ctest --preset "$preset" -j "$(nproc)"
