"""RECORDS as CSV, by pandas: python interop/writers/csv_pandas.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import pandas as pd

SOURCE = {"files": "*.csv", "fields": {"meta": ["lang"]}}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    frame = pd.DataFrame([{**row, "meta": json.dumps(row.get("meta") or {})} for row in rows])
    out.mkdir(parents=True, exist_ok=True)
    half = len(frame) // 2
    frame[:half].to_csv(out / "a.csv", index=False)
    frame[half:].to_csv(out / "b.csv", index=False, lineterminator="\r\n", encoding="utf-8-sig", quoting=1)
    print(json.dumps({"package": "pandas", "version": pd.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
