"""Hugging Face datasets opens each split with load_from_disk; a copy by its save_to_disk is the same."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import DatasetDict, load_from_disk

from compare import given, report, require

BUILD = {"format": "arrow", "pack": {"layout": "indexed"}, "rows_per_shard": 100}

train, _, lengths = given()
names = sorted(path.name for path in train.parent.iterdir() if path.is_dir())
splits = DatasetDict({name: load_from_disk(str(train.parent / name)) for name in names})
require(len(splits["train"]) == len(lengths), "other documents")
require(len(list(train.glob("*.arrow"))) > 1, "one shard")
with tempfile.TemporaryDirectory() as folder:
    splits.save_to_disk(folder)
    again = load_from_disk(folder)
    require(again["train"].features == splits["train"].features, "other columns")
    require(again["train"]["doc_id"][:] == splits["train"]["doc_id"][:], "other names")
    again = None  # it is mapped
report("datasets", "`load_from_disk`: every document", splits["train"]["input_ids"])
