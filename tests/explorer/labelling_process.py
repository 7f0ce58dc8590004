"""Saves some labels on a disk that is watched: `python labelling_process.py OUT LOG MODE TURNS`.

After each label that is acknowledged it makes a file, whose name in the log of calls says when that was.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from pathlib import Path

from tokmill.explorer.labels import Label, LabelStore


def main(out: Path, log: str, mode: int, turns: int) -> None:
    (out / "acknowledged").mkdir(parents=True)
    shim = ctypes.CDLL(None)
    shim.fault_arm(os.fsencode(str(out)), os.fsencode(log), ctypes.c_int(mode), ctypes.c_long(0))
    drawn, store = random.Random(7), LabelStore(out / "labels.jsonl")
    for turn in range(turns):
        doc_id = f"doc-{drawn.randrange(max(turn // 2, 1))}" if drawn.random() < 0.4 else f"doc-{turn}"
        label = None
        if drawn.random() < 0.1:
            store.remove(doc_id, "se")
        else:
            label = str(turn)
            store.save(Label(doc_id, "se", label, ("tag", "ünïcode\n"), "ada", "2026-11-18T11:30:00Z"))
        os.close(os.open(out / "acknowledged" / f"{turn}={doc_id}={label}", os.O_CREAT | os.O_WRONLY))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
