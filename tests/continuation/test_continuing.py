"""The rest of a run, against a replay and a walk by hand: what was seen is counted from batches of the loader
and from index.jsonl.zst, and what is to come is walked turn by turn, over all documents each time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from forked import run_forked
from mill import write_problems
from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.runs import load_finished, open_run
from tokmill.artifacts.step import Artifact
from tokmill.audit.continued import continuation_problems
from tokmill.cli import main
from tokmill.errors import InputError, RecipeError, TokenizerMismatch
from tokmill.loader import Batches, open_dataset

Key = tuple[str, str]  # source and id

DOMAINS = {"web": "web", "math": "math", "more": "math"}  # of the sources
TEXT = "{question} {answer}"


def recipe_of(*names: str, **sections: Any) -> Json:
    sources = [
        {
            "name": name,
            "domain": DOMAINS[name],
            "files": f"{name}.jsonl",
            "template": TEXT,
            "fields": {"id": "id"},
        }
        for name in names
    ]
    return {
        "name": "whole",
        "seed": 3,
        "sources": sources,
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
        **sections,
    }


def written(directory: Path, name: str, recipe: Json) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    return path


@pytest.fixture(scope="module")
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


# -- by hand ---------------------------------------------------------------------------------------


class Had(NamedTuple):
    passes: int
    is_partly: bool
    tokens: int

    @property
    def level(self) -> int:
        return 2 * self.passes + self.is_partly


def rows_handed_out(batches: Batches, samples: int) -> list[Counter[int]]:
    """Of each dataset, walked sample by sample."""
    found = [Counter[int]() for _ in batches.datasets]
    for number in range(samples):
        dataset, row = batches.sample(*divmod(number, batches.epoch_samples))
        found[dataset][row] += 1
    return found


def had_by_replay(
    run: Path, builds: list[str], handed_out: list[Counter[int]], names: tuple[str, ...] = ("web", "math")
) -> dict[Key, Had]:
    whole: Counter[Key] = Counter()
    most: Counter[Key] = Counter()
    tokens: Counter[Key] = Counter()
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    for build, times in zip(builds, handed_out, strict=True):
        for turn in recount.built(build, "train").turns:
            key = (turn.doc.source, turn.doc.doc_id)
            often = [times[row] for row, start, end, _ in turn.pieces for _ in range(start, end)]
            whole[key] += min(often)
            most[key] += max(often)
            tokens[key] += sum(often)
    return {key: Had(whole[key], most[key] > whole[key], tokens[key]) for key in tokens if tokens[key]}


def id_of(doc_id: str) -> int:
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")


def table_of(run: Path) -> dict[tuple[str, int], Had]:
    lines = pq.read_table(run / "seen.parquet").to_pylist()
    keys = [(line["source"], line["id"]) for line in lines]
    assert keys == sorted(set(keys))
    return {
        key: Had(line["passes"], line["partly"], line["tokens"])
        for key, line in zip(keys, lines, strict=True)
    }


def walk(run: Path, names: list[str], had: dict[Key, Had], most_passes: int) -> dict[Key, int]:
    """Turn by turn: nobody comes before somebody of the source who had less, but who is never to come. The
    levels of all documents at the end."""
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    levels = {
        (doc.source, doc.doc_id): had.get((doc.source, doc.doc_id), Had(0, False, 0)).level
        for doc in recount.in_split("train")
    }
    turns = [(doc.source, doc.doc_id) for doc in recount.turns("train")]
    left = Counter(turns)
    passed_over: dict[str, set[Key]] = defaultdict(set)
    for turn in turns:
        less = {key for key in levels if key[0] == turn[0] and levels[key] < levels[turn]}
        assert not [key for key in less if left[key]], f"{turn} came early"
        assert levels[turn] // 2 < most_passes
        passed_over[turn[0]] |= less
        levels[turn] += 2
        left[turn] -= 1
    facts = json.loads((run / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]
    for source, keys in passed_over.items():
        assert len(keys) <= facts["sources"][source]["passed_over"]
    check_sets(recount, turns, had, facts["continued"])
    return levels


def check_sets(recount: Recount, turns: list[Key], had: dict[Key, Had], told: Json) -> None:
    often = Counter(turns)
    documents = recount.in_split("train")
    for source, sets in told["sources"].items():
        own = [doc for doc in documents if doc.source == source]
        seen = [doc for doc in own if (source, doc.doc_id) in had]
        unseen = [doc for doc in own if (source, doc.doc_id) not in had]
        again = [doc for doc in seen if often[source, doc.doc_id]]
        to_come = [doc for doc in unseen if often[source, doc.doc_id]]
        for name, chosen, is_by_turn in (
            ("seen", seen, False), ("again", again, True),
            ("unseen", unseen, False), ("to_come", to_come, True),
        ):  # fmt: skip
            ids = b"".join(id_of(doc.doc_id).to_bytes(8, "little") for doc in chosen)
            assert sets[name] == {
                "documents": len(chosen),
                "tokens": sum(
                    doc.tokens * (often[source, doc.doc_id] if is_by_turn else 1) for doc in chosen
                ),
                "ids_sha256": hashlib.sha256(ids).hexdigest(),
            }
        assert sets["gone"] == sum(name == source for name, _ in had) - len(seen)
        assert sets["trained_on"] == sum(one.tokens for (name, _), one in had.items() if name == source)
    elsewhere = Counter(name for name, _ in had if name not in told["sources"])
    assert told["gone"] == dict(elsewhere)


# -- any state, any edit ---------------------------------------------------------------------------


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


# -- one rest, closely -----------------------------------------------------------------------------

LONGER = {"tokens": 14000, "exhausted": "repeat"}


@pytest.fixture(scope="module")
def state(place: Path) -> Json:
    batches = Batches(open_dataset(place / "old/build/rows", "train"), 1, 1)
    batches.epoch, batches.position = 0, batches.epoch_samples * 2 // 3
    return batches.state_dict()


@pytest.fixture(scope="module")
def rest(place: Path, state: Json) -> Path:
    """Of `old`, with a source more and longer."""
    recipe = written(place, "new", recipe_of("web", "math", "more", mixture=LONGER))
    return mill.continue_(
        place / "old/build/rows", recipe=recipe, out=place / "new", at=state, workers=1
    ).run.out


KILLED = """
import json, os, signal, sys
import tokmill
from tokmill.stages.build import mixture

