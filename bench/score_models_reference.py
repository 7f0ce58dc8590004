"""fastText, data-selection and kenlm, by the interpreter that has them (bench/score_models.py calls it).

    argv: fasttext | importance | kenlm, stdin: JSON  ─>  stdout: JSON, with CPU seconds of the library alone

One core, whatever the machine has. fastText is started with twelve threads on it all the same: with fewer it
leaves part of its vectors as the memory was (each thread fills a tenth of them), and then stops at a NaN.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    asked = json.load(sys.stdin)
    acts = {"fasttext": judge_by_fasttext, "importance": weigh, "kenlm": judge_by_kenlm}
    told = acts[sys.argv[1]](asked)
    print(json.dumps(told))
    return 0


def judge_by_fasttext(asked: Any) -> Any:
    """Each fold: trained on labelled texts, then the chances of all labels for others."""
    import fasttext

    chances, training, scoring = [], 0.0, 0.0
    for fold in asked["folds"]:
        lines = [f"__label__{label} {' '.join(text.split())}\n" for text, label in fold["train"]]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.txt"
            path.write_text("".join(lines), encoding="utf-8")
            began = time.process_time()
            model = fasttext.train_supervised(str(path), thread=12, verbose=0, **asked["arguments"])
            training += time.process_time() - began
        texts = [" ".join(text.split()) + "\n" for text in fold["test"]]
        began = time.process_time()
        found = [model.f.predict(text, asked["labels"], 0.0, "strict") for text in texts]
        scoring += time.process_time() - began
        by_label = [{int(name.removeprefix("__label__")): chance for chance, name in one} for one in found]
        chances.append([[of.get(label, 0.0) for label in range(asked["labels"])] for of in by_label])
    return {"training": training, "scoring": scoring, "chances": chances}


def weigh(asked: Any) -> Any:
    """As HashedNgramDSIR fits and weighs, without its files and processes; on request, with our hash for its
    own, so that both have the same table."""
    import numpy as np
    from data_selection import hashed_ngram_dsir
    from data_selection.hashed_ngram_dsir import get_ngram_counts

    if asked["hash"] == "fast":
        hashed_ngram_dsir.hash_buckets = fast_bucket
    began = time.process_time()
    shares = []
    for texts in (asked["target"], asked["raw"]):
        counts = np.zeros(10_000, int)
        for text in texts:
            counts = get_ngram_counts(text, counts=counts)
        shares.append(counts / counts.sum())
    ratio = np.log(shares[0] + 1e-8) - np.log(shares[1] + 1e-8)
    weights = [float(np.dot(ratio, get_ngram_counts(text))) for text in asked["raw"]]
    seconds = time.process_time() - began
    return {"seconds": seconds, "weights": weights, "version": importlib.metadata.version("data-selection")}


def fast_bucket(gram: str, num_buckets: int) -> int:
    """The hash of tokmill.kernels.importance, in Python."""
    mask = (1 << 64) - 1
    hashes = []
    for token in gram.split(" "):
        hashed = 0xCBF29CE484222325
        for byte in token.encode():
            hashed = ((hashed ^ byte) * 0x100000001B3) & mask
        hashes.append(mixed(hashed))
    hashed = hashes[0] if len(hashes) == 1 else mixed((hashes[0] * 0x9E3779B97F4A7C15 + hashes[1]) & mask)
    return (hashed >> 32) * num_buckets >> 32


def mixed(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = ((word ^ word >> 33) * factor) & ((1 << 64) - 1)
    return word ^ word >> 33


def judge_by_kenlm(asked: Any) -> Any:
    """log10 p of each line: in one sum of kenlm's, and word by word."""
    import kenlm

    model = kenlm.Model(asked["arpa"])
    began = time.process_time()
    sums = [model.score(line) for line in asked["lines"]]
    seconds = time.process_time() - began
    words = [[log for log, _, _ in model.full_scores(line)] for line in asked["lines"]]
    return {"seconds": seconds, "sums": sums, "words": words, "version": importlib.metadata.version("kenlm")}


if __name__ == "__main__":
    sys.exit(main())
