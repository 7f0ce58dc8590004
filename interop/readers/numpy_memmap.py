"""NumPy maps the flat file, by the description beside it."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

from compare import given, report

BUILD = {"format": "memmap"}

train = given().train
meta = json.loads((train / "meta.json").read_bytes())
rows = np.memmap(train / "input_ids.mmap", meta["dtype"], "r", shape=(meta["n_seqs"], meta["seq_len"]))
report("numpy", "`np.memmap`: every row", rows)
