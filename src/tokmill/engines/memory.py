"""How many workers a bound on memory allows.

    memory  >=  driver  +  workers x (worker + SHARD_FACTOR x shard)

The size of a shard is the recipe's, for it decides the bytes that are written; so a bound can only lower the
number of workers. Training a tokenizer is outside this sum: `tokenizer.train.sample_megabytes` bounds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from tokmill.errors import RecipeError

_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)[bB]?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}

# Measured, every stage of a run in one process: 566 MiB at most with shards of 8 MiB, 821 with 64, 1,066 with 128:
# 540 and four times a shard. Text that expands (one-byte documents, NFKC) needs more than the texts of the bench.
DRIVER_BYTES = 350_000_000
WORKER_BYTES = 600_000_000
SHARD_FACTOR = 6


def parse_bytes(written: str) -> int:
    """4GB, 512MiB, 1.5G."""
    match = _WRITTEN.fullmatch(written.strip())
    size = Decimal(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]] if match else Decimal(0)
    if size < 1:
        raise RecipeError(
            f"{written} is not an amount of memory", where="--memory", next="for example 4GB, 512MiB"
        )
    return int(size)


def workers_within(memory: int, wanted: int, shard_bytes: int, say: Callable[[str], None]) -> int:
    """As many of the workers as fit; the one that is the driver itself needs no second process."""
    each = WORKER_BYTES + SHARD_FACTOR * shard_bytes
    if each > memory:
        raise RecipeError(
            f"{_gigabytes(memory)} is too little for one worker, which may take {_gigabytes(each)}: "
            f"{SHARD_FACTOR} times a shard of {shard_bytes >> 20} MiB, and itself",
            where="--memory",
            next="give more memory, or set a smaller `shards.megabytes`",
        )
    fitting = max((memory - DRIVER_BYTES) // each, 1)
    if fitting < wanted:
        say(
            f"{fitting} of {wanted} workers fit into {_gigabytes(memory)} ({_gigabytes(each)} for each, "
            f"shards of {shard_bytes >> 20} MiB)"
        )
    return min(fitting, wanted)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
