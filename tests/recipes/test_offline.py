"""What holds for every recipe: the same bytes again, nothing to do twice, all accounted for,
killed or not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tokmill
from faults.dying import After, die_in_run
from recipes.shelved import NAMES, Milled, Shelved


def test_every_recipe_of_the_shelf_is_tested_here() -> None:
    shelf = Path(__file__).resolve().parents[2] / "recipes"
    assert sorted(path.stem for path in shelf.glob("*.yaml")) == list(NAMES)
    assert sorted(path.stem for path in (shelf / "offline").glob("*.yaml")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_has_nothing_to_do_and_all_verifies(milled: Milled, shelved: Shelved, name: str) -> None:
    first = milled(name)
    again = tokmill.run(shelved.path(name), first.out, workers=1)
    assert again.ran == []
    assert sorted(again.skipped) == sorted(first.artifacts)
    assert tokmill.verify(first.out).problems == []


@pytest.mark.parametrize("name", NAMES)
def test_in_every_step_what_came_in_is_kept_dropped_or_quarantined(milled: Milled, name: str) -> None:
    counted = 0
    for artifact in milled(name).artifacts.values():
        counts = artifact.manifest.counts
        if "in" in counts:
            lost = sum(counts["dropped"].values()) + sum(counts["quarantined"].values())
            assert counts["in"] == counts["kept"] + lost, artifact.manifest.kind
            counted += 1
    assert counted >= 5


# Two workers once: that killed workers are survived is proven elsewhere,
# and a pool takes longer to start than the run.
@pytest.mark.parametrize(
    ("name", "workers"),
    [("healing", 1), ("mini-translation", 1), ("stage-a", 1), ("three-domains", 2), ("web-mixture", 1)],
)
def test_a_killed_run_goes_on_to_the_same_digest(
    milled: Milled, shelved: Shelved, tmp_path: Path, name: str, workers: int
) -> None:
    whole, out = milled(name), tmp_path / "out"
    moment = random.randrange(len(whole.ran))  # how many steps are done by then
    after: After = "step" if moment else "plan"
    die_in_run(shelved.path(name), out, after=after, count=moment or 1, workers=workers)
    done = {step for step in whole.ran if (out / step / "manifest.json").exists()}
    assert moment <= len(done) < len(whole.ran)
    resumed = tokmill.run(shelved.path(name), out, workers=1)
    assert set(resumed.ran) == set(whole.ran) - done, f"killed after {moment}"
    assert tokmill.verify(out).digest == tokmill.verify(whole.out).digest, f"killed after {moment}"
