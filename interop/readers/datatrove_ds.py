"""datatrove's own DatatroveFolderDataset, which nanotron reads with, and the bytes of its TokenizedFile."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from datatrove.utils.dataset import DatatroveFolderDataset

from compare import given, report, require, window

BUILD = {"format": "nanotron", "dtype": "uint16"}

train, ids, lengths = given()
length = window(len(ids))
dataset = DatatroveFolderDataset(
    str(train),
    seq_len=length - 1,
    filename_pattern="*.ds",
    recursive=False,
    token_size=2,
    return_positions=True,
)
rows = [dataset[number] for number in range(len(dataset))]
within = np.concatenate([np.arange(count) for count in lengths])
starts = np.concatenate([np.arange(length)] * len(rows))
positions = np.concatenate([row["positions"].numpy() for row in rows])
require(np.array_equal(positions, np.minimum(within[: len(starts)], starts)), "other documents by its index")
with tempfile.TemporaryDirectory() as folder:
    tokenizer = json.loads((train / "meta.json").read_bytes())["tokenizer_path"].rpartition("/")[2]
    file = TokenizedFile(folder, "tokens.ds", tokenizer_name_or_path=tokenizer, save_final_metadata=True)
    for document in np.split(ids, np.cumsum(lengths)[:-1]):
        file.write(document.tolist(), None)
    file.close()
    for path in sorted(Path(folder).iterdir()):
        require((train / path.name).read_bytes() == path.read_bytes(), f"{path.name} has other bytes")
compared = "`DatatroveFolderDataset`: windows and positions; the bytes of `TokenizedFile`"
report("datatrove", compared, [row["input_ids"] for row in rows])
