"""One run for all tests of takedowns, and a copy of it for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tokmill as mill
from takedown.marked import make_corpus, make_recipe


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("forget")
    make_corpus(directory)
    return mill.run(make_recipe(directory), workers=1).out


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    """By itself: what it was made from is not beside it."""
    return shutil.copytree(pristine, tmp_path / "alone" / "run")