mixture.count_sets = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
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
    monkeypatch.setattr("tokmill.stages.build.mixture._SORTED_AT_ONCE", 4)
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


# -- proof, and refusals ---------------------------------------------------------------------------


def problems_of(run: Path, order: Any = None, sets: Json | None = None) -> list[str]:
    """As `verify` would tell them of files that somebody gave new digests, too."""
    artifacts = {**open_run(run), ".": Artifact(run, load_finished(run))}
    if order is not None:
        pq.write_table(order, run / "mixture/order-train.parquet")
    if sets is not None:
        artifacts["mixture"].manifest.facts["splits"]["train"]["continued"]["sources"]["web"] |= sets
    return [str(problem) for problem in continuation_problems(run, artifacts)]


def test_a_tampered_order_is_found(place: Path, rest: Path) -> None:
    run = shutil.copytree(rest, place / "tampered")
    order = pq.read_table(run / "mixture/order-train.parquet")
    assert problems_of(run, order) == []
    had = table_of(run)
    turns = [(doc.source, id_of(doc.doc_id)) for doc in Recount(run, DOMAINS).turns("train")]
    seen, unseen = ([at for at, turn in enumerate(turns) if turn[0] == "web" and (turn in had) == is_seen]
                    for is_seen in (True, False))  # fmt: skip
    places = list(range(len(turns)))
    places[unseen[-1]], places[seen[0]] = seen[0], unseen[-1]
    assert "a document comes that was had more" in problems_of(run, order.take(places))[0]
    without = order.filter(pa.array([at != unseen[0] for at in range(len(turns))]))
    told = problems_of(run, without)
    assert "left behind others that were had more" in told[0]
    assert "tells other sets of the documents of web" in told[1]
    assert "mixture/order-train.parquet" in [problem.where for problem in mill.verify(run).problems]
    assert problems_of(run, order, {"gone": 1}) == [
        "mixture: tells other sets of the documents of web than its files hold"
    ]


