"""NumPy loads the shards, in the order of their names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

from compare import given, report

BUILD = {"format": "npy", "rows_per_shard": 20}

report("numpy", "`np.load`: every row", map(np.load, sorted(given().train.glob("shard_*.npy"))))
