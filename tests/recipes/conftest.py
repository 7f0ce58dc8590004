"""The offline recipes as a newcomer gets them: copied into one directory with the files that they read."""

from __future__ import annotations

import pytest

from mill import SHARED
from recipes.shelved import Milled, Shelved
from tokmill.demos.stand_in import write_stand_in
from tokmill.recipe.examples import STAND_IN, copy_recipe, recipe_names

RANKS = SHARED / "data" / "tokenizers" / "tiktoken"
O200K, R50K = RANKS / "o200k_base.tiktoken", RANKS / "r50k_base.tiktoken"


@pytest.fixture(scope="session")
def shelved(tmp_path_factory: pytest.TempPathFactory) -> Shelved:
    directory = tmp_path_factory.mktemp("recipes")
    for name in recipe_names():
        copy_recipe(name, directory / f"{name}.yaml", offline=True)
    write_stand_in(directory / STAND_IN)
    (directory / "tok").mkdir()
    for ranks in (O200K, R50K):
        if ranks.exists():
            (directory / "tok" / ranks.name).symlink_to(ranks)
    return Shelved(directory)


@pytest.fixture(scope="session")
def milled(shelved: Shelved) -> Milled:
    return Milled(shelved)
