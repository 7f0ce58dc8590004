"""Megatron-core's own IndexedDatasetBuilder writes the same two files."""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from compare import given, report, require

BUILD = {"format": "megatron", "dtype": "uint16"}

train, ids, lengths = given()
documents = np.split(ids, np.cumsum(lengths)[:-1])
with tempfile.TemporaryDirectory() as folder:
    builder = IndexedDatasetBuilder(f"{folder}/tokens.bin", dtype=np.uint16)
    for document in documents:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(f"{folder}/tokens.idx")
    for name in ("tokens.bin", "tokens.idx"):
        require((train / name).read_bytes() == (Path(folder) / name).read_bytes(), f"{name} has other bytes")
report("megatron-core", "`IndexedDatasetBuilder`: `.bin` and `.idx` byte for byte", documents)