def test_a_tampered_history_is_found(place: Path, rest: Path) -> None:
    run = shutil.copytree(rest, place / "forged")
    table = pq.read_table(run / "seen.parquet")
    passes = table.column("passes").to_pylist()
    forged = table.set_column(
        2, table.schema.field("passes"), pa.array([passes[0] + 1, *passes[1:]], pa.uint16())
    )
    pq.write_table(forged, run / "seen.parquet")
    assert "was made with another seen.parquet than the one here" in problems_of(run)[0]
    assert [problem.where for problem in mill.verify(run).problems] == ["seen.parquet"]


def test_another_tokenizer_is_refused_and_leaves_nothing(place: Path, state: Json) -> None:
    build = place / "old/build/rows"
    trained = {"train": {"model": "byte_bpe", "vocab_size": 310}, "eos": "<|endoftext|>"}
    other = written(place, "other", recipe_of("web", "math", mixture={}, tokenizer=trained))
    with pytest.raises(TokenizerMismatch, match="trains another tokenizer"):
        mill.continue_(build, recipe=other, out=place / "refused", at=state, workers=1)
    mill.run(other, place / "other", until="tokenizer", workers=1)
    pinned = {"path": "other/tokenizer/tokenizer.json", "eos": "<|endoftext|>"}
    named = written(place, "named", recipe_of("web", "math", mixture={}, tokenizer=pinned))
    with pytest.raises(TokenizerMismatch, match="its sha256 is"):
        mill.continue_(build, recipe=named, out=place / "refused", at=state, workers=1)
    assert not (place / "refused").exists()


def trained(vocab_size: int) -> Json:
    return {"train": {"model": "byte_bpe", "vocab_size": vocab_size}, "eos": "<|endoftext|>"}


def test_the_recipe_is_run_again_as_it_is_and_the_tokenizer_stays(place: Path, state: Json) -> None:
    """It trains one, and would have another on a source more. The run that is continued is gone."""
    old = shutil.copytree(place / "old", place / "short_lived")
    out, recipe = place / "again_and_again", place / "new.yaml"
    written(place, "new", recipe_of("web", "math", "more", mixture=LONGER))
    mill.continue_(old / "build/rows", recipe=recipe, out=out, at=state, workers=1)
    shutil.rmtree(old)
    tokenizer, before = (out / "tokenizer/tokenizer.json").read_bytes(), mill.verify(out)
    assert mill.run(recipe, out, workers=1).ran == []
    assert mill.verify(out).digest == before.digest
    padded = {**recipe_of("web", "math", "more", mixture=LONGER), "name": "padded"}
    padded["tokenizer"] = {**padded["tokenizer"], "padded_vocab_size": 320}
    assert "tokenizer" in mill.run(written(place, "padded", padded), out, workers=1).ran
    assert (out / "tokenizer/tokenizer.json").read_bytes() == tokenizer
    mill.run(recipe, out, workers=1)
    doc_id = next(doc.doc_id for doc in Recount(out, DOMAINS).turns("train") if doc.source == "web")
    mill.forget(out, doc_id=[doc_id], source="web", workers=1)
    assert mill.run(recipe, out, workers=1).ran == []
    assert (out / "tokenizer/tokenizer.json").read_bytes() == tokenizer
    assert mill.verify(out).problems == []


