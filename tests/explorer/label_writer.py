"""Saves labels without end, and says each that is acknowledged, until it is killed:
`python label_writer.py FILE SEED`."""

from __future__ import annotations

import random
import sys

from tokmill.explorer.labels import Label, LabelStore


def main(path: str, seed: int) -> None:
    drawn = random.Random(seed)
    store = LabelStore(path)
    for turn in range(1_000_000):
        new = drawn.random() < 0.7
        doc_id = f"doc-{seed}-{turn}" if new else f"doc-{drawn.randrange(seed + 1)}-{drawn.randrange(5)}"
        word = f"{seed}.{turn}"
        print(f"begun {doc_id} {word}", flush=True)
        store.save(Label(doc_id, "se", word, ("tag", "ünïcode\n"), "ada", "2026-11-18T11:30:00Z"))
        print(f"saved {doc_id} {word}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
