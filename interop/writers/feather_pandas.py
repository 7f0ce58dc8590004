"""RECORDS as Feather, by pandas: python interop/writers/feather_pandas.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import pandas as pd

SOURCE = {"files": "*.feather"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    rows = [{**row, "meta": json.dumps(row.get("meta") or {})} for row in rows]  # columns have one type
    out.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    pd.DataFrame(rows[:half]).to_feather(out / "a.feather", compression="lz4")
    pd.DataFrame(rows[half:]).to_feather(out / "b.feather", compression="uncompressed")
    print(json.dumps({"package": "pandas", "version": pd.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
