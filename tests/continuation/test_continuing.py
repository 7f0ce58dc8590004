"""The rest of a run, against a replay and a walk by hand: what was seen is counted from batches of the loader
and from index.jsonl.zst, and what is to come is walked turn by turn, over all documents each time."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from continuation.rests import (
    DOMAINS,
    LONGER,
    Had,
    had_by_replay,
    id_of,
    recipe_of,
    rows_handed_out,
    table_of,
    walk,
    written,
)
from forked import run_forked
from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.loader import Batches, Bucketing, open_dataset


def check_any(place: Path, data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(["old", "twice"]))
    builds = data.draw(st.sampled_from([["rows"], ["mega"], ["rows", "mega"]]))
    weights = [1, 2][: len(builds)] if len(builds) > 1 else None
    seed = data.draw(st.integers(0, 3))
    directories = [place / old / "build" / build for build in builds]
    batches = Batches([open_dataset(one, "train") for one in directories], 1, seed, weights=weights)
    samples = data.draw(st.integers(0, 2 * batches.epoch_samples))
    batches.epoch, batches.position = divmod(samples, batches.epoch_samples)
    had = had_by_replay(place / old, builds, rows_handed_out(batches, samples))
    trained_on = sum(one.tokens for one in had.values())

    names = data.draw(st.sampled_from([["web", "math"], ["web"], ["web", "math", "more"], ["more", "math"]]))
    edit = data.draw(st.sampled_from(["all", "weights", "tokens", "shares", "documents", "blocks"]))
    passes = sum(one.passes for one in had.values())
    seen = {"documents": passes, "blocks": trained_on // 48}.get(edit, trained_on)
    more = data.draw(st.integers(1, 9000)) // {"documents": 90, "blocks": 48}.get(edit, 1) + 1
    target = -(-10 * (seen + more) // 9)  # a tenth is held out
    mixture: Json = {"order": data.draw(st.sampled_from(["shuffle", "corpus"]))}
    if edit in ("tokens", "shares", "documents", "blocks"):
        unit = "tokens" if edit == "shares" else edit
        mixture |= {"exhausted": "repeat", "max_epochs": 30, unit: target}
    if edit in ("weights", "shares"):
        domains = dict.fromkeys(DOMAINS[name] for name in names)
        mixture |= {"weights": dict(zip(domains, ("0.75", "0.25"), strict=False)), "normalize": True}
    others_held_out = data.draw(st.sampled_from([3, 3, 4]))
    recipe = recipe_of(*names, mixture=mixture, seed=others_held_out)
    out = place / "any"
    shutil.rmtree(out, ignore_errors=True)
    try:
        made = mill.continue_(
            directories, recipe=written(place, "any", recipe), out=out, at=batches.state_dict(),
            weights=weights, workers=1,
        )  # fmt: skip
    except InputError as error:  # of what was seen whole there is no other pass
        if "nothing is left" in error.what:
            return
        raise
    assert table_of(out) == {(source, id_of(doc_id)): one for (source, doc_id), one in had.items()}
    most_passes = 30 if "max_epochs" in mixture else 1
    after = walk(out, names, had, most_passes)
    if edit == "all":  # what was seen and what is to come are all documents that the recipe asks for
        assert min(after.values()) >= 2
    if edit in ("tokens", "shares", "documents", "blocks"):  # … and are as much as it asks for
        check_length(out, names, edit, target - int(target * 0.1) - seen)
    if data.draw(st.sampled_from([False, False, False, True])):
        source, doc_id = data.draw(st.sampled_from(sorted(after)))
        mill.forget(out, doc_id=[doc_id], source=source, workers=1)
        assert (source, doc_id) not in walk(out, names, had, most_passes)
    assert mill.verify(out).problems == []
    assert made.as_json()["continues"]["tokens"] == trained_on


def check_length(run: Path, names: list[str], edit: str, left: int) -> None:
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    turns = recount.turns("train")
    longest = max(doc.tokens for doc in recount.documents)
    tokens = sum(doc.tokens for doc in turns)
    match edit:
        case "documents":
            assert len(turns) == left
        case "blocks":
            assert len(recount.built("rows", "train").rows) == left
        case _:
            assert left - longest * len(names) < tokens <= left
    if edit == "shares" and len(domains := list(dict.fromkeys(DOMAINS[name] for name in names))) > 1:
        first = sum(doc.tokens for doc in turns if doc.domain == domains[0])
        assert abs(first - 3 * left / 4) <= longest


@given(data=st.data())
@settings(deadline=None, max_examples=6)
def test_what_was_seen_comes_last_in_any_rest_of_any_run(place: Path, data: st.DataObject) -> None:
    check_any(place, data)


@pytest.mark.slow_faults
@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_what_was_seen_comes_last_in_many_rests_of_any_run(place: Path, data: st.DataObject) -> None:
    check_any(place, data)


KILLED = """
import json, os, signal, sys
import tokmill
from tokmill.stages.build import mixing

