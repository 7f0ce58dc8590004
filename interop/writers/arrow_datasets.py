"""RECORDS as what save_to_disk writes, by datasets: python interop/writers/arrow_datasets.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import datasets

SOURCE = {"files": "saved/train"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    rows = [{**row, "meta": json.dumps(row.get("meta") or {})} for row in rows]  # columns have one type
    datasets.disable_progress_bars()
    whole = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    whole.save_to_disk(out / "saved", num_shards={"train": 2})
    print(json.dumps({"package": "datasets", "version": datasets.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
