"""nanoGPT's own get_batch, out of its train.py, and the loop of its prepare.py that writes the file."""

import ast
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from datasets import Dataset

from compare import clone, given, report, require, window

BUILD = {"format": "nanogpt"}

source = clone("karpathy/nanoGPT")
tree = ast.parse((source.path / "train.py").read_text())
(function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "get_batch")


class Torch:
    """torch, but the batches come in order: train.py draws them at random."""

    at = 0

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def randint(self, high: int, size: tuple[int]) -> list[int]:
        first, Torch.at = Torch.at, Torch.at + size[0] * block
        return [min(first + row * block, high) for row in range(size[0])]


train, ids, lengths = given()
block = window(len(ids) - 1)  # the last token is only ever a target
names = {"os": os, "np": np, "torch": Torch(), "data_dir": str(train), "block_size": block, "batch_size": 1}
names |= {"device_type": "cpu", "device": "cpu"}
exec(compile(ast.Module([function], []), "train.py", "exec"), names)
rows = []
for _ in range((len(ids) - 1) // block):
    x, y = names["get_batch"]("train")
    rows.append(x)
    require(torch.equal(x[:, 1:], y[:, :-1]), "targets are not the tokens after")
rows.append(y[0, -1:])

# The last loop of prepare.py, over these documents. It writes 1,024 batches, and fails on an empty one.
script = ast.parse((source.path / "data/openwebtext/prepare.py").read_text())
(guarded,) = (node for node in script.body if isinstance(node, ast.If))
loop = guarded.body[-1]
for node in ast.walk(loop):
    if isinstance(node, ast.Constant) and node.value == 1024:
        node.value = len(lengths)
documents = [one.tolist() for one in np.split(ids, np.cumsum(lengths)[:-1])]
with tempfile.TemporaryDirectory() as folder:
    tokenized = {"train": Dataset.from_dict({"ids": documents, "len": lengths.tolist()})}
    names = {"os": os, "np": np, "tqdm": lambda batches, desc: batches, "tokenized": tokenized}
    names["__file__"] = f"{folder}/prepare.py"
    exec(compile(ast.Module([loop], []), "prepare.py", "exec"), names)
    prepared = Path(folder, "train.bin").read_bytes()
require((train / "train.bin").read_bytes() == prepared, "other bytes than prepare.py writes")
compared = "`get_batch` of `train.py`; the bytes that the loop of `prepare.py` writes"
report("nanoGPT", compared, rows, version=source.version)
