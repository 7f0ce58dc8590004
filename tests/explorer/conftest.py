from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tokmill
from explored import Client, mill_corpus


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Indexes of texts go here, and not to who runs the tests."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        yield directory


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill_corpus(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="session")
def client(run: Path) -> Iterator[Client]:
    with tokmill.explore(run) as explorer:
        yield Client(explorer)
