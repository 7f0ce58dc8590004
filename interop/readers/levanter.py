"""Levanter's own TreeCache opens the cache, and its SerialCacheWriter writes the same arrays.

Its package imports all of training; `levanter` is here what its store needs of it.
"""

import sys
import tempfile
import types
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np

from compare import clone, given, report, require

BUILD = {"format": "levanter", "pack": {"layout": "indexed"}}

source = clone("stanford-crfm/levanter")
package = types.ModuleType("levanter")
package.__path__ = [str(source.path / "src/levanter")]
sys.modules["levanter"] = package

from levanter.store import SerialCacheWriter, TreeCache

train, ids, lengths = given()
exemplar = {"input_ids": np.zeros(0, np.int32)}
cache = TreeCache.load(str(train), exemplar)
require(len(cache) == len(lengths) == cache.ledger.total_num_rows, "other documents")
documents = [one["input_ids"] for one in cache.get_batch_sync(range(len(cache)))]

with tempfile.TemporaryDirectory() as folder:
    with SerialCacheWriter(folder, exemplar) as writer:
        writer.write_batch(
            [{"input_ids": one} for one in np.split(ids.astype(np.int32), np.cumsum(lengths)[:-1])]
        )
    theirs = TreeCache.load(folder, exemplar).store.tree["input_ids"]
    ours = cache.store.tree["input_ids"]
    for name, count in (("offsets", len(lengths) + 1), ("data", len(ids))):
        require(
            (train / f"input_ids/{name}/zarr.json").read_bytes()
            == (Path(folder) / f"input_ids/{name}/zarr.json").read_bytes(),
            f"another zarr.json of {name}",
        )
        mine, other = (getattr(one, name)[:count].read().result() for one in (ours, theirs))
        require(mine.dtype == other.dtype and np.array_equal(mine, other), f"other {name}")
compared = "`TreeCache.load`: every document; `zarr.json` and arrays of `SerialCacheWriter`"
report("levanter", compared, documents, version=source.version)
