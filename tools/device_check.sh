#!/usr/bin/env bash
# Everything to be learnt from a machine with a GPU, in one go of at most eight minutes: builds, compares with the CPU, trains, measures.
#   tools/device_check.sh [OUTPUT_DIRECTORY]       default device-check
# Each part leaves a file NAME.done with what it found; parts that are done are passed over, so that a run that was cut short goes on
# where it stopped. A part that fails is recorded (NAME.failed) and does not stop the others. Ends with results.json and a table.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-device-check}
mkdir -p "$out"
deadline=$((SECONDS + 480))
export XDG_CACHE_HOME=$PWD/$out/cache
build=build/device
relume=$build/relume

part() {  # name, most seconds, command...
  local name=$1 most=$2
  shift 2
  [ -e "$out/$name.done" ] && { echo "$name: done before"; return 0; }
  local left=$((deadline - SECONDS))
  [ $left -gt 5 ] || { echo "$name: no time left"; return 1; }
  [ $most -lt $left ] || most=$left
  echo "$name ..."
  if timeout "$most" "$@" >"$out/$name.log" 2>&1; then
    mv "$out/$name.log" "$out/$name.done"
    rm -f "$out/$name.failed"
  else
    echo "$name: failed with $? (see $out/$name.failed)"
    mv "$out/$name.log" "$out/$name.failed"
    return 1
  fi
}

part device 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
part build 300 bash -c "cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRELUME_CUDA=ON -DRELUME_TESTS=OFF && cmake --build $build" || exit 1
part version 20 "$relume" --version
steps() { "$relume" bench step --device cuda --shape "$1" --batch "$2" --seq "$3" --precision "$4" --recompute "$5" --steps "$6" --warmup 3 --json; }
export relume
export -f steps
# the same steps on both: losses must agree
part compare-cpu 60 "$relume" bench step --device cpu --shape 11m --batch 2 --seq 128 --precision fp32 --recompute store --steps 3 --warmup 0 --json
part compare-cuda 60 "$relume" bench step --device cuda --shape 11m --batch 2 --seq 128 --precision fp32 --recompute store --steps 3 --warmup 0 --json
for policy in store exact greedy sketch; do
  part "488m-16-$policy" 60 bash -c "steps 488m 16 1024 bf16 $policy 10"
done
for policy in store exact greedy sketch; do
  part "488m-32-$policy" 60 bash -c "steps 488m 32 1024 bf16 $policy 6"
done
part ops 60 "$relume" bench ops --device cuda --shape 488m --batch 16 --seq 1024 --precision bf16 --steps 3 --warmup 1 --json
part memory 60 bash -c "$relume bench step --device cuda --shape 488m --batch 16 --seq 1024 --precision bf16 --recompute exact --steps 20 --warmup 0 --json >/dev/null & p=\$!; most=0; while kill -0 \$p 2>/dev/null; do now=\$(nvidia-smi --query-compute-apps=used_memory --format=csv,noheader,nounits | sort -n | tail -1); [ \"\${now:-0}\" -gt \$most ] && most=\$now; sleep 0.3; done; echo \"{\\\"used_mib\\\": \$most}\""
[ -e data/corpus/tokenizer.model ] && part quickstart 120 "$relume" train configs/quickstart.json --set device=cuda --set output="$out/quickstart" --set schedule.steps=1000 --json
python3 - "$out" <<'PY'
import glob, json, os, sys
out = sys.argv[1]
results = {}
for path in sorted(glob.glob(os.path.join(out, "*.done")) + glob.glob(os.path.join(out, "*.failed"))):
    name, state = os.path.basename(path).rsplit(".", 1)
    text = open(path).read()
    try:
        results[name] = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        results[name] = {state: text[-2000:]}
json.dump(results, open(os.path.join(out, "results.json"), "w"), indent=1)
a, b = results.get("compare-cpu", {}).get("loss"), results.get("compare-cuda", {}).get("loss")
if a and b:
    print("loss on the CPU %s, on the device %s: differ by at most %.2g" % (a, b, max(abs(x - y) for x, y in zip(a, b))))
print("%-16s %12s %8s %8s %14s" % ("488m, T 1024", "tok/s", "MFU", "HFU", "planned"))
for batch in (16, 32):
    for policy in ("store", "exact", "greedy", "sketch"):
        r = results.get("488m-%d-%s" % (batch, policy), {})
        if "tok_per_s" in r:
            print("%-16s %12.0f %7.1f%% %7.1f%% %10.2f GiB" % ("%d %s" % (batch, policy), r["tok_per_s"], 100 * r["mfu"], 100 * r["hfu"], r["planned_bytes"] / 2**30))
print("everything in", os.path.join(out, "results.json"))
PY
