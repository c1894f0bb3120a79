#!/usr/bin/env python3
"""relume's tokenizers against the libraries they come from, on random Unicode and on text.

  tools/check_tokenizers.py TOKENIZER... [--text FILE] [--cases 20000] [--seed 1] [--relume build/cpu-release/relume]

TOKENIZER is a tokenizer.json (compared with the PyPI package tokenizers) or a tokenizer.model (sentencepiece). Cases are mixtures of
scripts, whitespace, digits, contractions, emoji, control characters and the tokenizer's own tokens. A case goes through
`tokenize shard` as a line of JSON, so thousands take seconds. Prints the first differences and ends with 1 if there are any.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import numpy as np

RANGES = [(0x20, 0x7E)] * 6 + [(0xA0, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF),
                               (0x2190, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1F6FF), (0x1D400, 0x1D7FF)]
PIECES = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "'s", "'LL", "'re", "\u00a0", "\u3000", "\u2028", "\u200d", "\ufe0f", "e\u0301", "123", "4567", "0.5", "don't",
          "http://x.y/z?q=1", "\u2581", "\u0000", "\ufeff", "\x85"]


def cases(rng, count, own):
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.35:
                parts.append(rng.choice(PIECES))
            elif kind < 0.45 and own:
                parts.append(rng.choice(own))
            else:
                low, high = rng.choice(RANGES)
                # characters newer than an engine's Unicode tables, and U+180E, differ between engines and say nothing
                characters = [chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))]
                parts.append("".join(c for c in characters if unicodedata.category(c) != "Cn" and not 0xD800 <= ord(c) < 0xE000))
        yield "".join(parts)


def reference(path, texts):
    if path.endswith(".json"):
        import tokenizers
        t = tokenizers.Tokenizer.from_file(path)
        return [e.ids for e in t.encode_batch(texts, add_special_tokens=False)], [t.id_to_token(i) for i in range(0, t.get_vocab_size(), 7)]
    import sentencepiece
    t = sentencepiece.SentencePieceProcessor(model_file=path)
    return [t.encode(x) for x in texts], []


def relume_ids(binary, path, texts):
    with tempfile.TemporaryDirectory() as dir:
        with open(os.path.join(dir, "cases.jsonl"), "w", encoding="ascii") as f:
            for text in texts:
                f.write(json.dumps({"text": text}) + "\n")
        done = subprocess.run([binary, "tokenize", "shard", "--tokenizer", path, "--in", os.path.join(dir, "cases.jsonl"), "--out", os.path.join(dir, "out"), "--json",
                               "--format", "llmq", "--mask-boundaries"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        raw = open(json.loads(done.stdout)["files"][0], "rb").read()
    count = int(np.frombuffer(raw, "<i4", 5)[4])
    ids = np.frombuffer(raw, "<i4", count, 1024)
    mask = np.unpackbits(np.frombuffer(raw, np.uint8, (count + 7) // 8, 1024 + 4 * count), bitorder="little")[:count]
    starts = np.flatnonzero(mask == 0).tolist() + [count]  # a document begins with a BOS that is not trained on
    return [ids[a + 1:b].tolist() for a, b in zip(starts, starts[1:])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tokenizers", nargs="+")
    p.add_argument("--text")
    p.add_argument("--cases", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--relume", default="build/cpu-release/relume")
    a = p.parse_args()
    bad = 0
    for path in a.tokenizers:
        rng = random.Random(a.seed)
        _, own = reference(path, [])
        texts = list(cases(rng, a.cases, own))
        if a.text:
            texts += open(a.text, encoding="utf-8").read().split("\n\n")
        texts = [t for t in texts if t]
        expected, _ = reference(path, texts)
        found = relume_ids(a.relume, path, texts)
        wrong = [i for i in range(len(texts)) if i >= len(found) or found[i] != expected[i]]
        print(f"{path}: {len(texts)} texts, {sum(map(len, expected))} tokens, {len(wrong)} differ")
        for i in wrong[:5]:
            print(f"  {texts[i]!r}\n    library {expected[i]}\n    relume  {found[i] if i < len(found) else None}")
        bad += len(wrong)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
