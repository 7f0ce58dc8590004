"""Runs without a document: everything that a registry has works with nothing, or says what is missing.

a source of which nothing is left ─ by each step, method, format … ─ run ─┬─ verified, and up to date
                                                                          └─ one clear error
such a run ─ every verb that takes a run ─ an answer, or one clear error
"""

from __future__ import annotations

import base64
import json
import shutil
import traceback
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import prose
from made_fasttext import write_model
from pipeline.test_score_kinds import SCORES as OF_MODELS
from pipeline.test_score_kinds import write_models
from scores.reviews import documents
from test_verbs import CALLS, words_of
from tokmill.clean.measures import MEASURES
from tokmill.cli import main
from tokmill.errors import TokmillError
from tokmill.formats import find_format, format_names
from tokmill.packing.plan import Layout
from tokmill.recipe import Dedup, Mixture, Split, Training
from tokmill.recipe.scores import KINDS
from tokmill.recipe.tokens import TEXT_FORMATS
from tokmill.stages.registry import STAGES

Json = dict[str, Any]

FIELDS = {"id": "id", "meta": ["url", "split", "kind"]}
RANKS = {"path": "ranks.tiktoken", "encoding": "gpt2", "eos": "<|endoftext|>"}


def choices(section: Any, key: str) -> tuple[str, ...]:
    return get_args(section.model_fields[key].annotation)


# --- one recipe or more for every registry ---

# What a dedup method is asked for where `{}` is not enough. A new method is tried with `{}`.
_METHODS: Json = {
    "exact": {"exact": True},
    "window": {"window": {"words": 5, "winnow": 2, "policy": "trim"}},
    "against": {"against": {"files": ["bench.jsonl"], "fields": ["text"]}},
    "earlier": {"reference": ["./earlier"]},
}
_SPLITS: Json = {
    "hash": {"valid_fraction": "0.3", "test_fraction": "0.2"},
    "counts": {"counts": {"valid": 2}},
    "field": {"field": "split"},
}
_SCORES: Json = {
    "fasttext": {"fasttext": {"path": "edu.bin", "label": "good"}},
    "train": {"train": {"positive": [{"files": "good.jsonl"}], "negative": [{"files": "bad.jsonl"}]}},
    "hook": {"hook": "hooks.py:lengths"},
    **{next(kind for kind in KINDS if kind in score): score for score in OF_MODELS},
}
_NEED_MORE = {"plugin": "an installed package", "transformer": "PyTorch"}


def builds_of(name: str) -> list[Json]:
    """Ask for a build of the format in each layout that it has."""
    shapes = find_format(name).shapes
    layouts = [one for one in get_args(Layout) if ("documents" if one == "indexed" else "rows") in shapes]
    build = {"format": name}
    if "rows" not in shapes:  # it keeps documents as they are
        return [{"name": f"{name}-documents".replace("_", "-"), **build}]
    return [
        {"name": f"{name}-{layout}".replace("_", "-"), **build, "pack": {"layout": layout, "length": 32}}
        for layout in layouts
    ]


