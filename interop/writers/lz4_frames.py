"""RECORDS as lines in LZ4 frames, by lz4: python interop/writers/lz4_frames.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import lz4
import lz4.frame

SOURCE = {"files": "*.jsonl.lz4"}


def main(records: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    data = records.read_bytes()
    frames = [data[: len(data) // 2], data[len(data) // 2 :]]
    (out / "a.jsonl.lz4").write_bytes(
        b"".join(lz4.frame.compress(part, content_checksum=True) for part in frames)
    )
    print(json.dumps({"package": "lz4", "version": lz4.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