def test_another_tokenizer_is_refused_by_a_run_in_the_directory_too(place: Path, rest: Path) -> None:
    out = shutil.copytree(rest, place / "retrained")
    before = mill.verify(out)
    other = recipe_of("web", "math", "more", mixture=LONGER, tokenizer=trained(310))
    with pytest.raises((TokenizerMismatch, RecipeError), match="trains another tokenizer"):
        mill.run(written(place, "retrained", other), out, workers=1)
    assert mill.verify(out).digest == before.digest
    shutil.rmtree(out / "tokenizer")
    with pytest.raises(
        (TokenizerMismatch, RecipeError), match="tokenizer of the run that is continued is not here"
    ):
        mill.run(place / "new.yaml", out, workers=1)
    assert not (out / "tokenizer").exists(), "no step has begun"


def test_the_rest_of_a_rest_trains_no_other_tokenizer_either(place: Path, rest: Path, state: Json) -> None:
    for number, vocab_size in enumerate((310, 300)):
        recipe = recipe_of("web", "math", mixture=LONGER, tokenizer=trained(vocab_size))
        path, out = written(place, "second_rest", recipe), place / f"second_rest{number}"
        if vocab_size != 300:
            with pytest.raises(TokenizerMismatch, match="trains another tokenizer"):
                mill.continue_(rest / "build/rows", recipe=path, out=out, step=2, batch_size=3, workers=1)
            continue
        mill.continue_(rest / "build/rows", recipe=path, out=out, step=2, batch_size=3, workers=1)
        theirs, ours = (one / "tokenizer/tokenizer.json" for one in (rest, out))
        assert theirs.read_bytes() == ours.read_bytes()
    # of a run that names a file nobody knows how it was trained
    named = {"path": "old/tokenizer/tokenizer.json", "eos": "<|endoftext|>"}
    mill.run(
        written(place, "unknown", recipe_of("web", "math", tokenizer=named)), place / "unknown", workers=1
    )
    with pytest.raises(TokenizerMismatch, match="how that of the run was trained is not known"):
        mill.continue_(
            place / "unknown/build/rows",
            recipe=path,
            out=place / "of_unknown",
            step=2,
            batch_size=3,
            workers=1,
        )


# -- the directory ---------------------------------------------------------------------------------


def ids_in(run: Path, source: str) -> set[str]:
    names = sorted((run / "ingest" / source).glob("documents-*"))
    assert names
    return {doc_id for name in names for doc_id in pq.read_table(name).column("doc_id").to_pylist()}


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


# -- what is said ----------------------------------------------------------------------------------


def shown_by(place: Path, build: Path, recipe: Path, out: Path, *words: str) -> str:
    told = ["continue", str(build), "--recipe", str(recipe), "--out", str(out), "--workers", "1", *words]
    shown = CliRunner().invoke(main, told)
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_best_fit_is_not_said_to_be_in_order(place: Path, state: Json) -> None:
    builds = [
        {"name": "rows", "format": "memmap"},
        {"name": "fit", "format": "memmap", "pack": {"layout": "best_fit", "length": 64}},
    ]
    recipe = written(
        place, "fit", recipe_of("web", "math", mixture={**LONGER, "tokens": 22000}, builds=builds)
    )
    (place / "fit.json").write_text(json.dumps(state))
    out = place / "fit"
    output = shown_by(place, place / "old/build/rows", recipe, out, "--at", str(place / "fit.json"))
    had, orders = table_of(out), {}
    for build in ("rows", "fit"):
        turns = [
            turn for turn in Recount(out, DOMAINS).built(build, "train").turns if turn.doc.source == "web"
        ]
        levels = {key[1]: one.level for key, one in had.items() if key[0] == "web"}
        met = []
        for turn in turns:
            identity = id_of(turn.doc.doc_id)
            met.append(levels.get(identity, 0))
            levels[identity] = met[-1] + 2
        orders[build] = met == sorted(met)
        facts = json.loads((out / f"build/{build}/manifest.json").read_bytes())["facts"]
        assert orders[build] == facts.get("is_in_order", False)
        assert orders[build] == any(
            "in the order in which they are" in note for note in facts.get("notes", [])
        )
        assert orders[build] != any("seen before" in warning for warning in facts["warnings"])
        shuffle = Batches(open_dataset(out / "build" / build, "train"), 1).order.shuffle
        assert shuffle == ("none" if orders[build] else "epoch")
    assert orders == {"rows": True, "fit": False}
    assert "the rows of build/rows are in order" in output
    assert "build/fit are" not in output
    # where nothing comes again any order is as good
    first = written(place, "fit_first", recipe_of("more", mixture={}, builds=builds))
    made = mill.continue_(
        place / "old/build/rows", recipe=first, out=place / "fit_first", at=state, workers=1
    )
    assert made.run.warnings == []


