"""Variants of a recipe: each is a recipe, and what cannot be one is told before anything is run."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import tokmill as command  # noqa: E402
from mill import write_recipe  # noqa: E402
from tokmill.artifacts.progress import Silence  # noqa: E402
from tokmill.errors import InputError, RecipeError, TokmillError  # noqa: E402
from tokmill.proxy.omissions import without_rules, without_sources  # noqa: E402
from tokmill.proxy.variants import run_grid  # noqa: E402
from tokmill.recipe.file import load_recipe, read_recipe  # noqa: E402

QUICK: Any = {
    "build": "rows",
    "size": "0.2M",
    "tokens": "2k",
    "seeds": 1,
    "held_out_bytes": 1000,
    "device": "cpu",
    "workers": 1,
}
WORDS = ["the", "mill", "turns", "by", "a", "river", "all", "day"]
DOMAINS = {"a": "math", "b": "web", "c": "web"}


def corpus(directory: Path, documents: int = 60, **sections: Any) -> Path:
    """Three sources of two domains; a document begins with its domain and ends with a score."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = random.Random(7)
    for name in DOMAINS:
        lines = [
            {
                "id": f"{name}{at}",
                "text": f"{DOMAINS[name]}: {' '.join(draw.choices(WORDS, k=30))} "
                f"{draw.random() * (2 if name == 'a' else 1):.3f}",
            }
            for at in range(documents)
        ]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = {"id": "id"}
    asked: dict[str, Any] = {
        "sources": [
            {"name": name, "domain": domain, "files": f"{name}.jsonl", "fields": fields}
            for name, domain in DOMAINS.items()
        ],
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }
    return write_recipe(directory, **asked)


def read_without(recipe: Path, name: str) -> Any:
    """The recipe without a source, as its file would say it."""
    return read_recipe(recipe, dict(without_sources(load_recipe(recipe)))[f"without-{name}"]).recipe


# --- without a source ---


def test_what_is_said_of_a_domain_goes_with_its_last_source(tmp_path: Path) -> None:
    rule = {"measure": "chars", "min": 6, "reason": "short"}
    recipe = corpus(
        tmp_path,
        domains={"math": {"filters": [rule]}, "web": {"filters": [rule]}},
        fim={"domains": ["math", "web"], "prefix": "<p>", "middle": "<m>", "suffix": "<s>"},
        mixture={
            "batch_tokens": 640,
            "exhausted": "stop",
            "held_out": "whole",
            "weights": {"math": "0.6", "web": "0.4"},
            "stages": [{"name": "one", "steps": 2, "weights": {"math": "0.5", "web": "0.5"}}],
        },
    )
    without = read_without(recipe, "a")
    assert list(without.domains) == ["web"]
    assert without.fim.domains == ["web"]
    assert list(without.mixture.weights) == list(without.mixture.stages[0].weights) == ["web"]
    with_another = read_without(recipe, "b")
    assert list(with_another.domains) == list(with_another.mixture.weights) == ["math", "web"]


def test_no_section_names_a_source_that_is_left_out(tmp_path: Path) -> None:
    recipe = corpus(
        tmp_path,
        dedup={"priority": ["b", "a"], "reference": ["b"]},
        split={"method": "field", "field": "source", "values": {"train": ["a", "b"], "valid": ["c"]}},
        mixture={"sources": {"web": {"b": "0.5", "c": "0.5"}}},
        builds=[
            {"name": "rows", "format": "memmap"},
            {"name": "two", "format": "memmap", "sources": ["a", "b"]},
            {"name": "one", "format": "memmap", "sources": ["b"]},
        ],
    )
    without = read_without(recipe, "b")
    assert without.dedup.priority == ["a"]
    assert without.dedup.reference == []
    assert without.split.values.train == ["a"]
    assert {domain: list(own) for domain, own in without.mixture.sources.items()} == {"web": ["c"]}
    assert without.mixture.normalize
    # a build without `sources` is one of all: that of the lost source alone goes
    assert {build.name: build.sources for build in without.builds} == {"rows": [], "two": ["a"]}


def test_a_domain_without_a_name_keeps_its_weight(tmp_path: Path) -> None:
    sources = [
        {"name": "a", "files": "a.jsonl"},
        {"name": "b", "files": "b.jsonl"},
        {"name": "c", "domain": "web", "files": "c.jsonl"},
    ]
    recipe = corpus(tmp_path, sources=sources, mixture={"weights": {"default": "0.7", "web": "0.3"}})
    assert list(read_without(recipe, "a").mixture.weights) == ["default", "web"]
    assert list(read_without(recipe, "c").mixture.weights) == ["default"]


