"""RECORDS as one JSON array, by pandas: python interop/writers/json_array.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import pandas as pd

SOURCE = {"files": "*.json*"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    out.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    pd.DataFrame(rows[:half]).to_json(out / "a.json", orient="records", indent=2)
    pd.DataFrame(rows[half:]).to_json(out / "b.json.xz", orient="records", force_ascii=False)
    print(json.dumps({"package": "pandas", "version": pd.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
