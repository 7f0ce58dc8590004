"""Hugging Face datasets opens the directory of a build of JSONL by its card."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import load_dataset

from compare import report_texts

BUILD = {"format": "jsonl"}

with tempfile.TemporaryDirectory() as cache:
    found = load_dataset(sys.argv[1], cache_dir=cache)
    splits = {"train": list(found["train"]), "valid": list(found["validation"])}
report_texts("datasets", "`load_dataset` of the directory: every field, every split", splits)
