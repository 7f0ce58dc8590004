"""RECORDS as an Arrow file and a stream, by Polars: python interop/writers/arrow_polars.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import polars as pl

SOURCE = {"files": "*.arrow"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    out.mkdir(parents=True, exist_ok=True)
    columns = {key: [row.get(key) for row in rows] for key in ("id", "text", "license", "lang")}
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    half = len(rows) // 2
    frame[:half].write_ipc(out / "a.arrow", compression="zstd")
    frame[half:].write_ipc_stream(out / "b.arrow")
    print(json.dumps({"package": "polars", "version": pl.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
