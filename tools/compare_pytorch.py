#!/usr/bin/env python3
"""relume against PyTorch on this machine: alternating runs, medians, spread and ratio, as the table of docs/performance.md.

  tools/compare_pytorch.py --python /path/to/venv/bin/python [--rows 11m,488m] [--rounds 5] [--write]

The Python given needs torch (pip install torch in a virtual environment outside the checkout). Each round runs both sides once,
in turn; a row's figure is the median over rounds of each process's median step. --write replaces the table in
docs/performance.md. Slow: a round of the 488m rows takes about eight minutes.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- compare_pytorch begin -->", "<!-- compare_pytorch end -->"
# shape, batch, sequence, precision, relume policy, PyTorch recompute, PyTorch compile, steps, warm-up
ROWS = [
    ("11m", 8, 256, "fp32", "store", "none", False, 6, 2),
    ("11m", 8, 256, "fp32", "store", "none", True, 6, 2),
    ("11m", 8, 256, "fp32", "exact", "block", False, 6, 2),
    ("11m", 8, 256, "fp32", "greedy", "block", False, 6, 2),
    ("488m", 2, 512, "fp32", "store", "none", False, 2, 1),
    ("488m", 2, 512, "fp32", "exact", "block", False, 2, 1),
    ("488m", 2, 512, "fp32", "greedy", "block", False, 2, 1),
]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_PROC_BIND": "true"})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def processor():
    with open("/proc/cpuinfo") as f:
        facts = dict(line.strip().split(":", 1) for line in f if ":" in line)
    facts = {k.strip(): v.strip() for k, v in facts.items()}
    features = [x for x in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if x in facts.get("flags", "").split()]
    return f"{facts.get('model name')}, family {facts.get('cpu family')} model {facts.get('model')}, {os.cpu_count()} cores, {features[0] if features else 'sse'}"


def span(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", required=True)
    p.add_argument("--relume", default=os.path.join(ROOT, "build/cpu-release/relume"))
    p.add_argument("--rows", default="11m,488m")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    lines = ["| shape, batch × tokens, dtype | relume | PyTorch | relume tok/s | PyTorch tok/s | ratio | relume MFU, HFU | peak RSS relume, PyTorch |",
             "|---|---|---|---|---|---|---|---|"]
    for shape, batch, seq, precision, policy, recompute, compiled, steps, warmup in ROWS:
        if shape not in a.rows.split(","):
            continue
        common = ["--shape", shape, "--batch", str(batch), "--seq", str(seq), "--steps", str(steps), "--warmup", str(warmup), "--precision", precision]
        ours, theirs = [], []
        for i in range(a.rounds):
            ours.append(run([a.relume, "bench", "step", *common, "--recompute", policy, "--json"]))
            theirs.append(run([a.python, os.path.join(ROOT, "tools/pytorch_step.py"), *common, "--recompute", recompute, *(["--compile"] if compiled else [])]))
            print(f"{shape} {precision} {policy} round {i + 1}/{a.rounds}: {ours[-1]['tok_per_s']:.1f} against {theirs[-1]['tok_per_s']:.1f}", file=sys.stderr)
        speed = lambda runs: [r["tok_per_s"] for r in runs]
        ratios = [x / y for x, y in zip(speed(ours), speed(theirs))]
        lines.append(f"| {shape}, {batch} × {seq}, {precision} | {policy} | {'compile' if compiled else 'eager'}, recompute {recompute} | {span(speed(ours))} | {span(speed(theirs))} "
                     f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) | {100 * statistics.median(r['mfu'] for r in ours):.0f} %, "
                     f"{100 * statistics.median(r['hfu'] for r in ours):.0f} % | {max(r['peak_rss_mib'] for r in ours)}, {max(r['peak_rss_mib'] for r in theirs)} MiB |")
    peak = statistics.median(r["peak_flops"] for r in ours) / 1e9
    lines += ["", f"`tools/compare_pytorch.py --rounds {a.rounds} --rows {a.rows}`, {ours[0]['framework']}, {theirs[0]['framework']}, {processor()}, "
              f"fp32 matrix product at start-up {peak:.0f} GFLOP/s, {datetime.date.today()}. Medians over rounds, (min–max)."]
    table = "\n".join(lines)
    print(table)
    if a.write:
        path = os.path.join(ROOT, "docs/performance.md")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text[:text.index(BEGIN)] + BEGIN + "\n" + table + "\n" + text[text.index(END):])


main()
