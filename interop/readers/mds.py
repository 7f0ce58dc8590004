"""MosaicML streaming's own StreamingDataset, and the bytes of its MDSWriter."""

import importlib.util
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

try:
    import streaming  # noqa: F401
except ModuleNotFoundError as error:  # its datasets of images need torchvision; those of tokens do not
    spec = importlib.util.find_spec("streaming")
    if spec is None or error.name != "torchvision":
        raise
    sys.modules["streaming"] = importlib.util.module_from_spec(spec)

from streaming.base import MDSWriter, StreamingDataset

from compare import given, report, require

BUILD = {"format": "mds", "pack": {"layout": "indexed"}}

train, ids, lengths = given()
documents = np.split(ids, np.cumsum(lengths)[:-1])
with tempfile.TemporaryDirectory() as folder:
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=folder) as writer:
        for document in documents:
            writer.write({"tokens": document.astype(np.int32)})
    for path in sorted(Path(folder).iterdir()):
        require((train / path.name).read_bytes() == path.read_bytes(), f"{path.name} has other bytes")
dataset = StreamingDataset(local=str(train), shuffle=False, batch_size=1)
require(len(dataset) == len(lengths), "other documents")
compared = "`StreamingDataset`: every sample; shards and `index.json` of `MDSWriter` byte for byte"
report("mosaicml-streaming", compared, [dataset[number]["tokens"] for number in range(len(dataset))])
