#!/usr/bin/env python3
"""Loss curves of the quickstart model in relume fp32, relume bf16 and PyTorch bf16 autocast, several seeds each.

  tools/compare_curves.py --python /path/to/venv/bin/python [--steps 200] [--seeds 3]

Needs torch in that Python and the quickstart's corpus (tools/quickstart.sh). All runs store everything and read the same
windows in file order; seeds give other initial weights. Prints, as the table of docs/numerics.md, the mean loss of the last
50 steps: if the spread over seeds covers the difference between precisions, bf16 costs nothing that can be seen.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = os.path.join(ROOT, "configs/quickstart.json")
TAIL = 50


def relume(steps, seed, precision):
    out = tempfile.mkdtemp(prefix="relume-curves-")
    done = subprocess.run([os.path.join(ROOT, "build/cpu-release/relume"), "train", CONFIG, "--steps", str(steps), "--set", f"precision={precision}",
                           "--set", f"seed={seed}", "--set", "data.shuffle=false", "--set", "remat={\"default\": \"store\"}", "--set", "evaluation.every_steps=0",
                           "--set", f"output={out}/run"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(f"{out}/run/metrics.jsonl") as f:
        losses = [row["loss"] for row in map(json.loads, f) if "grad_norm" in row]
    shutil.rmtree(out)
    return losses


def pytorch(steps, seed, config):
    """Runs in the Python that has torch: `compare_curves.py --pytorch STEPS SEED CONFIG`."""
    import glob
    import torch
    from torch import nn
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import pytorch_step
    m, optimizer, schedule = config["model"], config["optimizer"], config["schedule"]
    length, batch = config["data"]["sequence_length"], config["batch"]["tokens_per_step"] // config["data"]["sequence_length"]
    tokens = []
    for path in sorted(glob.glob(os.path.join(ROOT, config["data"]["train"]))):
        with open(path, "rb") as f:
            magic, version, count = struct.unpack("<3i", f.read(1024)[:12])
            assert (magic, version) == (20240520, 1), path
            tokens.append(torch.frombuffer(bytearray(f.read()), dtype=torch.uint16).to(torch.int64))
    tokens = torch.cat(tokens)
    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(seed)
    layers = m["num_hidden_layers"]
    model = pytorch_step.Llama((m["vocab_size"], m["hidden_size"], layers, m["num_attention_heads"], m["intermediate_size"]), length, "none")
    for name, p in model.named_parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if name.endswith(("o.weight", "down.weight")) else 1))
    decayed = [p for n, p in model.named_parameters() if p.ndim == 2 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and "embedding" not in n)]
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": optimizer["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
                              betas=tuple(optimizer["betas"]), eps=optimizer["eps"], fused=True)
    losses = []
    for step in range(steps):
        start = step * batch * length
        x = tokens[start:start + batch * length].view(batch, length)
        y = tokens[start + 1:start + batch * length + 1].view(batch, length)
        warmup, last = schedule["warmup_steps"], schedule["steps"] - 1
        if step < warmup:
            rate = (step + 1) / warmup
        else:
            rate = schedule["final_fraction"] + (1 - schedule["final_fraction"]) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (last - warmup)))
        for group in adamw.param_groups:
            group["lr"] = optimizer["learning_rate"] * rate
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), optimizer["grad_clip"])
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        losses.append(loss.item())
    print(json.dumps(losses))


def main():
    if sys.argv[1:2] == ["--pytorch"]:
        return pytorch(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", required=True)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--seeds", type=int, default=3)
    a = p.parse_args()
    shown = subprocess.run([os.path.join(ROOT, "build/cpu-release/relume"), "config", "show", CONFIG], capture_output=True, text=True, check=True).stdout
    tails = {}
    for seed in range(1, a.seeds + 1):
        runs = {"relume fp32": relume(a.steps, seed, "fp32"), "relume bf16": relume(a.steps, seed, "bf16")}
        done = subprocess.run([a.python, os.path.abspath(__file__), "--pytorch", str(a.steps), str(seed), shown], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        runs["PyTorch bf16 autocast"] = json.loads(done.stdout.splitlines()[-1])
        for name, losses in runs.items():
            assert len(losses) == a.steps, (name, len(losses))
            tails.setdefault(name, []).append(statistics.mean(losses[-TAIL:]))
        print(f"seed {seed}: " + ", ".join(f"{name} {tails[name][-1]:.4f}" for name in tails), file=sys.stderr)
    print(f"| {a.steps} steps of the quickstart | mean loss of the last {TAIL} steps, seeds 1..{a.seeds} | mean | spread |\n|---|---|---|---|")
    for name, values in tails.items():
        print(f"| {name} | {', '.join(f'{v:.4f}' for v in values)} | {statistics.mean(values):.4f} | {max(values) - min(values):.4f} |")


if __name__ == "__main__":
    main()