def recipes() -> Iterator[tuple[str, Json]]:
    for method in Dedup.METHODS:
        yield f"dedup by {method}", {"dedup": _METHODS.get(method, {method: {}})}
    for keep in choices(Dedup, "keep"):
        yield f"dedup keeps {keep}", {"dedup": {"near": {}, "keep": keep}, "split": {"by": "cluster"}}
    for method in choices(Split, "method"):
        yield f"split by {method}", {"split": {"method": method, **_SPLITS.get(method, {})}}
    scores = [kind for kind in KINDS if kind not in _NEED_MORE]
    rules = [{"measure": f"score.{kind}.percentile", "min": 10} for kind in scores]
    yield (
        "every kind of score",
        {
            "scores": [{**_SCORES[kind], "name": kind, "percentile": "corpus"} for kind in scores],
            "filters": rules,
        },
    )
    yield "a score that is stored", {"scores": [{"name": "own", **_SCORES["hook"], "device": "cpu"}]}
    yield "every measure", {"filters": [{"measure": name, "min": 0} for name in sorted(MEASURES)]}
    yield "rules of packs", {"filters": [{"pack": "web-en"}], "language": {"method": "detect"}}
    several = {name: builds_of(name) for name in format_names()}
    formats = [*several["parquet"], *(builds[0] for name, builds in several.items() if name != "parquet")]
    texts = [{"name": f"t-{name}", "content": "text", "format": name} for name in TEXT_FORMATS]
    yield "every format and layout", {"builds": [*formats, *texts]}
    texts = [{**build, "measures": True} for build in texts]
    yield "texts alone", {"builds": texts, "tokenizer": None, "filters": [{"measure": "words", "min": 0}]}
    for exhausted, order in zip(
        choices(Mixture, "exhausted"), cycle(choices(Mixture, "order")), strict=False
    ):
        passes = {"max_epochs": 3} if exhausted == "repeat" else {}
        amount = {"exhausted": exhausted, "order": order, "tokens": 500, **passes}
        yield f"a mixture that will {exhausted}", {"mixture": amount}
    yield (
        "a mixture of all there is",
        {"mixture": {}, "builds": [{"name": "t", **texts[0], "measures": False}]},
    )
    stages = [{"name": "one", "tokens": 64}, {"name": "two", "tokens": 32}]
    yield "stages", {"mixture": {"held_out": "whole", "stages": stages, "exhausted": "repeat"}}
    for model in choices(Training, "model"):
        yield f"a tokenizer of {model}", {"tokenizer": {"train": {"model": model}, "eos": "<|endoftext|>"}}


RECIPES = dict(recipes())

