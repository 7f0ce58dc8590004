"""All builds of an ablation have one budget of tokens: counted from the files of their builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import small_corpus  # noqa: E402
from tokmill.errors import InputError  # noqa: E402
from tokmill.proxy.targets import Target, open_target  # noqa: E402
from tokmill.proxy.trials import Asked, plan_schedules  # noqa: E402

LENGTHS = (32, 96, 128, 67, 61)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("builds")
    rows: list[Any] = [
        {"name": f"rows-{length}", "format": "memmap", "pack": {"length": length}} for length in LENGTHS
    ]
    pads = {"name": "padded", "format": "memmap", "pack": {"layout": "pad", "length": 96}}
    others = [{"name": "documents", "format": "megatron"}, pads]
    recipe = small_corpus(directory, problems=200, builds=[*rows, *others])
    return tokmill.run(recipe, directory / "out", workers=1).out / "build"


def targets(builds: Path, *names: str) -> list[Target]:
    return [open_target(name, builds / name) for name in names]


def asked(tokens: int, **options: Any) -> Asked:
    return Asked("0.2M", tokens, 1, 0.002, device="cpu", **options)


def row_length(build: Path) -> int:
    """Of the first row of the file, by what its index says of the rows."""
    meta = json.loads((build / "train/meta.json").read_bytes())
    size = (build / "train/input_ids.mmap").stat().st_size // np.dtype(meta["dtype"]).itemsize
    assert size % meta["n_seqs"] == 0
    return int(size // meta["n_seqs"])


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((32, 96), {}),
        ((96, 128), {"length": 32}),
        ((96, 96), {}),
        ((96, 32), {"batch_tokens": 700}),
        ((67, 67), {}),
    ],
)
def test_rows_of_other_lengths_come_to_as_many_tokens(
    lengths: tuple[int, int], options: dict[str, Any], builds: Path
) -> None:
    names = [f"rows-{length}" for length in lengths]
    schedules = plan_schedules(targets(builds, *names), asked(400_000, **options))
    seen = [
        schedule.steps * schedule.rows * row_length(builds / name)
        for name, schedule in zip(names, schedules, strict=True)
    ]
    assert seen[0] == seen[1] == pytest.approx(400_000, rel=0.01)
    assert schedules[0].steps == schedules[1].steps


def document_lengths(builds: Path) -> list[int]:
    """With the token that ends each, as the step that made tokens wrote them down."""
    found: list[int] = []
    for path in sorted((builds.parent / "tokens/train").glob("*/lengths-*.parquet")):
        table = pq.read_table(path)
        (name,) = (name for name in table.column_names if "token" in name)
        found += table.column(name).to_pylist()
    assert len(found) > 100
    return found


def test_documents_and_padded_rows_come_to_as_many_tokens_as_full_rows(builds: Path) -> None:
    names = ("rows-32", "documents", "padded")
    schedules = plan_schedules(targets(builds, *names), asked(400_000, length=32))
    lengths = document_lengths(builds)
    cut = sum(min(one, 32) for one in lengths) / len(lengths)
    padded = sum(min(one, 96) for one in lengths) / len(lengths)
    for schedule, row in zip(schedules, (32, cut, padded), strict=True):
        assert schedule.steps * schedule.rows * row == pytest.approx(400_000, rel=0.02)


def test_lengths_that_have_no_step_in_common_are_told(builds: Path) -> None:
    with pytest.raises(InputError, match="a step takes 523,136") as error:
        plan_schedules(targets(builds, "rows-67", "rows-61", "rows-128"), asked(16_000, length=1))
    assert "one divides the other" in error.value.next
    with pytest.raises(InputError, match="a step takes 100") as error:
        plan_schedules(targets(builds, "rows-96", "rows-128"), asked(16_000, length=32, batch_tokens=100))
    assert "384 or more" in error.value.next


def test_tokens_that_went_in_and_were_learned_are_told_and_so_is_what_was_asked(
    builds: Path, tmp_path: Path
) -> None:
    result = tokmill.ablate(
        [builds / "rows-32", builds / "documents"],
        size="0.2M",
        tokens=5000,
        seeds=1,
        length=16,
        held_out_bytes=500,
        device="cpu",
        out=tmp_path,
    )
    rows, documents = result.trials
    assert rows.tokens == 4096
    assert rows.learned == 4096 * 31 // 32
    assert documents.tokens == pytest.approx(4096, rel=0.05)
    assert documents.learned < documents.tokens
    lengths = document_lengths(builds)
    cut = 1 - sum(min(one, 16) for one in lengths) / sum(lengths)
    assert any(note.startswith("rows-32: a model is trained on 4,096 tokens") for note in result.notes)
    assert any(f"sees the rest, {cut:.0%} of all" in note for note in result.notes)
    page = (tmp_path / "ablation.md").read_text()
    assert "| tokens | learned | FLOPs |" in page
    assert f"| 4,096 | {4096 * 31 // 32:,} |" in page
