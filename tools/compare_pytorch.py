#!/usr/bin/env python3
"""relume against PyTorch on this machine: alternating runs, medians, spread and ratio, as the table of docs/performance.md.

  tools/compare_pytorch.py --python /path/to/venv/bin/python [--rows 11m,488m] [--precisions fp32,bf16] [--rounds 5] [--write]

The Python given needs torch (pip install torch in a virtual environment outside the checkout). A round runs every
policy and every form of PyTorch once, in turn; a figure is the median over rounds of each process's median step, a ratio the median
of the ratios within rounds. greedy and sketch recompute 2/3 of the components of both blocks. --write replaces the table in
docs/performance.md. Slow: a round takes about ten minutes.
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
# shape -> batch, sequence, timed steps, warm-up, whether PyTorch also runs compiled
SHAPES = {"11m": (8, 256, 6, 2, True), "488m": (2, 512, 1, 1, False)}


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


def write_table(begin, end, table):
    """Replaces what is between two marks of docs/performance.md."""
    path = os.path.join(ROOT, "docs/performance.md")
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text[:text.index(begin)] + begin + "\n" + table + "\n" + text[text.index(end):])


def span(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", required=True)
    p.add_argument("--relume", default=os.path.join(ROOT, "build/cpu-release/relume"))
    p.add_argument("--rows", default="11m,488m")
    p.add_argument("--precisions", default="fp32,bf16")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    peaks, frameworks = {}, set()
    lines = ["| shape, batch × tokens, dtype | relume | against | relume tok/s | against, tok/s | ratio | relume MFU, HFU | peak RSS relume, against |",
             "|---|---|---|---|---|---|---|---|"]
    for shape in a.rows.split(","):
        for precision in a.precisions.split(","):
            batch, seq, steps, warmup, compiled = SHAPES[shape]
            common = ["--shape", shape, "--batch", str(batch), "--seq", str(seq), "--steps", str(steps), "--warmup", str(warmup), "--precision", precision]
            commands = {}  # everything that runs in a round, in turn
            for policy in ("store", "exact", "greedy", "sketch"):
                commands["relume " + policy] = [a.relume, "bench", "step", *common, "--recompute", policy, "--json"]
            torch_step = [a.python, os.path.join(ROOT, "tools/pytorch_step.py"), *common]
            commands["PyTorch eager"] = [*torch_step, "--recompute", "none"]
            commands["PyTorch eager, block recompute"] = [*torch_step, "--recompute", "block"]
            if compiled:
                commands["PyTorch compile"] = [*torch_step, "--recompute", "none", "--compile"]
            runs = {name: [] for name in commands}
            for i in range(a.rounds):
                for name, command in commands.items():
                    runs[name].append(run(command))
                print(f"{shape} {precision} round {i + 1}/{a.rounds}: " + ", ".join(f"{name} {r[-1]['tok_per_s']:.1f}" for name, r in runs.items()), file=sys.stderr)
            pairs = [("relume store", "PyTorch eager"), ("relume exact", "PyTorch eager, block recompute"), ("relume greedy", "relume exact"), ("relume sketch", "relume exact")]
            if compiled:
                pairs.insert(1, ("relume store", "PyTorch compile"))
            for left, right in pairs:
                ours, theirs = runs[left], runs[right]
                speed = lambda rows: [r["tok_per_s"] for r in rows]
                ratios = [x / y for x, y in zip(speed(ours), speed(theirs))]
                lines.append(f"| {shape}, {batch} × {seq}, {precision} | {left.split()[1]} | {right} | {span(speed(ours))} | {span(speed(theirs))} "
                             f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) | {100 * statistics.median(r['mfu'] for r in ours):.0f} %, "
                             f"{100 * statistics.median(r['hfu'] for r in ours):.0f} % | {max(r['peak_rss_mib'] for r in ours)}, {max(r['peak_rss_mib'] for r in theirs)} MiB |")
            peaks.setdefault(precision, []).extend(r["peak_flops"] / 1e9 for name, rows in runs.items() if name.startswith("relume") for r in rows)
            frameworks.update(r["framework"] for rows in runs.values() for r in rows)
    lines += ["", f"`tools/compare_pytorch.py --rounds {a.rounds} --rows {a.rows} --precisions {a.precisions}`, {', '.join(sorted(frameworks))}, {processor()}, "
              + ", ".join(f"{precision} matrix product at start-up {statistics.median(v):.0f} GFLOP/s" for precision, v in peaks.items())
              + f", {datetime.date.today()}. Medians over rounds, (min–max); a ratio is the median of the rounds' ratios."]
    table = "\n".join(lines)
    print(table)
    if a.write:
        write_table(BEGIN, END, table)


if __name__ == "__main__":
    main()
