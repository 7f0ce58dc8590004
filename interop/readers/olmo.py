"""OLMo-core's own NumpyFSLDataset: its windows are our rows."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from olmo_core.data.numpy_dataset import NumpyFSLDataset

from compare import given, report

BUILD = {"format": "olmo", "dtype": "uint16"}

train, _, lengths = given()
paths = sorted(map(str, (train / "ids").glob("*.npy")))
dataset = NumpyFSLDataset(
    *paths,
    sequence_length=int(lengths[0]),
    pad_token_id=0,
    eos_token_id=0,
    vocab_size=1 << 16,
    dtype=np.uint16,
)
dataset.prepare()
rows = [dataset[number]["input_ids"] for number in range(len(dataset))]
report("ai2-olmo-core", "`NumpyFSLDataset`: every instance is a row", rows)
