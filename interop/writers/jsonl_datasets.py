"""RECORDS as lines of JSON, by datasets: python interop/writers/jsonl_datasets.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import datasets

SOURCE = {"files": "*.jsonl"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{**row, "meta": None} for row in rows]).to_json(out / "a.jsonl")
    print(json.dumps({"package": "datasets", "version": datasets.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
