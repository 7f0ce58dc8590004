"""RECORDS as lines in a zstd frame with a window of 2 GiB: python interop/writers/zstd_long.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import zstandard

SOURCE = {"files": "*.jsonl.zst"}


def main(records: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    long = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=long).compressobj()
    (out / "a.jsonl.zst").write_bytes(packer.compress(records.read_bytes()) + packer.flush())
    print(json.dumps({"package": "zstandard", "version": zstandard.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
