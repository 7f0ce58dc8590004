"""Where a rest is made: what was taken down stays down there, what is another run is not written over, and a
rest that was killed is one to whoever goes on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from continuation.rests import LONGER, ids_in, recipe_of, table_of, written
from forked import run_forked
from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile, InputError, RecipeError, TokenizerMismatch
from tokmill.loader import Batches, open_dataset
from written import rewrite_manifest


def test_what_was_taken_down_in_any_of_the_runs_stays_down(place: Path) -> None:
    """Of two runs, and in a directory that is there already."""
    named = {
        "path": "old/tokenizer/tokenizer.json",
        "eos": "<|endoftext|>",
    }  # a trained one learns without them
    runs = [place / name for name in ("one_less", "other_less")]
    for run, mixture in zip(runs, (None, {"tokens": 5000}), strict=True):
        asked = {"mixture": mixture} if mixture else {}
        recipe = recipe_of("web", "math", tokenizer=named, **asked)
        mill.run(written(place, run.name, recipe), run, workers=1)
    kept = {run: sorted(ids_in(run, "web")) for run in runs}
    first, second, third = kept[runs[0]][:3]
    mill.forget(runs[0], doc_id=[first], source="web", workers=1)
    mill.forget(runs[1], doc_id=[second], source="web", workers=1)
    builds = [run / "build/rows" for run in runs]
    batches = Batches([open_dataset(one, "train") for one in builds], 1, 0, weights=[1, 1])
    longer = recipe_of("web", "math", mixture={**LONGER, "max_epochs": 9}, tokenizer=named)
    recipe = written(place, "less", longer)
    arguments: Json = {"recipe": recipe, "out": place / "less", "weights": [1, 1], "workers": 1}
    for position in (10, 20):
        batches.position = position
        out = mill.continue_(builds, at=batches.state_dict(), **arguments).run.out
        assert not ids_in(out, "web") & {first, second}
        assert mill.verify(out).problems == []
        mill.forget(out, doc_id=[third], source="web", workers=1)
    batches.position = 30
    mill.continue_(builds, at=batches.state_dict(), **arguments)
    assert not ids_in(out, "web") & {first, second, third}
    told = pq.read_table(out / "forgotten.parquet").to_pylist()
    ids = sorted(hashlib.sha256(doc_id.encode()).hexdigest() for doc_id in (first, second, third))
    assert [one["id_sha256"] for one in told] == ids


def test_a_takedown_by_its_source_is_noted_in_the_rest_too(place: Path) -> None:
    """That a source was taken down as a whole is known where it is asked for again."""
    old = shutil.copytree(place / "old", place / "without_math")
    mill.forget(old, source="math", workers=1)
    recipe = written(place, "noted", recipe_of("web", "math", mixture={}))
    made = mill.continue_(
        old / "build/rows", recipe=recipe, out=place / "noted", step=2, batch_size=3, workers=1
    )
    assert mill.forget(made.run.out, source="math", workers=1).as_json()["affected"] is not None
    assert pq.read_schema(made.run.out / "forgotten.parquet").metadata == (
        pq.read_schema(old / "forgotten.parquet").metadata
    )


@pytest.mark.parametrize("mixture", [LONGER, {"tokens": 100}])
def test_a_run_that_is_no_rest_does_not_become_one(place: Path, state: Json, mixture: Json) -> None:
    recipe = written(place, "plain", recipe_of("web", "math", mixture={"tokens": 3000}))
    out = place / f"plain{len(mixture)}"
    mill.run(recipe, out, workers=1)
    before = mill.verify(out)
    later = written(place, "too_late", recipe_of("web", "math", mixture=mixture))
    with pytest.raises(InputError, match="holds a run that is not the rest of another"):
        mill.continue_(place / "old/build/rows", recipe=later, out=out, at=state, workers=1)
    assert not (out / "seen.parquet").exists()
    assert mill.run(recipe, out, workers=1).ran == []
    assert mill.verify(out).digest == before.digest


def test_the_rest_of_another_run_is_not_written_over(place: Path, rest: Path) -> None:
    out, before = shutil.copytree(rest, place / "of_old"), mill.verify(rest)
    with pytest.raises(InputError, match="holds the rest of another run"):
        mill.continue_(
            place / "twice/build/rows", recipe=place / "new.yaml", out=out, step=2, batch_size=3, workers=1
        )
    assert mill.verify(out).digest == before.digest


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"tokens": 100}, "nothing is left"),
        ({**LONGER, "weights": {"nobody": 1}}, "no domain is called nobody"),
    ],
)
def test_a_rest_that_is_refused_leaves_the_one_that_was_there(
    place: Path, rest: Path, state: Json, mixture: Json, message: str
) -> None:
    out, before = shutil.copytree(rest, place / f"kept{len(mixture)}"), mill.verify(rest)
    table = (rest / "seen.parquet").read_bytes()
    later = {**state, "position": state["position"] + 5}
    recipe = written(place, "refused", recipe_of("web", "math", "more", mixture=mixture))
    with pytest.raises((InputError, RecipeError), match=message):
        mill.continue_(place / "old/build/rows", recipe=recipe, out=out, at=later, workers=1)
    assert (out / "seen.parquet").read_bytes() == table
    mill.run(place / "new.yaml", out, workers=1)
    assert mill.verify(out).digest == before.digest


KILLED_IN_COPY = """
import json, os, signal, sys
import tokmill
from tokmill.artifacts import runs
from tokmill.continuation import continuing