def test_sources_that_are_gone_are_told_with_their_tokens(place: Path, state: Json) -> None:
    recipe = written(place, "dropped", recipe_of("web", "more", mixture={}))
    (place / "dropped.json").write_text(json.dumps(state))
    out = place / "dropped"
    output = shown_by(place, place / "old/build/rows", recipe, out, "--at", str(place / "dropped.json"))
    had = [(line["source"], line["tokens"]) for line in pq.read_table(out / "seen.parquet").to_pylist()]
    by_source = {name: [tokens for source, tokens in had if source == name] for name in ("web", "math")}
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    assert rows["math"][0] == f"{sum(by_source['math']):,}"
    assert rows["math"][-1] == f"{len(by_source['math']):,}"
    told = sum(int(rows[name][0].replace(",", "")) for name in ("web", "math", "more"))
    assert f"after {told:,} tokens" in output
    made = mill.continue_(place / "old/build/rows", recipe=recipe, out=out, at=state, workers=1)
    assert made.as_json()["gone"] == {
        "math": {"trained_on": sum(by_source["math"]), "documents": len(by_source["math"])}
    }


@pytest.mark.parametrize("unit", ["tokens", "blocks", "documents"])
@pytest.mark.parametrize("exhausted", ["stop", "repeat"])
def test_the_target_that_a_mixture_reaches_is_one_of_the_whole_run(
    place: Path, state: Json, unit: str, exhausted: str
) -> None:
    """It is asked for, and is met; one more is not."""
    weights = {"web": "0.75", "math": "0.25"}
    most = {"max_epochs": 2} if exhausted == "repeat" else {}
    out = place / f"reached_{unit}_{exhausted}"

    def made(target: int) -> Path:
        mixture = {"weights": weights, "exhausted": exhausted, unit: target, **most}
        recipe = written(place, "reached", recipe_of("web", "math", mixture=mixture))
        return mill.continue_(place / "old/build/rows", recipe=recipe, out=out, at=state, workers=1).run.out

    with pytest.raises(InputError) as error:
        made({"tokens": 60000, "blocks": 1250, "documents": 400}[unit])
    assert "left" in error.value.what
    found = re.search(r"lower the budget to ([\d,]+) (\w+)", error.value.next)
    assert found is not None, error.value.next
    assert found[2].startswith(unit.removesuffix("s"))
    reached = int(found[1].replace(",", ""))
    facts = json.loads((made(reached) / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]
    had = sum(one.tokens for one in table_of(out).values())
    assert facts["tokens"] + had <= reached * {"tokens": 1, "blocks": 48, "documents": 10**6}[unit]
    if unit != "documents":
        with pytest.raises(InputError, match="exhausted"):
            made(reached + {"tokens": 200, "blocks": 4}[unit])


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (None, "the recipe has none"),
        ({"megabytes": 1}, "how many megabytes were seen is not known"),
        ({"tokens": 100}, "nothing is left: 90 tokens were asked for"),
        ({"balance": "smallest"}, "rows that are left out to balance domains"),
        ({"weights": {"web": 1, "math": 0}, "tokens": 90000}, "web is exhausted"),
    ],
)
def test_what_cannot_be_made_is_told(place: Path, state: Json, mixture: Json | None, message: str) -> None:
    recipe = recipe_of("web", "math", **({"mixture": mixture} if mixture is not None else {}))
    with pytest.raises((InputError, RecipeError), match=message):
        mill.continue_(
            place / "old/build/rows",
            recipe=written(place, "wrong", recipe),
            out=place / "wrong",
            at=state,
            workers=1,
        )


