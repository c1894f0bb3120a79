#!/usr/bin/env python3
"""One plain Llama training step in PyTorch, timed: the other side of tools/compare_pytorch.py.

The model is the one `relume bench step` trains (untied, RMSNorm 1e-5, SwiGLU, half-split rotary, SDPA); fp32, or bf16 by
autocast with fp32 weights; fused AdamW, clipping at 1.0. Prints one JSON object.
"""
import argparse
import json
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SHAPES = {  # vocabulary, width, layers, heads, FFN neurons
    "11m": (4096, 256, 8, 4, 768),
    "30m": (8192, 384, 10, 6, 1152),
    "488m": (32000, 1152, 26, 18, 3072),
}


class Layer(nn.Module):
    def __init__(self, width, heads, neurons):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, neurons, bias=False), nn.Linear(width, neurons, bias=False)
        self.down = nn.Linear(neurons, width, bias=False)

    def rotate(self, x, cosine, sine):
        a, b = x.chunk(2, -1)
        return x * cosine + torch.cat((-b, a), -1) * sine

    def forward(self, x, cosine, sine):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        h = self.attention_norm(x)
        q, k, v = split(self.q(h)), split(self.k(h)), split(self.v(h))
        q, k = self.rotate(q, cosine, sine), self.rotate(k, cosine, sine)
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, width))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, shape, length, recompute):
        super().__init__()
        vocabulary, width, layers, heads, neurons = shape
        self.recompute = recompute
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, neurons) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocabulary, bias=False)
        half = torch.arange(0, width // heads, 2).float() / (width // heads)
        angles = torch.outer(torch.arange(length).float(), 10000.0**-half).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute == "block":
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--shape", choices=SHAPES, default="11m")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--recompute", choices=["none", "block"], default="none")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = Llama(SHAPES[a.shape], a.seq, a.recompute)
    step = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times, losses = [], []
    for i in range(a.warmup + a.steps):
        data = torch.randint(0, SHAPES[a.shape][0], (a.batch, a.seq + 1), generator=torch.Generator().manual_seed(i))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
            loss = step(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i >= a.warmup:
            times.append(time.perf_counter() - start)
        losses.append(loss.item())
    median = statistics.median(times)
    print(json.dumps({
        "framework": "pytorch " + torch.__version__, "params": sum(x.numel() for x in model.parameters()), "step_s": median,
        "min_s": min(times), "tok_per_s": a.batch * a.seq / median,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "loss": losses[-3:]}))


if __name__ == "__main__":
    main()
