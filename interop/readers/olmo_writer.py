"""OLMo-core's own write_array_to_disk writes the same files."""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from olmo_core.data.utils import write_array_to_disk

from compare import given, report, require

BUILD = {"format": "olmo", "dtype": "uint16", "pack": {"layout": "indexed"}}

train, ids, _ = given()
at, written = 0, []
with tempfile.TemporaryDirectory() as folder:
    for path in sorted((train / "ids").glob("*.npy")):
        own = path.read_bytes()
        part = ids[at : at + len(own) // 2].astype(np.uint16)
        at += len(part)
        copy = Path(folder) / path.name
        write_array_to_disk(part, copy)
        require(copy.read_bytes() == own, f"{path.name} has other bytes")
        written.append(np.fromfile(copy, np.uint16))
report("ai2-olmo-core", "`write_array_to_disk`: `.npy` byte for byte", written)
