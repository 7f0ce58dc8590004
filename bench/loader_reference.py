"""What bench/loader.py compares with, in an environment of its own (torch, mosaicml-streaming, datasets).

    python bench/loader_reference.py ROWS.npy BATCH BATCHES ROUNDS   ->  {"name": CPU seconds per batch, …}

Both shuffle globally, without worker processes, over the same rows: what is counted is the work for a batch.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np


def main() -> int:
    rows = np.load(sys.argv[1], mmap_mode="r")
    batch, batches, rounds = map(int, sys.argv[2:5])
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            "StreamingDataset + DataLoader": per_batch(
                streaming(rows, batch, Path(scratch)), batches, rounds
            ),
            "datasets Arrow table + DataLoader": per_batch(
                arrow(rows, batch, Path(scratch)), batches, rounds
            ),
        }
    print(json.dumps(found))
    return 0


def per_batch(opened: Callable[[], Iterable[Any]], batches: int, rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        loop = iter(opened())
        next(loop)  # what it costs to begin is not counted
        started, count = time.process_time(), 0
        for batch in islice(loop, batches):
            assert batch["tokens"].ndim == 2, batch["tokens"].shape
            count += 1
        samples.append((time.process_time() - started) / count)
    return statistics.median(samples)


def streaming(rows: Any, batch: int, scratch: Path) -> Callable[[], Iterable[Any]]:
    # its collection of image datasets wants a torchvision that fits the torch exactly, and is not needed here
    sys.modules.setdefault("streaming.vision", types.ModuleType("streaming.vision"))
    from streaming import MDSWriter, StreamingDataset  # type: ignore[import-not-found]
    from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found]
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    place = str(scratch / "mds")
    with MDSWriter(out=place, columns={"tokens": f"ndarray:int32:{rows.shape[1]}"}) as writer:
        for row in rows:
            writer.write({"tokens": np.asarray(row)})
    dataset = StreamingDataset(local=place, shuffle=True, shuffle_seed=1, batch_size=batch)
    return lambda: DataLoader(dataset, batch_size=batch)


def arrow(rows: Any, batch: int, scratch: Path) -> Callable[[], Iterable[Any]]:
    import datasets  # type: ignore[import-untyped]
    import pyarrow as pa
    from torch.utils.data import DataLoader

    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.asarray(rows).reshape(-1), pa.int32()))
    datasets.Dataset(pa.table({"tokens": lists})).save_to_disk(str(scratch / "arrow"))
    table = datasets.load_from_disk(str(scratch / "arrow")).with_format("torch")
    return lambda: DataLoader(table, batch_size=batch, shuffle=True)


if __name__ == "__main__":
    raise SystemExit(main())