def test_what_a_source_falls_back_on_fills_its_limit_and_no_more(tmp_path: Path) -> None:
    sources = [
        {"name": "a", "files": "a.jsonl", "limit": {"docs": 20}, "fallback": "b"},
        {"name": "b", "files": "b.jsonl", "limit": {"docs": 50, "chars": 90_000}, "fallback": "c"},
        {"name": "c", "files": "c.jsonl"},
    ]
    recipe = corpus(tmp_path, sources=sources)
    first, middle, last = (read_without(recipe, name).sources for name in "abc")
    assert [(one.name, one.fallback) for one in first] == [("b", "c"), ("c", None)]
    assert first[0].limit.model_dump(exclude_none=True) == {"docs": 20, "chars": 90_000}
    assert [(one.name, one.fallback) for one in middle] == [("a", "c"), ("c", None)]
    assert [(one.name, one.fallback) for one in last] == [("a", "b"), ("b", None)]
    run = tokmill.run(
        recipe, tmp_path / "out", set=dict(without_sources(load_recipe(recipe)))["without-a"], workers=1
    )
    counts = {
        name: json.loads((run.out / "ingest" / name / "manifest.json").read_text())["counts"]["kept"]
        for name in "bc"
    }
    assert counts == {"b": 20, "c": 0}


# --- what is told before anything is run ---

STAGED: Any = {"weights": {"math": "0.5", "web": "0.5"}, "batch_tokens": 4096, "held_out": "whole"}


@pytest.mark.parametrize(
    ("sections", "options", "told"),
    [
        (
            {
                "scores": [
                    {"name": "good", "train": {"positive": [{"source": "b"}], "negative": [{"source": "a"}]}}
                ]
            },
            {"leave_one_out": "sources"},
            r"without a: scores\[0\]\.train\.negative\[0\]\.source: no source is called a",
        ),
        (
            {"mixture": {"weights": {"math": "1", "web": "0"}}},
            {"leave_one_out": "sources"},
            "without a: mixture.weights: all weights are 0",
        ),
        (
            {
                "split": {
                    "method": "field",
                    "field": "source",
                    "values": {"train": ["a", "b"], "valid": ["c"]},
                }
            },
            {"leave_one_out": "sources"},
            "without c: split.values: hold nothing out",
        ),
        (
            {"builds": [{"name": "rows", "format": "memmap", "sources": ["a"]}]},
            {"leave_one_out": "sources"},
            "without a: builds: the one that is compared has nothing left",
        ),
        (
            {"dedup": {"near": {}}, "split": {"by": "cluster", "valid_fraction": "0.1"}},
            {"leave_one_out": "rules"},
            "without dedup: split.by: `cluster` needs",
        ),
        ({}, {"leave_one_out": "rules", "build": "cols"}, "has no build 'cols'"),
        ({"mixture": {"weights": {"math": "1", "web": "0"}}}, {"grid": 6}, "has one domain"),
        (
            {"mixture": {**STAGED, "stages": [{"name": "one", "steps": 2, "weights": {"math": "1"}}]}},
            {"grid": 6, "build": "rows-one"},
            "the stage one has weights of its own",
        ),
        ({}, {"grid": 4}, "4 mixtures and that of the recipe are too few"),
        ({}, {"grid": 6, "held_out": "none", "choices": ["items.jsonl"]}, "there is no text to measure"),
        ({}, {"grid": 6, "held_out": "none"}, "no text"),
        ({}, {"leave_one_out": "rules", "held_out": "none"}, "nothing to judge the models on"),
        ({}, {"leave_one_out": "rules", "text": ["binary"]}, "is not UTF-8"),
    ],
)
def test_what_cannot_be_compared_is_told_before_the_first_run(
    sections: dict[str, Any], options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "items.jsonl").write_text('{"prompt": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}\n')
    (tmp_path / "binary").write_bytes(b"\xff")
    given = {
        key: [tmp_path / name for name in value] if key in ("choices", "text") else value
        for key, value in options.items()
    }
    recipe = corpus(tmp_path, **sections)
    with pytest.raises(TokmillError, match=told) as error:
        tokmill.ablate([recipe], **{**QUICK, **given}, out=tmp_path / "out")
    assert error.value.next
    assert not (tmp_path / "out/runs").exists()
    assert isinstance(error.value, InputError | RecipeError)


# --- without a rule ---


