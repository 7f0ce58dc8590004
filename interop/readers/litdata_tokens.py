"""litdata's own StreamingDataset with TokensLoader, and the bytes of its BinaryWriter."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from litdata import StreamingDataset, TokensLoader
from litdata.streaming.writer import BinaryWriter

from compare import given, report, require

BUILD = {"format": "litdata"}

train, ids, lengths = given()
length = int(lengths[0])
with tempfile.TemporaryDirectory() as folder:
    writer = BinaryWriter(folder, chunk_bytes="64MB", item_loader=TokensLoader())
    for number, row in enumerate(ids.reshape(-1, length)):
        writer[number] = torch.from_numpy(row).to(torch.int32)
    writer.done()
    writer.merge()
    for path in sorted(Path(folder).glob("chunk-*.bin")):
        require((train / path.name).read_bytes() == path.read_bytes(), f"{path.name} has other bytes")
    ours, theirs = (json.loads((where / "index.json").read_bytes()) for where in (train, Path(folder)))
    require({**ours, "updated_at": 0} == {**theirs, "updated_at": 0}, "another index.json")
dataset = StreamingDataset(str(train), item_loader=TokensLoader(block_size=length), shuffle=False)
require(len(dataset) == len(lengths), "other rows")
compared = (
    "`StreamingDataset` with `TokensLoader`: every block is a row; the chunks of its writer byte for byte"
)
report("litdata", compared, [dataset[number] for number in range(len(dataset))])
