"""A bound on memory: how it is written, and how many workers it allows."""

from __future__ import annotations

import pytest

from tokmill.engines.local import DRIVER_BYTES, SHARD_FACTOR, WORKER_BYTES, parse_bytes, workers_within
from tokmill.errors import RecipeError

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("4GB", 4_000_000_000),
        ("4G", 4_000_000_000),
        ("4GiB", 4 << 30),
        ("1.5 GB", 1_500_000_000),
        ("512MiB", 512 << 20),
        ("900kb", 900_000),
        ("2T", 2_000_000_000_000),
        ("123", 123),
    ],
)
def test_sizes_as_people_write_them(written: str, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize("written", ["", "GB", "4 GB of it", "-1GB", "0", "0.1", "4GBB", "1e9", "four"])
def test_what_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(RecipeError, match="is not an amount of memory"):
        parse_bytes(written)


def test_as_many_workers_as_fit_and_it_is_said_when_not_all_do() -> None:
    each = WORKER_BYTES + SHARD_FACTOR * 32 * MEGABYTE
    said: list[str] = []
    enough = DRIVER_BYTES + 3 * each
    assert workers_within(enough, 3, 32 * MEGABYTE, said.append) == 3
    assert said == []
    assert workers_within(enough - 1, 3, 32 * MEGABYTE, said.append) == 2
    assert len(said) == 1
    assert said[0].startswith("2 of 3 workers fit into 2.8 GB (0.8 GB for each, shards of 32 MiB)")


def test_one_worker_is_the_driver_itself_and_less_is_refused() -> None:
    each = WORKER_BYTES + SHARD_FACTOR * 32 * MEGABYTE
    assert workers_within(each, 8, 32 * MEGABYTE, lambda message: None) == 1
    with pytest.raises(RecipeError) as caught:
        workers_within(each - 1, 8, 32 * MEGABYTE, print)
    assert caught.value.where == "--memory"
    assert "too little for one worker" in caught.value.what
    assert "shards.megabytes" in caught.value.next
