"""RECORDS as translations, by datasets: python interop/writers/parquet_translation.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import datasets

SOURCE = {"files": "*.parquet", "fields": {"text": "translation.en"}}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    kinds = {name: datasets.Value("string") for name in ("id", "license")}
    features = datasets.Features({**kinds, "translation": datasets.Translation(["en", "fr"])})
    held = [
        {"id": row["id"], "license": row["license"], "translation": {"en": row["text"], "fr": "…"}}
        for row in rows
    ]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(held, features).to_parquet(out / "a.parquet")
    print(json.dumps({"package": "datasets", "version": datasets.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
