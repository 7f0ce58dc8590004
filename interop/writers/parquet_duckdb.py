"""RECORDS as a Parquet file, by a query of DuckDB: python interop/writers/parquet_duckdb.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import duckdb

SOURCE = {"files": "*.parquet"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    told = duckdb.from_query(
        f"SELECT id, text, license FROM read_json('{records}', format='newline_delimited')"
    )
    told.write_parquet(str(out / "a.parquet"), compression="zstd")
    assert len(told) == len(rows)
    print(json.dumps({"package": "duckdb", "version": duckdb.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
