"""RECORDS as extracted texts of a web archive, by warcio: python interop/writers/wet_warcio.py RECORDS OUT"""

import io
import json
import sys
from importlib.metadata import version
from pathlib import Path

from warcio.warcwriter import WARCWriter

SOURCE = {"files": "*.wet.gz", "warc": {}, "license": "MIT"}
AS = {"compare": ["text"]}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    with (out / "a.wet.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for row in rows:
            record = writer.create_warc_record(
                f"https://example.org/{row['id']}",
                "conversion",
                payload=io.BytesIO(row["text"].encode()),
                warc_content_type="text/plain",
            )
            writer.write_record(record)
    print(json.dumps({"package": "warcio", "version": version("warcio")}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
