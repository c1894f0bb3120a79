#!/usr/bin/env bash
# Registers, spills, shared memory and occupancy of every CUDA kernel, as ptxas reports them; fails if one of the given kernels spills.
#   tools/cuda_kernels.sh [ARCHITECTURE]       default sm_90
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1:-sm_90}
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || { echo "nvcc was not found; set CUDA_HOME" >&2; exit 2; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export nvcc arch out
ls kernels/cuda/*.cu | xargs -P "$(nproc)" -I{} sh -c '"$nvcc" -std=c++20 -O3 -arch="$arch" --expt-relaxed-constexpr -Xptxas -v -Iinclude -Ikernels/cuda -Isrc/backend/cuda -c {} -o "$out/$(basename {}).o" 2>"$out/$(basename {}).log" || { cat "$out/$(basename {}).log" >&2; exit 255; }'
cat "$out"/*.log | python3 -c '
import re, subprocess, sys
text = sys.stdin.read()
names, rows = [], []
pattern = re.compile(r"Compiling entry function .(\S+). for.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers(.*?)$", re.S | re.M)
for m in pattern.finditer(text):
    shared = re.search(r"(\d+) bytes smem", m.group(6))
    names.append(m.group(1))
    rows.append((int(m.group(5)), int(m.group(3)) + int(m.group(4)), int(shared.group(1)) if shared else 0))
plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.splitlines()
print("%-78s %9s %7s %8s %s" % ("kernel", "registers", "spilled", "shared", "occupancy by registers"))
bad = []
for name, (registers, spilled, shared) in sorted(zip(plain, rows)):
    name = re.sub(r"\(anonymous namespace\)::|relume::cuda::|^void ", "", name)
    name = re.sub(r"\((?!anon).*", "", name)
    threads = 512 if "select_" in name else 128 if "rms_norm" in name or "attention" in name and "place" not in name else 256
    blocks = 65536 // (((registers + 7) // 8 * 8) * threads)
    occupancy = min(100.0, 100.0 * min(32, blocks) * threads / 2048)
    print("%-78s %9d %7d %8d %.0f %%" % (name[:78], registers, spilled, shared, occupancy))
    if spilled and not re.search(r"attention.*, 64>", name):  # heads wider than 128 are not a hot case
        bad.append(name)
if bad:
    sys.exit("spills in: " + ", ".join(bad))
'
