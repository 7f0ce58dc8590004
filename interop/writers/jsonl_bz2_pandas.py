"""RECORDS as lines in bz2, by pandas: python interop/writers/jsonl_bz2_pandas.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import pandas

SOURCE = {"files": "*.jsonl.bz2"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    frame = pandas.DataFrame(rows)[["id", "text", "license"]]
    frame.to_json(out / "a.jsonl.bz2", orient="records", lines=True, force_ascii=False, compression="bz2")
    print(json.dumps({"package": "pandas", "version": pandas.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