def link_half(source, target):
    runs.link_run(source / "ingest", target / "ingest")
    os.kill(os.getpid(), signal.SIGKILL)

continuing.link_run = link_half
build, recipe, out, state = sys.argv[1:]
tokmill.continue_(build, recipe=recipe, out=out, at=json.loads(state), workers=1)
"""


def test_a_rest_that_was_killed_as_it_began_is_a_rest_to_whoever_goes_on(
    place: Path, state: Json, rest: Path
) -> None:
    expected, build = mill.verify(rest), place / "old/build/rows"
    old = shutil.copytree(place / "old", place / "old_begun")
    web = sorted(ids_in(old, "web"))
    mill.forget(old, doc_id=web[:1], source="web", workers=1)
    for run in (place / "old", old):
        out = place / f"begun_{run.name}"
        told = (
            state if run.name == "old" else Batches(open_dataset(old / "build/rows", "train"), 1).state_dict()
        )
        arguments = [str(run / "build/rows"), str(place / "new.yaml"), str(out), json.dumps(told)]
        assert run_forked(arguments, dict(os.environ), code=KILLED_IN_COPY).returncode == -signal.SIGKILL
        assert (out / "ingest").is_dir()
        assert table_of(out) or run == old
        assert (out / "forgotten.parquet").exists() == (run == old)
    with pytest.raises((TokenizerMismatch, RecipeError), match="is not here"):
        mill.run(place / "new.yaml", place / "begun_old", workers=1)
    mill.continue_(build, recipe=place / "new.yaml", out=place / "begun_old", at=state, workers=1)
    assert mill.verify(place / "begun_old").digest == expected.digest


def lost(path: Path) -> None:
    path.unlink()


def garbled(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def of_other_rows(path: Path) -> None:
    """As sound a Parquet file, with its metadata, as the one that was there."""
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def bit_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # in its first column
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [lost, garbled, of_other_rows, bit_flipped])
def test_a_history_that_is_damaged_is_made_again_by_continue_alone(
    place: Path, rest: Path, state: Json, damage: Callable[[Path], None]
) -> None:
    """Without it the recipe makes a run from the beginning, where all that was trained on comes again."""
    out, before = shutil.copytree(rest, place / damage.__name__), mill.verify(rest)
    order = (out / "mixture/order-train.parquet").read_bytes()
    damage(out / "seen.parquet")
    if damage is lost:
        (out / "manifest.json").unlink()  # the mixture says it too
    else:
        found = mill.verify(out)
        assert [problem.where for problem in found.problems] == ["seen.parquet"]
        assert "`tokmill continue`" in found.next
        assert "tokmill run" not in found.next
        with pytest.raises(InputError, match=r"seen\.parquet"):
            mill.forget(out, doc_id=sorted(ids_in(out, "web"))[:1], workers=1)
        assert not (out / "forgotten.parquet").exists()
    with pytest.raises(InputError, match=r"seen\.parquet") as refused:
        mill.run(place / "new.yaml", out, workers=1, verify=True)
    assert "give the same `tokmill continue` again" in str(refused.value)
    longer = recipe_of("web", "math", "more", mixture={**LONGER, "tokens": 14500})
    with pytest.raises(InputError, match=r"seen\.parquet"):
        mill.run(written(place, "longer", longer), out, workers=1)
    assert (out / "mixture/order-train.parquet").read_bytes() == order
    arguments: Json = {"recipe": place / "new.yaml", "out": out, "at": state, "workers": 1}
    mill.continue_(place / "old/build/rows", **arguments)
    assert mill.verify(out).problems == []
    assert mill.verify(out).digest == before.digest


def test_a_rest_that_another_version_made_is_no_run_from_the_beginning(place: Path, rest: Path) -> None:
    """Which of its runs came before is told in words of that version, and its table is lost."""
    out = shutil.copytree(rest, place / "of_another_version")

    def reword(body: Json) -> None:
        body["facts"]["continues"] = {"runs": body["facts"]["continues"]["builds"]}

    rewrite_manifest(out, reword)
    (out / "seen.parquet").unlink()
    with pytest.raises(CorruptFile, match="does not say of which run it is the rest"):
        mill.run(place / "new.yaml", out, workers=1)
    assert mill.verify(out).problems
    with pytest.raises(CorruptFile, match="not there yet"):
        mill.continue_(
            place / "old/build/rows", recipe=place / "new.yaml", out=out, step=2, batch_size=3, workers=1
        )


def test_the_history_of_another_run_is_not_written_over_where_it_cannot_be_read(
    place: Path, rest: Path
) -> None:
    out = shutil.copytree(rest, place / "garbled_of_old")
    garbled(out / "seen.parquet")
    with pytest.raises(InputError, match="holds the rest of another run"):
        mill.continue_(
            place / "twice/build/rows", recipe=place / "new.yaml", out=out, step=2, batch_size=3, workers=1
        )
    assert set((out / "seen.parquet").read_bytes()) == set(b"x")
