"""The other ways in which a check can be set off, and bounds that are met exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reviews.reviewed import Corpus, clean_run, copied, edit_config, mill, remove_ends, words
from tokmill import review
from tokmill.reviews.surface import _skewed

Recipe = dict[str, Any]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clean_run(tmp_path_factory.getbasetemp())


def told(target: Path) -> list[tuple[str, str, str]]:
    return [(one.severity, one.check, one.about) for one in review(target).findings]


# --- runs ---


def no_language(corpus: Corpus, recipe: Recipe) -> None:
    """Code has no label, and no file ending, either."""
    del recipe["language"]
    for source in recipe["sources"]:
        del source["fields"]["language"]
    for record in corpus["code"]:
        record["id"] = record["id"].removesuffix(".py")


def becomes_control(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"][0]["text"] += " <|endoftext|> "
    recipe["tokenizer"]["control"] = ["<|endoftext|>"]


def clusters_that_stay(corpus: Corpus, recipe: Recipe) -> None:
    text = words(random.Random(2), 65)
    for number, word in enumerate(text.split()[:40]):
        corpus["prose"].append({**corpus["prose"][0], "id": f"letter-{number}", "text": f"{word} {text}"})
    recipe["dedup"]["near"] = {"policy": "report"}
    recipe["split"] |= {"by": "cluster"}


def equal_texts(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"] += [{**corpus["prose"][0], "id": f"copy-{number}"} for number in range(30)]


def over_budget(corpus: Corpus, recipe: Recipe) -> None:
    recipe["mixture"] = {"tokens": 500_000, "exhausted": "renormalize"}


def unbalanced(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"] = corpus["prose"][:70]
    recipe["mixture"] = {"order": "shuffle"}


def few_read(corpus: Corpus, recipe: Recipe) -> None:
    """One file of thirteen."""
    rng = random.Random(3)
    for file in range(12):
        texts = [words(rng, 65) for _ in range(120)]
        corpus[f"prose-{file:02d}"] = [
            {**corpus["prose"][0], "id": f"{file}-{number}", "text": text}
            for number, text in enumerate(texts)
        ]
    recipe["sources"][2] |= {"files": "prose*.jsonl", "sample": {"method": "head", "k": 110}}


def half_begin_alike(corpus: Corpus, recipe: Recipe) -> None:
    """Exactly at the bounds: a fifth begin alike, a half with one character, a hundredth with a space."""
    for record in corpus["math"][:24]:
        record["text"] = f"Question: {record['text']}"
    for record in corpus["prose"][:60]:
        record["text"] = f"“{record['text']}"
    corpus["code"] = corpus["code"][:100]
    corpus["code"][0]["text"] = " " + corpus["code"][0]["text"]


VARIANTS: list[tuple[Callable[[Corpus, Recipe], None], list[tuple[str, str, str]]]] = [
    (no_language, [("low", "language_mixture", f"domain {name}") for name in ("code", "math", "prose")]),
    (becomes_control, [("high", "control_tokens", "source prose")]),
    (clusters_that_stay, [("medium", "giant_clusters", "near duplicates")]),
    (equal_texts, [("low", "giant_clusters", "equal texts")]),
    (over_budget, [("high", "budget_epochs", f"source {name}") for name in ("code", "math", "prose")]),
    (unbalanced, [("medium", "domain_imbalance", "build rows")]),
    (few_read, [("high", "head_sampling", "source prose")]),
    (half_begin_alike, []),
]


@pytest.mark.parametrize(("spoil", "expected"), VARIANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_run_that_is_spoilt_in_another_way(
    spoil: Callable[[Corpus, Recipe], None], expected: list[tuple[str, str, str]], clean: Path, tmp_path: Path
) -> None:
    assert told(mill(tmp_path, spoil, clean / "tokenizer" / "tokenizer.json")) == expected


# --- manifests ---


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"hub": {"asked": {"dataset": "org/data", "revision": "main"}, "revision": "a" * 40}},
            [("medium", "unpinned_revision", "source prose")],
        ),
        ({"hub": {"asked": {"dataset": "org/data", "revision": "b" * 40}, "revision": "b" * 40}}, []),
        ({"trust_remote_code": True}, [("high", "remote_code", "ingest/prose: trust_remote_code")]),
    ],
)
def test_what_a_run_wrote_down_of_its_sources(
    config: Recipe, expected: list[tuple[str, str, str]], clean: Path, tmp_path: Path
) -> None:
    run = copied(clean, tmp_path / "edited")
    edit_config(run, "ingest/prose", config)
    assert told(run) == expected


def test_a_build_by_itself_shows_missing_ends_too(clean: Path, tmp_path: Path) -> None:
    run = copied(clean, tmp_path / "run")
    remove_ends(run)
    alone = copied(run / "build" / "rows", tmp_path / "alone")
    assert told(alone) == [("high", "missing_eos", "this build")]


# --- skew ---


def skew(**rates: tuple[int, int]) -> list[Any]:
    return list(_skewed("begin with whitespace", rates))


@pytest.mark.parametrize(
    ("rates", "is_told"),
    [
        ({"a": (8, 1000), "b": (2, 1000)}, True),  # four times
        ({"a": (6, 1000), "b": (2, 1000)}, False),  # three times
        ({"a": (9, 1000), "b": (0, 1000)}, True),
        ({"a": (3, 1000), "b": (0, 1000)}, False),  # chance
        ({"a": (40, 100_000), "b": (1, 100_000)}, False),  # far below one in a thousand
        ({"a": (20, 1000), "b": (0, 1000)}, False),  # over the bound by itself: told so
        ({"a": (8, 1000)}, False),
    ],
)
def test_domains_are_skewed_from_three_times_on(rates: dict[str, tuple[int, int]], is_told: bool) -> None:
    assert [finding.severity for finding in skew(**rates)] == (["low"] if is_told else [])
