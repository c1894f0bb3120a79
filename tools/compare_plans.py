#!/usr/bin/env python3
"""Plans that the planner chose against storing everything: predicted and measured overhead, as a table of docs/performance.md.

  tools/compare_plans.py [--rows 11m:fp32:8x256,488m:bf16:2x512] [--shares 0.75,0.5,0.3,0.15] [--pairs 15] [--write]

Runs `relume bench plans` for every row: steps of a plan and of storing everything alternate in one process, an overhead is the median
over pairs. A share is of the activation memory (the arena) that storing everything takes. --write replaces the table.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys

from compare_pytorch import ROOT, processor, write_table

BEGIN, END = "<!-- compare_plans begin -->", "<!-- compare_plans end -->"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--relume", default=os.path.join(ROOT, "build/cpu-release/relume"))
    p.add_argument("--rows", default="11m:fp32:8x256,11m:bf16:8x256,488m:bf16:2x512")
    p.add_argument("--shares", default="0.75,0.5,0.3,0.15")
    p.add_argument("--pairs", type=int, default=15, help="of steps; a third of it for 488m")
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    lines = ["| shape, dtype, batch × tokens | activations | arena | planned, all | predicted | measured, median (quartiles) | difference, points |", "|---|---|---|---|---|---|---|"]
    frameworks = set()
    for row in a.rows.split(","):
        shape, precision, size = row.split(":")
        batch, seq = size.split("x")
        pairs = a.pairs if shape != "488m" else max(3, a.pairs // 3)
        command = [a.relume, "bench", "plans", "--shape", shape, "--batch", batch, "--seq", seq, "--precision", precision, "--shares", a.shares, "--steps", str(pairs),
                   "--warmup", "1", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_PROC_BIND": "true"})
        if done.returncode:
            sys.exit(done.returncode)
        r = json.loads(done.stdout.splitlines()[-1])
        frameworks.add(r["framework"])
        name = f"| {shape}, {precision}, {batch} × {seq} "
        mib = lambda b: f"{b / 2**20:.0f} MiB"
        lines.append(f"{name}| all | {mib(r['store_arena_bytes'])} | {mib(r['store_planned_bytes'])} | | | |")
        for plan in r["plans"]:
            if not plan["possible"]:
                lines.append(f"{name}| {100 * plan['share']:.0f} % | less than any plan needs | | | | |")
                continue
            predicted, measured = 100 * plan["predicted_overhead"], 100 * plan["overhead"]
            low, high = (100 * x for x in plan["overhead_quartiles"])
            lines.append(f"{name}| {100 * plan['share']:.0f} % | {mib(plan['arena_bytes'])} | {mib(plan['planned_bytes'])} | {predicted:+.1f} % "
                         f"| {measured:+.1f} % ({low:+.1f} to {high:+.1f}) | {measured - predicted:+.1f} |")
    lines += ["", f"`tools/compare_plans.py --rows {a.rows} --shares {a.shares} --pairs {a.pairs}`, {', '.join(sorted(frameworks))}, {processor()}, {datetime.date.today()}."]
    table = "\n".join(lines)
    print(table)
    if a.write:
        write_table(BEGIN, END, table)


if __name__ == "__main__":
    main()
