"""RECORDS as lines of JSON, by Polars: python interop/writers/ndjson_polars.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import polars

SOURCE = {"files": "*.ndjson"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    polars.DataFrame([{key: row[key] for key in ("id", "text", "license")} for row in rows]).write_ndjson(
        out / "a.ndjson"
    )
    print(json.dumps({"package": "polars", "version": polars.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
