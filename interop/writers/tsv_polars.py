"""RECORDS as TSV, by Polars: python interop/writers/tsv_polars.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import polars as pl

SOURCE = {"files": "*.tsv"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    out.mkdir(parents=True, exist_ok=True)
    columns = {key: [row.get(key) for row in rows] for key in ("id", "text", "license", "lang")}
    pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)).write_csv(out / "a.tsv", separator="\t")
    print(json.dumps({"package": "polars", "version": pl.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
