"""llm.c's own loader of Llama 3 shards, out of its train_llama3.py, and the bytes of its write_datafile."""

import ast
import contextlib
import glob
import importlib.util
import io
import sys
import tempfile
import types
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from compare import clone, given, report, require, window

BUILD = {"format": "llmc", "dtype": "int32"}

source = clone("karpathy/llm.c")
tree = ast.parse((source.path / "train_llama3.py").read_text())
wanted = ("_peek_data_shard", "_load_data_shard", "DistributedShardedDataLoader", "DistributedDataLoader")
parts = [node for node in tree.body if getattr(node, "name", None) in wanted]
names = {"np": np, "torch": torch, "glob": glob, "print0": lambda *words: None, "sys": sys}
exec(compile(ast.Module(parts, []), "train_llama3.py", "exec"), names)
loader_class = next(value for name, value in names.items() if name.endswith("DataLoader"))
train, ids, _ = given()
length = window(len(ids) - 1)
with contextlib.redirect_stdout(io.StringIO()):
    loader = loader_class(f"{train}/train_*.bin", 1, length, 0, 1)
rows = []
for _ in range((len(ids) - 1) // length):
    x, y = loader.next_batch()
    rows.append(x)
rows.append(y[0, -1:])
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    sys.modules.setdefault("requests", types.ModuleType("requests"))
    spec = importlib.util.spec_from_file_location("data_common", source.path / "dev/data/data_common.py")
    common = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(common)
    common.write_datafile(f"{folder}/theirs.bin", ids.tolist(), "llama-3")
    theirs = Path(folder, "theirs.bin").read_bytes()
require((train / "train_000000.bin").read_bytes() == theirs, "other bytes than write_datafile")
compared = "the loader of `train_llama3.py`: every batch; the bytes of `write_datafile`"
report("llm.c", compared, rows, version=source.version)
