#!/usr/bin/env bash
# Builds the fuzz targets and runs each for some seconds, beginning with tests/fuzz/corpus.
#   tools/fuzz.sh [SECONDS [TARGET...]]     default 20 seconds of each
# Inputs that widen the coverage are kept in build/fuzz/corpus; a finding is written there too, and ends the run with its report.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
[ $# -gt 0 ] && shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors tokenizer model_config shard checkpoint)
source tools/packages.sh
ensure_packages "${RELUME_BUILD_PACKAGES[@]}" clang libomp-dev
cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target "${targets[@]/#/fuzz_}"
for target in "${targets[@]}"; do
  found=build/fuzz/corpus/$target
  mkdir -p "$found"
  echo "== $target: $seconds s"
  # Leak detection at the end of the run only: it stops the world.
  if ! build/fuzz/tests/fuzz/fuzz_"$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
       -artifact_prefix="$found/finding-" "$found" "tests/fuzz/corpus/$target" >"$found.log" 2>&1; then
    tail -n 40 "$found.log"
    exit 1
  fi
  grep -E "stat::number_of_executed_units|stat::new_units_added" "$found.log"
done
