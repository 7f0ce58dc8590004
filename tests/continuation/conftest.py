"""A run that was trained on, a state of its loader, and its rest: one for all tests of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokmill as mill
from continuation.rests import DOMAINS, LONGER, recipe_of, written
from mill import write_problems
from tokmill.artifacts.manifest import Json
from tokmill.loader import Batches, open_dataset


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, which was trained on, and a corpus of three sources, two of which it has."""
    directory = tmp_path_factory.mktemp("rest")
    for number, name in enumerate(DOMAINS):
        write_problems(directory / f"{name}.jsonl", 30, seed=number + 1)
    mill.run(written(directory, "old", recipe_of("web", "math")), directory / "old", workers=1)
    repeated = {"weights": {"web": "0.8", "math": "0.2"}, "tokens": 12000, "exhausted": "repeat"}
    told = recipe_of("web", "math", mixture=repeated)
    mill.run(written(directory, "twice", told), directory / "twice", workers=1)
    return directory


@pytest.fixture(scope="session")
def state(place: Path) -> Json:
    batches = Batches(open_dataset(place / "old/build/rows", "train"), 1, 1)
    batches.epoch, batches.position = 0, batches.epoch_samples * 2 // 3
    return batches.state_dict()


@pytest.fixture(scope="session")
def rest(place: Path, state: Json) -> Path:
    """Of `old`, with a source more and longer."""
    recipe = written(place, "new", recipe_of("web", "math", "more", mixture=LONGER))
    return mill.continue_(
        place / "old/build/rows", recipe=recipe, out=place / "new", at=state, workers=1
    ).run.out
