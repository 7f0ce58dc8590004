"""Hugging Face datasets opens the directory of a build of Parquet by its card."""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import load_dataset

from compare import report_texts

BUILD = {"format": "parquet"}

with tempfile.TemporaryDirectory() as cache:
    found = load_dataset(sys.argv[1], cache_dir=cache)
    splits = {"train": list(found["train"]), "valid": list(found["validation"])}
for rows in splits.values():
    for row in rows:  # a string that spells an object
        row["meta"] = json.loads(row["meta"])
report_texts("datasets", "`load_dataset` of the directory: every field, every split", splits)
