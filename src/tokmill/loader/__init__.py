"""From a build to batches, with NumPy alone.

    ds = open_dataset("demo/out/build/rows")                    dataset.py    checked, mapped, read-only
    batches = Batches(ds, batch_size=8, seed=1)                 batches.py    the global order, cut
    for batch in batches:                                                     one epoch
        batch["tokens"], batch["targets"], batch["attn_mask"]   collating.py  (B, T) each
        state = batches.state_dict()                                          resumes after this batch

    naming.py       batches for transformers
    origins.py      whose rows and tokens are           order.py     the n-th sample of all
    curriculum.py   stages, one after the other
    torch.py        for DataLoader                      tiny.py      a model small enough to try a batch on
    remote.py       a build in an object store

The files themselves are opened by their format (tokmill.formats): what it hands over is a Store.

Names are loaded when they are first used: NumPy takes longer to import than all of this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokmill.loader.batches import Batches
    from tokmill.loader.collating import collate
    from tokmill.loader.curriculum import Curriculum, open_curriculum
    from tokmill.loader.dataset import Dataset, Example, list_splits, open_dataset
    from tokmill.loader.naming import IGNORE_INDEX, Batch
    from tokmill.loader.order import Bucketing

_HOMES = {
    "Batches": "tokmill.loader.batches",
    "Batch": "tokmill.loader.naming",
    "IGNORE_INDEX": "tokmill.loader.naming",
    "collate": "tokmill.loader.collating",
    "Curriculum": "tokmill.loader.curriculum",
    "open_curriculum": "tokmill.loader.curriculum",
    "Dataset": "tokmill.loader.dataset",
    "Example": "tokmill.loader.dataset",
    "list_splits": "tokmill.loader.dataset",
    "open_dataset": "tokmill.loader.dataset",
    "Bucketing": "tokmill.loader.order",
}

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "Batches",
    "Bucketing",
    "Curriculum",
    "Dataset",
    "Example",
    "collate",
    "list_splits",
    "open_curriculum",
    "open_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tokmill.loader' has no attribute {name!r}")