# How a source loses every document.
WAYS: dict[str, Json] = {
    "nothing is read": {"where": {"kind": "nothing"}},
    "cleaning drops all": {"clean": {"filters": [{"measure": "chars", "min": 1_000_000}]}},
    "dedup drops all": {},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("nothing")
    for name in ("lost", "kept"):
        rows = [
            {
                "id": f"{name}{n}",
                "text": prose(n + (100 if name == "kept" else 0), 2),
                "url": f"https://a.example/{name}/{n}",
                "split": ("train", "valid", "test")[n % 3],
                "kind": "page",
            }
            for n in range(6)
        ]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(home / "lost.jsonl", home / "bench.jsonl")
    (home / "good.jsonl").write_text('{"text": "a good text of words"}\n' * 20)
    (home / "bad.jsonl").write_text('{"text": "what is bad in it"}\n' * 20)
    (home / "ids.txt").write_text("lost1\n")
    (home / "hooks.py").write_text(
        "import numpy as np\n\n\ndef lengths(columns, device=None):\n"
        "    return np.array([len(str(text)) for text in columns['text']], np.float64)\n"
    )
    ranks = (base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (home / "ranks.tiktoken").write_bytes(b"".join(ranks))
    write_model(home / "edu.bin")
    write_models(home, documents(80))
    mill.run(write(home, "nothing", {}, alone=False), home / "earlier", workers=1)
    return home


def write(home: Path, way: str, sections: Json, *, alone: bool) -> Path:
    source: Json = {"name": "lost", "domain": "gone", "files": "lost.jsonl", "fields": FIELDS}
    source |= WAYS.get(way, {})
    if "clean" in source:  # its own filters come in the place of the recipe's
        filters = [*source["clean"]["filters"], *sections.get("filters", [])]
        source["clean"] = {"filters": filters}
    if way == "dedup drops all":
        sections = {**sections, "dedup": {**sections.get("dedup", {}), **_METHODS["against"]}}
    other = {"name": "kept", "domain": "here", "files": "kept.jsonl", "fields": FIELDS}
    recipe: Json = {
        "name": "none",
        "seed": 7,
        "sources": [source] if alone else [source, other],
        "tokenizer": RANKS,
        "pack": {"length": 32},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }
    path = home / "recipe.yaml"
    path.write_text(json.dumps({key: value for key, value in recipe.items() if value is not None}))
    return path


def problem_of(error: BaseException) -> str | None:
    """Return None for an error that says what is wrong and what next."""
    if not isinstance(error, TokmillError):
        return "".join(traceback.format_exception(error))
    return None if error.what and error.next else repr(error)


@pytest.mark.parametrize("name", RECIPES)
def test_a_source_of_which_nothing_is_left_makes_a_run_or_one_clear_error(place: Path, name: str) -> None:
    faults = {}
    for way, alone in [*((way, True) for way in WAYS), ("cleaning drops all", False)]:
        out = place / "out"
        shutil.rmtree(out, ignore_errors=True)
        recipe = write(place, way, RECIPES[name], alone=alone)
        try:
            mill.run(recipe, out, workers=1)
        except Exception as error:
            fault = problem_of(error)
        else:
            stale = [step for step, reasons in mill.plan(recipe, out).steps.items() if reasons]
            fault = "; ".join(map(str, [*mill.verify(out).problems, *stale]))
        if fault:
            faults[way, alone] = fault
    assert faults == {}


def test_every_kind_of_step_and_of_score_is_tried(place: Path) -> None:
    asked = {
        step.partition("/")[0]
        for sections in RECIPES.values()
        for step in mill.plan(write(place, "", sections, alone=False), place / "nowhere").steps
    }
    kinds = {"mixture" if name == "stage" else name for name in asked}
    assert kinds == set(STAGES) - {"index"}, "an index is no step of a run: its verb is tried below"
    assert set(KINDS) == {*_SCORES, *_NEED_MORE}


EVERYTHING: Json = {
    "dedup": {"near": {}, "window": {"words": 5}, "url": True},
    "filters": [{"measure": "words", "min": 1}],
    "mixture": {},
    "scores": [{"name": "own", "hook": "hooks.py:lengths", "percentile": "corpus"}],
    "builds": [
        {"name": "rows", "format": "memmap"},
        {"name": "table", "format": "parquet", "pack": {"layout": "indexed"}},
        {"name": "texts", "content": "text", "format": "jsonl"},
    ],
}
DOCUMENTS_ALONE: Json = {"tokenizer": None, "builds": None, "pack": None}

MORE_CALLS: list[tuple[str, Json]] = [
    ("gc", {"directory": "out"}),
    ("why", {"directory": "out", "doc_id": "lost1"}),
    ("why", {"directory": "out", "reason": "too_few_chars"}),
    ("trace", {"directory": "out", "doc_id": "lost1"}),
    ("whatif", {"directory": "out", "set": ["words.min=2"]}),
    ("score compare", {"directory": "out", "first": "score.own", "second": "words"}),
    ("review", {"target": "out/build/rows"}),
    ("peek", {"build": "out/build/table"}),
    ("forget", {"directory": "out", "source": "lost", "base": "."}),
]


def calls(out: Path) -> Iterator[tuple[str, Json]]:
    """Find every verb that is given a run, or a build of one that is there."""
    for verb, arguments in [*CALLS.items(), *MORE_CALLS]:
        values = (value if isinstance(value, list) else [value] for value in arguments.values())
        given = [str(one) for value in values for one in value]
        places = [one for one in given if one == "out" or one.startswith("out/")]
        if places and all((out.parent / one).is_dir() for one in places):
            yield verb, arguments


@pytest.mark.parametrize(
    ("sections", "way"), [*((EVERYTHING, way) for way in WAYS), (DOCUMENTS_ALONE, "nothing is read")]
)
def test_every_verb_answers_of_a_run_without_documents(
    place: Path, sections: Json, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    recipe, out = write(place, way, sections, alone=True), place / "out"
    shutil.rmtree(out, ignore_errors=True)
    mill.run(recipe, out, workers=1)
    faults, tried = {}, set()
    for verb, arguments in calls(out):
        words = words_of(verb, arguments)
        told = CliRunner().invoke(main, words)
        for made in ("page", "exported", "indexed", "rest"):
            shutil.rmtree(place / made, ignore_errors=True)
        tried.add(verb)
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            faults[" ".join(words)] = problem_of(told.exception)
        elif told.exit_code not in (0, 1) or (told.exit_code == 1 and "next:" not in told.output):
            faults[" ".join(words)] = f"{told.exit_code}: {told.output}"
    assert faults == {}
    assert mill.verify(out).problems == []
    assert tried > {"verify", "review", "report", "plan", "forget", "export", "index", "status", "diff", "gc"}