def test_every_rule_has_a_variant_of_its_own_whatever_it_is_called(tmp_path: Path) -> None:
    reasons = ("dedup", "a", "a", "language", "dedup")
    rules = [{"measure": "chars", "min": at, "reason": reason} for at, reason in enumerate(reasons, 1)]
    recipe = corpus(
        tmp_path,
        filters=rules,
        dedup={"exact": True},
        language={"method": "detect", "keep": ["en"]},
    )
    variants = list(without_rules(load_recipe(recipe)))
    names = [name for name, _ in variants]
    assert len(set(names)) == len(names) == len(reasons) + 2
    settings = dict(variants)
    assert settings["without-dedup"] == {"dedup": {"exact": False}}
    assert settings["without-language"] == {"language": None}
    left_out = []
    for changed in settings.values():
        if "filters" in changed:
            kept = [rule["min"] for rule in changed["filters"]]
            left_out += [rule["min"] for rule in rules if rule["min"] not in kept]
    assert sorted(left_out) == [1, 2, 3, 4, 5]


# --- weights ---


def test_a_domain_of_weight_0_has_it_in_all_mixtures(tmp_path: Path) -> None:
    sources = [{"name": name, "domain": name, "files": f"{name}.jsonl"} for name in DOMAINS]
    recipe = corpus(
        tmp_path, sources=sources, mixture={"weights": {"a": "0.6", "b": "0.4", "c": "0"}, "tokens": 2000}
    )
    drawn = run_grid(recipe, 2, 8.0, tmp_path / "runs", "rows", 1, Silence())
    assert drawn.present == {"a": 0.6, "b": 0.4}
    assert [target.name for target in drawn.targets] == ["whole", "mixture-001", "mixture-002"]
    for name in ("mixture-001", "mixture-002"):
        told = json.loads((tmp_path / "runs" / name / "mixture/manifest.json").read_text())
        tokens = {key: one["tokens"] for key, one in told["facts"]["splits"]["train"]["sources"].items()}
        assert tokens.get("c", 0) == 0
        assert tokens["a"] / sum(tokens.values()) == pytest.approx(drawn.weights[name]["a"], abs=0.06)


def test_present_weights_are_those_of_what_is_trained_on_after_repeats(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(
        "import numpy as np\n\n"
        "def score(columns, *rest):\n"
        "    return np.array([float(text.split()[-1]) for text in columns['text'].to_pylist()])\n"
    )
    recipe = corpus(
        tmp_path,
        scores=[{"name": "good", "hook": "hooks.py:score", "percentile": "corpus"}],
        mixture={"repeat": {"by": "score.good", "percentiles": {"70": 6, "0": 0}}},
    )
    drawn = run_grid(recipe, 1, 8.0, tmp_path / "runs", "rows", 1, Silence())
    assert drawn.present == pytest.approx(built_shares(tmp_path / "runs/whole"), abs=0.02)
    sizes = {"math": 0, "web": 0}
    for path in (tmp_path / "runs/whole/tokens/train").glob("*/tokens-*.bin"):
        sizes[path.parent.name] += path.stat().st_size
    assert drawn.present["math"] - sizes["math"] / sum(sizes.values()) > 0.05  # or it was all the same


def built_shares(run: Path) -> dict[str, float]:
    """Tokens of the rows themselves: a document begins with its domain."""
    tokenizer = tokenizers.Tokenizer.from_file(str(run / "tokenizer/tokenizer.json"))
    ids = np.fromfile(run / "build/rows/train/input_ids.mmap", np.uint32)
    ends = np.flatnonzero(ids == tokenizer.token_to_id("<|endoftext|>")) + 1
    counts = {"math": 0, "web": 0}
    for one in np.split(ids, ends):
        if len(one):
            counts[tokenizer.decode(one.tolist()).split(":")[0]] += len(one)
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def test_a_grid_of_five_is_enough_and_its_scores_are_written_before_there_is_a_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    replace = os.replace

    def watched(source: Any, target: Any, **options: Any) -> None:
        if Path(target).name == "ablation.json":
            written.append(json.loads(Path(source).read_bytes()))
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", watched)
    recipe = corpus(tmp_path, mixture={"weights": {"math": "0.5", "web": "0.5"}, "tokens": 3000})
    given = {**QUICK, "batch_tokens": 1024}
    told = tokmill.ablate([recipe], grid=5, **given, out=tmp_path / "out").as_json()
    assert told["mixture"]["mixtures"] == len(told["targets"]) == 6
    first, last = written
    assert "mixture" not in first
    assert first == {key: value for key, value in last.items() if key != "mixture"}
    assert first["scores"] == told["scores"]


def test_a_mistake_of_the_recipe_is_told_as_the_run_tells_it(tmp_path: Path) -> None:
    recipe = corpus(tmp_path, mixture={"weights": {"math": "0.5", "web": "0.5"}, "tokens": 900_000})
    ways = ("run",), ("ablate", "--grid", "6", "--build", "rows", "--device", "cpu")
    told = [
        command(*words, recipe, "--out", tmp_path / words[0]).stderr.partition("next: ")[2] for words in ways
    ]
    assert "exhausted: r" in told[0]
    assert told[0] == told[1]
