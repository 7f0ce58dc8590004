"""Megatron-core's own IndexedDataset."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from megatron.core.datasets.indexed_dataset import IndexedDataset

from compare import given, report, require

BUILD = {"format": "megatron"}

dataset = IndexedDataset(str(given().train / "tokens"), mmap=True)
require(dataset.sequence_lengths.tolist() == given().lengths.tolist(), "other lengths")
require(dataset.document_indices.tolist() == list(range(len(dataset) + 1)), "other documents")
report(
    "megatron-core",
    "`IndexedDataset`: every sequence, length and document",
    map(dataset.get, range(len(dataset))),
)
