#!/usr/bin/env python3
"""relume's models in transformers and back: same logits, same perplexity, same text, same bits.

  tools/check_transformers.py MODEL --data SHARD [--relume build/cpu-release/relume] [--context 256] [--tokens 16384]

MODEL is a Hugging Face directory, such as a checkpoint; SHARD a llm.c shard of its tokens. Needs torch, transformers, safetensors,
and sentencepiece with protobuf or tokenizers, in a virtual environment outside the checkout. Prints a line for every check and ends
with 1 if one fails. Run it under transformers 4 and 5.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open

failures = 0


def check(what, ok, detail=""):
    global failures
    failures += not ok
    print(f"{'ok    ' if ok else 'FAILED'} {what}{'  ' + detail if detail else ''}")


def relume(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"relume {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.stdout


def read_shard(path):
    header = np.fromfile(path, "<i4", 3)
    width = {20240520: "<u2", 20240801: "<u4"}[int(header[0])]
    return np.fromfile(path, width, int(header[2]), offset=1024).astype(np.int64)


def perplexity(model, tokens, context, windows):
    """Disjoint windows, every target: relume's mode shard."""
    nll, scored = 0.0, 0
    for i in range(windows):
        window = torch.from_numpy(tokens[i * context:i * context + context + 1])[None]
        with torch.no_grad():
            logits = model(window[:, :-1]).logits[0].double()
        nll -= torch.log_softmax(logits, -1)[torch.arange(context), window[0, 1:]].sum().item()
        scored += context
    return math.exp(nll / scored)


def same_weights(a, b):
    with safe_open(os.path.join(a, "model.safetensors"), "pt") as x, safe_open(os.path.join(b, "model.safetensors"), "pt") as y:
        if sorted(x.keys()) != sorted(y.keys()):
            return False
        return all(x.get_tensor(k).dtype == y.get_tensor(k).dtype and torch.equal(x.get_tensor(k), y.get_tensor(k)) for k in x.keys())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--data", required=True)
    p.add_argument("--relume", default="build/cpu-release/relume")
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--tokens", type=int, default=16384)
    a = p.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")

    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = read_shard(a.data)
    windows = min(a.tokens // a.context, (len(tokens) - 1) // a.context)
    theirs = perplexity(model, tokens, a.context, windows)
    ours = json.loads(relume(a.relume, "eval", a.model, "--data", a.data, "--context", a.context, "--tokens", windows * a.context, "--precision", "fp32", "--json"))
    check("perplexity", abs(theirs / ours["perplexity"] - 1) < 1e-4, f"transformers {theirs:.6f}, relume {ours['perplexity']:.6f} over {ours['tokens_scored']} tokens")

    prompt = tokens[:16].tolist()
    with torch.no_grad():
        text = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 16:].tolist()
    mine = json.loads(relume(a.relume, "generate", a.model, "--ids", ",".join(map(str, prompt)), "--max-tokens", 48, "--temperature", 0, "--precision", "fp32", "--ignore-eos", "--json"))
    same = next((i for i, (x, y) in enumerate(zip(text, mine["tokens"])) if x != y), 48)
    check("greedy continuation", text == mine["tokens"], f"{same} of 48 tokens the same")

    with tempfile.TemporaryDirectory() as dir:
        for dtype, torch_dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            ours_out, theirs_out, back = (os.path.join(dir, f"{dtype}-{n}") for n in ("ours", "theirs", "back"))
            relume(a.relume, "convert", a.model, ours_out, "--dtype", dtype)
            loaded, info = transformers.AutoModelForCausalLM.from_pretrained(ours_out, dtype=torch_dtype, output_loading_info=True)
            check(f"{dtype}: loads without missing or unexpected tensors", not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")))
            loaded.save_pretrained(theirs_out)
            relume(a.relume, "convert", theirs_out, back)
            check(f"{dtype}: relume, transformers, relume gives the same bits", same_weights(ours_out, back))

    if os.path.exists(os.path.join(a.model, "tokenizer_config.json")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
        sample = "The quick brown fox: 12,345 jumps over\n\n  the \"lazy\" dog's café — naïve ☃ 你好."
        ids = tokenizer(sample)["input_ids"]
        mine = json.loads(relume(a.relume, "tokenize", "encode", "--tokenizer", a.model, "--text", sample, "--bos", "--json"))["ids"]
        check("tokenizer", ids == mine, "" if ids == mine else f"{ids} {mine}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
