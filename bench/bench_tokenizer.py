#!/usr/bin/env python3
"""bench_tokenizer.py PROGRAM TEXT TOKENIZER...: bench_tokenizer beside the library that a tokenizer
comes from (`tokenizers` for .json, `sentencepiece` for .model), one thread each, best of five."""
import os
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
program, path, *names = sys.argv[1:]
text = open(path, encoding="utf8", newline="").read()
size = len(text.encode()) / 1e6


def best(f):
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        f()
        seconds.append(time.perf_counter() - start)
    return size / min(seconds)


for name in names:
    print(name)
    print("  ours:    " + subprocess.check_output([program, name, path], text=True).replace("\n", "; "))
    start = time.perf_counter()
    if name.endswith(".json"):
        from tokenizers import Tokenizer

        t = Tokenizer.from_file(name)
        encode = lambda s: t.encode(s, add_special_tokens=False)
    else:
        import sentencepiece

        encode = sentencepiece.SentencePieceProcessor(model_file=name).encode
    load = time.perf_counter() - start
    lines = text.splitlines(keepends=True)
    by_line = best(lambda: [encode(line) for line in lines])
    print(f"  library: load {load:.3f} s; whole: {best(lambda: encode(text)):.1f} MB/s; by line: {by_line:.1f} MB/s")
