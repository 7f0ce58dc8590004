"""Hugging Face datasets loads the Parquet shards."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import load_dataset

from compare import given, report

BUILD = {"format": "parquet", "rows_per_shard": 20}

with tempfile.TemporaryDirectory() as cache:
    files = sorted(map(str, given().train.glob("*.parquet")))
    dataset = load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    rows = [row["input_ids"] for row in dataset]
report("datasets", "`load_dataset` of Parquet: every row", rows)
