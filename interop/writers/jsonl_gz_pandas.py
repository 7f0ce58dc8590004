"""RECORDS as lines in gzip, by pandas: python interop/writers/jsonl_gz_pandas.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import pandas

SOURCE = {"files": "*.jsonl.gz"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    frame = pandas.DataFrame(rows)[["id", "text", "license"]]
    frame.to_json(out / "a.jsonl.gz", orient="records", lines=True, force_ascii=False, compression="gzip")
    print(json.dumps({"package": "pandas", "version": pandas.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
