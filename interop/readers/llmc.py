"""llm.c's own dataloader.h, compiled, and the bytes of its write_datafile."""

import contextlib
import importlib.util
import io
import subprocess
import sys
import tempfile
import types
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

from compare import clone, given, report, require, window

BUILD = {"format": "llmc", "dtype": "uint16"}

# Every batch of a pass over the shards; the last target is the last token.
PROGRAM = r"""
#include "dataloader.h"
int main(int argc, char **argv) {
    DataLoader loader;
    size_t length = (size_t) atoi(argv[2]), windows = (size_t) atoi(argv[3]);
    dataloader_init(&loader, argv[1], 1, length, 0, 1, 0);
    for (size_t n = 0; n < windows; n++) {
        dataloader_next_batch(&loader);
        fwrite(loader.inputs, sizeof(int), length, stdout);
    }
    fwrite(loader.targets + length - 1, sizeof(int), 1, stdout);
    return 0;
}
"""

source = clone("karpathy/llm.c")
train, ids, _ = given()
length = window(len(ids) - 1)
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "read.c").write_text(PROGRAM)
    command = [
        "cc",
        "-O2",
        "-w",
        f"-I{source.path / 'llmc'}",
        f"{folder}/read.c",
        "-lm",
        "-o",
        f"{folder}/read",
    ]
    subprocess.run(command, check=True)
    arguments = [f"{train}/train_*.bin", str(length), str((len(ids) - 1) // length)]
    read = subprocess.run([f"{folder}/read", *arguments], capture_output=True, check=True).stdout
    # it imports requests to download, which nothing here does
    sys.modules.setdefault("requests", types.ModuleType("requests"))
    spec = importlib.util.spec_from_file_location("data_common", source.path / "dev/data/data_common.py")
    common = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(common)
    with contextlib.redirect_stdout(io.StringIO()):
        common.write_datafile(f"{folder}/theirs.bin", ids.tolist())
    theirs = Path(folder, "theirs.bin").read_bytes()
require((train / "train_000000.bin").read_bytes() == theirs, "other bytes than write_datafile")
compared = "`dataloader.h`, compiled: every batch; the bytes of `write_datafile`"
report("llm.c", compared, [np.frombuffer(read, np.int32)], version=source.version)
