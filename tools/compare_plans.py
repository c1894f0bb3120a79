#!/usr/bin/env python3
"""Plans that the planner chose against storing everything: predicted and measured overhead, as a table of docs/performance.md.

  tools/compare_plans.py [--rows 11m:fp32:8x256,488m:bf16:2x512] [--shares 0.75,0.5,0.3,0.15] [--rounds 5] [--steps 6] [--write]

A share is of the activation memory (the arena) that storing everything takes. A round runs storing everything and every share once,
in turn; overheads are medians over rounds of the ratio within the round, from each process's median step.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

from compare_pytorch import ROOT, processor

BEGIN, END = "<!-- compare_plans begin -->", "<!-- compare_plans end -->"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_PROC_BIND": "true"})
    if done.returncode == 3:  # no plan is that small
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--relume", default=os.path.join(ROOT, "build/cpu-release/relume"))
    p.add_argument("--rows", default="11m:fp32:8x256,11m:bf16:8x256,488m:bf16:2x512")
    p.add_argument("--shares", default="0.75,0.5,0.3,0.15")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    lines = ["| shape, dtype, batch × tokens | activations | arena | planned, all | predicted | measured | difference, points |", "|---|---|---|---|---|---|---|"]
    mib = lambda b: f"{b / 2**20:.0f} MiB"
    frameworks = set()
    for row in a.rows.split(","):
        shape, precision, size = row.split(":")
        batch, seq = size.split("x")
        steps = a.steps if shape != "488m" else 2
        base = [a.relume, "bench", "step", "--shape", shape, "--batch", batch, "--seq", seq, "--precision", precision, "--steps", str(steps), "--warmup", "1", "--json"]
        commands = {"store": [*base, "--recompute", "store"]}
        for share in a.shares.split(","):
            commands[share] = [*base, "--recompute", "auto", "--activations", share]
        runs = {name: [] for name in commands}
        for i in range(a.rounds):
            for name, command in commands.items():
                runs[name].append(run(command))
            print(f"{row} round {i + 1}/{a.rounds}: " + ", ".join(f"{name} {r[-1]['step_s'] * 1e3:.1f} ms" for name, r in runs.items() if r[-1]), file=sys.stderr)
        frameworks.update(r["framework"] for rows in runs.values() for r in rows if r)
        store = runs["store"]
        for name, rows in runs.items():
            if name == "store":
                lines.append(f"| {shape}, {precision}, {batch} × {seq} | all | {mib(rows[0]['arena_bytes'])} | {mib(rows[0]['planned_bytes'])} | | | |")
                continue
            if rows[0] is None:
                lines.append(f"| {shape}, {precision}, {batch} × {seq} | {100 * float(name):.0f} % | less than any plan needs | | | | |")
                continue
            predicted = 100 * (rows[0]["predicted_step_s"] / store[0]["predicted_step_s"] - 1)
            overheads = [100 * (x["step_s"] / y["step_s"] - 1) for x, y in zip(rows, store)]
            measured = statistics.median(overheads)
            lines.append(f"| {shape}, {precision}, {batch} × {seq} | {100 * float(name):.0f} % | {mib(rows[0]['arena_bytes'])} | {mib(rows[0]['planned_bytes'])} "
                         f"| {predicted:+.1f} % | {measured:+.1f} % ({min(overheads):+.1f} to {max(overheads):+.1f}) | {measured - predicted:+.1f} |")
    lines += ["", f"`tools/compare_plans.py --rows {a.rows} --rounds {a.rounds}`, {', '.join(sorted(frameworks))}, {processor()}, {datetime.date.today()}."]
    table = "\n".join(lines)
    print(table)
    if a.write:
        path = os.path.join(ROOT, "docs/performance.md")
        with open(path) as f:
            text = f.read()
        with open(path, "w") as f:
            f.write(text[:text.index(BEGIN)] + BEGIN + "\n" + table + "\n" + text[text.index(END):])


main()
