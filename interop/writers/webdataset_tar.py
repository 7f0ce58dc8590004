"""RECORDS as tar archives, by webdataset: python interop/writers/webdataset_tar.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import webdataset

SOURCE = {"files": "shard-{000..001}.tar*", "webdataset": {}}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    out.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    for name, part in (("shard-000.tar", rows[:half]), ("shard-001.tar.gz", rows[half:])):
        with webdataset.TarWriter(str(out / name)) as sink:
            for row in part:
                about = {key: row[key] for key in ("license", "lang", "meta")}
                sink.write({"__key__": row["id"], "txt": row["text"], "json": about})
    print(json.dumps({"package": "webdataset", "version": webdataset.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