mixing.count_sets = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
build, recipe, out, state = sys.argv[1:]
tokmill.continue_(build, recipe=recipe, out=out, at=json.loads(state), workers=1)
"""


def test_it_is_the_same_for_one_worker_and_three_and_after_a_kill(
    place: Path, state: Json, rest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, build = mill.verify(rest), place / "old/build/rows"
    assert expected.problems == []
    arguments = [str(build), str(place / "new.yaml"), str(place / "killed"), json.dumps(state)]
    assert run_forked(arguments, dict(os.environ), code=KILLED).returncode == -signal.SIGKILL
    assert not (place / "killed/mixture/manifest.json").exists()
    for name, workers in (("killed", 1), ("three", 3)):
        made = mill.continue_(build, recipe=place / "new.yaml", out=place / name, at=state, workers=workers)
        assert mill.verify(made.run.out).digest == expected.digest
    # large sources are sorted by tasks of their own
    monkeypatch.setattr("tokmill.stages.build.mixture_stage._SORTED_AT_ONCE", 4)
    made = mill.continue_(build, recipe=place / "new.yaml", out=place / "sorted", at=state, workers=1)
    assert mill.verify(made.run.out).digest == expected.digest
    again = mill.continue_(build, recipe=place / "new.yaml", out=place / "sorted", at=state, workers=1)
    assert again.run.ran == []


def test_the_recipe_is_run_again_in_its_directory_without_the_run_that_it_continues(
    place: Path, rest: Path
) -> None:
    moved = place / "elsewhere"
    shutil.copytree(rest, moved)
    pinned = {"path": "elsewhere/tokenizer/tokenizer.json", "eos": "<|endoftext|>"}
    recipe = written(place, "again", recipe_of("web", "math", "more", mixture=LONGER, tokenizer=pinned))
    done = mill.run(recipe, moved, workers=1)
    assert done.ran == []
    facts = json.loads((moved / "manifest.json").read_bytes())["facts"]["continues"]
    assert facts["builds"][0]["build"] == "build/rows"
    old = json.loads((place / "old/build/rows/manifest.json").read_bytes())
    assert facts["builds"][0]["experiment_id"] == old["experiment_id"]
    assert facts["tokenizer"]["sha256"] == old["facts"]["tokenizer"]["sha256"]


def test_another_state_makes_another_mixture_and_nothing_before_it(
    place: Path, rest: Path, state: Json
) -> None:
    shutil.copytree(rest, place / "moved_on", dirs_exist_ok=True)
    later = {**state, "position": state["position"] + 5}
    made = mill.continue_(
        place / "old/build/rows", recipe=place / "new.yaml", out=place / "moved_on", at=later, workers=1
    )
    assert made.run.ran == ["mixture", "build/rows", "build/mega"]
    assert (
        made.continues.tokens
        == pq.read_table(rest / "seen.parquet").column("tokens").to_numpy().sum() + 5 * 48
    )


def test_the_rest_of_a_rest_counts_what_both_had_seen(place: Path, rest: Path) -> None:
    dataset = open_dataset(rest / "build/rows", "train")
    batches = Batches(dataset, 1, 0, shuffle="none")
    batches.epoch, batches.position = 0, len(dataset) // 2
    longer = written(place, "third", recipe_of("web", "more", mixture={**LONGER, "tokens": 20000}))
    made = mill.continue_(
        rest / "build/rows", recipe=longer, out=place / "third", at=batches.state_dict(), workers=1
    )
    before, own = table_of(rest), table_of_replay(rest, batches)
    assert table_of(made.run.out) == {
        key: both(before.get(key, NONE), own.get(key, NONE)) for key in before.keys() | own.keys()
    }
    assert made.continues.builds[0].history == hashed(rest)
    assert mill.verify(made.run.out).problems == []
    assert made.run.artifacts["mixture"].manifest.facts["splits"]["train"]["continued"]["gone"]["math"]


def test_a_step_is_of_the_buckets_that_the_loader_had(place: Path) -> None:
    batches = Batches(open_dataset(place / "old/build/rows", "train"), 3, 1, bucketing=Bucketing(12, 2))
    batches.took(0, 9)
    made = mill.continue_(
        place / "old/build/rows", recipe=written(place, "buckets", recipe_of("web", "math", mixture=LONGER)),
        out=place / "buckets", step=3, batch_size=3, seed=1, bucketing=(12, 2), workers=1,
    )  # fmt: skip
    assert table_of(made.run.out) == table_of_replay(place / "old", batches)


NONE = Had(0, False, 0)


def both(one: Had, other: Had) -> Had:
    return Had(one.passes + other.passes, one.is_partly or other.is_partly, one.tokens + other.tokens)


def table_of_replay(run: Path, batches: Batches) -> dict[tuple[str, int], Had]:
    handed_out = rows_handed_out(batches, batches.position)
    had = had_by_replay(run, ["rows"], handed_out, names=("web", "math", "more"))
    return {(source, id_of(doc_id)): one for (source, doc_id), one in had.items()}


def hashed(run: Path) -> str:
    digest: str = json.loads((run / "manifest.json").read_bytes())["facts"]["continues"]["history"]
    return digest


def test_a_recipe_without_weights_has_natural_shares_over_the_whole_run(place: Path) -> None:
    """`twice` gave most of its tokens to one source."""
    dataset = open_dataset(place / "twice/build/mega", "train")
    batches = Batches(dataset, 1, 0)
    batches.epoch = 1
    had = had_by_replay(place / "twice", ["mega"], rows_handed_out(batches, len(dataset)))
    assert max(one.passes for (source, _), one in had.items() if source == "web") > 1
    mixture = {"tokens": 24000, "exhausted": "repeat"}
    recipe = written(place, "even", recipe_of("web", "math", mixture=mixture))
    out = place / "even"
    mill.continue_(place / "twice/build/mega", recipe=recipe, out=out, at=batches.state_dict(), workers=1)
    levels = walk(out, ["web", "math"], had, 4)
    assert max(levels.values()) - min(levels.values()) <= 2


def test_what_is_taken_down_is_not_there_and_was_seen_all_the_same(place: Path, rest: Path) -> None:
    out = shutil.copytree(rest, place / "down")
    seen = [
        doc for doc in Recount(out, DOMAINS).in_split("train") if ("web", id_of(doc.doc_id)) in table_of(out)
    ]
    gone = next(doc.doc_id for doc in seen if doc.source == "web")
    before = mill.verify(out)
    mill.forget(out, doc_id=[gone], source="web", workers=1)
    assert mill.verify(out).problems == []
    assert mill.verify(out).digest != before.digest
    facts = json.loads((out / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]["continued"]
    first = json.loads((rest / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]["continued"]
    assert facts["sources"]["web"]["gone"] == first["sources"]["web"]["gone"] + 1
    assert gone not in [doc.doc_id for doc in Recount(out, DOMAINS).turns("train") if doc.source == "web"]
    made = mill.continue_(
        out / "build/rows", recipe=place / "new.yaml", out=place / "down_on", step=2, batch_size=3, workers=1
    )
    documents = Recount(made.run.out, DOMAINS).documents
    assert gone not in [doc.doc_id for doc in documents if doc.source == "web"], "it stays down"