def test_nothing_is_left_of_what_was_seen_whole(place: Path) -> None:
    batches = Batches(open_dataset(place / "old/build/mega", "train"), 1, 0)
    state = {**batches.state_dict(), "epoch": 1}
    recipe = written(place, "all", recipe_of("web", "math", mixture={}))
    with pytest.raises(
        InputError, match="nothing is left: every document that the recipe asks for was seen whole"
    ):
        mill.continue_(place / "old/build/mega", recipe=recipe, out=place / "all", at=state, workers=1)


def test_places_and_states_that_are_none_are_refused(place: Path, state: Json, tmp_path: Path) -> None:
    build, recipe = place / "old/build/rows", written(place, "fine", recipe_of("web", mixture={}))
    with pytest.raises(InputError, match="is the run that is continued"):
        mill.continue_(build, recipe=recipe, out=place / "old", at=state)
    with pytest.raises(InputError, match="on this machine"):
        mill.continue_(build, recipe=recipe, out="s3://bucket/rest", at=state)
    with pytest.raises(InputError, match="a state of the loader, or a step"):
        mill.continue_(build, recipe=recipe, out=tmp_path / "rest")
    with pytest.raises(InputError, match="another order"):
        mill.continue_(place / "old/build/mega", recipe=recipe, out=tmp_path / "rest", at=state)
    alone = shutil.copytree(build, tmp_path / "alone")
    with pytest.raises(InputError, match="the run around it"):
        mill.continue_(alone, recipe=recipe, out=tmp_path / "rest", at=state)
    assert not (tmp_path / "rest").exists()


def test_documents_that_are_held_out_now_and_were_trained_on_are_told(place: Path, state: Json) -> None:
    recipe = recipe_of("web", "math", mixture={}, split={"valid_fraction": "0.3"})
    made = mill.continue_(
        place / "old/build/rows",
        recipe=written(place, "held", recipe),
        out=place / "held",
        at=state,
        workers=1,
    )
    had = table_of(made.run.out)
    held_out = Recount(made.run.out, {"web": "web", "math": "math"}).in_split("valid")
    met = sum((doc.source, id_of(doc.doc_id)) in had for doc in held_out)
    assert met
    ((step, warning),) = made.run.warnings
    assert step == "mixture"
    assert warning.startswith(f"valid holds {met} documents that were trained on before")


@pytest.mark.usefixtures("rest")
def test_the_command_says_what_was_seen_and_what_is_to_come(place: Path, state: Json) -> None:
    (place / "state.json").write_text(json.dumps(state))
    words = ["continue", str(place / "old/build/rows"), "--recipe", str(place / "new.yaml")]
    shown = CliRunner().invoke(
        main, [*words, "--at", str(place / "state.json"), "--out", str(place / "shown"), "--workers", "1"]
    )
    assert shown.exit_code == 0, shown.output
    for word in ("tokens trained on", "docs seen", "to come", "gone", "more", "build/mega are in order"):
        assert word in shown.output
    notes = json.loads((place / "shown/build/rows/manifest.json").read_bytes())["facts"]["notes"]
    assert any("in the order in which they are to be seen" in note for note in notes)
    # and the loader, if it is not told otherwise, hands them out as they lie
    rows = open_dataset(place / "shown/build/rows", "train")
    handed_out = [ids.tolist() for batch in Batches(rows, 2) for ids in batch["tokens"]]
    assert handed_out == [np.asarray(rows[row]["ids"]).tolist() for row in range(len(rows))]
