"""The recipes as they are written: an offline variant differs in `sources` and sizes, and nowhere else."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from recipes.conftest import R50K
from recipes.shelved import NAMES
from tokmill import Recipe, load_recipe, tokenizer_check
from tokmill.clean.language import score_for_recall
from tokmill.pipeline.documents import resolve_cleaning
from trained import encode

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

# What 2 MB cannot be enough for. All else is equal.
_LEARNT = {"tokenizer.train.vocab_size", "tokenizer.train.sample_megabytes", "mixture.tokens"}
SIZES: dict[str, set[str]] = {
    "web-mixture": _LEARNT,
    "web-mixture-scored": _LEARNT,
    "healing": {"mixture.tokens"},
}


def path_of(name: str, *, offline: bool = False) -> Path:
    return (RECIPES / "offline" if offline else RECIPES) / f"{name}.yaml"


def load(name: str, *, offline: bool = False) -> Recipe:
    return load_recipe(path_of(name, offline=offline))


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            k: v
            for key, item in value.items()
            for k, v in leaves(item, f"{path}.{key}" if path else key).items()
        }
    return {path: value}


def different(one: Recipe, other: Recipe) -> set[str]:
    first, second = (leaves(recipe.model_dump(mode="json")) for recipe in (one, other))
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


@pytest.mark.parametrize("name", NAMES)
def test_an_offline_variant_differs_in_sources_and_declared_sizes_only(name: str) -> None:
    online, offline = load(name), load(name, offline=True)
    assert different(online, offline) == {"sources"} | SIZES.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_offline_sources_say_the_same_of_other_bytes(name: str) -> None:
    """Where the text comes from, how much of it, and which key holds what; nothing else."""
    own = {"files", "hub", "limit", "sample", "fields"}
    pairs = zip(load(name).sources, load(name, offline=True).sources, strict=True)
    for online, offline in pairs:
        assert online.model_dump(exclude=own) == offline.model_dump(exclude=own)
        assert (online.limit is None) == (offline.limit is None)
        kinds = {source.sample.method if source.sample else None for source in (online, offline)}
        assert len(kinds) == 1
        assert offline.hub is None
        assert all(pattern.startswith("stand-in/") for pattern in offline.files or [])


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_no_mistake_and_a_section_in_the_readme(name: str) -> None:
    for offline in (False, True):
        path, recipe = path_of(name, offline=offline), load(name, offline=offline)
        for source in recipe.sources:
            resolve_cleaning(recipe, source, path.parent)
    readme = (RECIPES / "README.md").read_text()
    assert f"[{name}]({name}.yaml)" in readme
    section = readme.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert len(section.strip("\n").splitlines()) >= 3


def test_the_fast_variant_of_stage_a_differs_in_its_name_and_in_how_copies_are_found() -> None:
    changed = {"name", "dedup.near.verify", "dedup.scope"}
    assert different(load("stage-a"), load("stage-a-fast")) == changed
    assert load("stage-a-fast").dedup.scope == "per-source"


def test_the_wikipedia_variant_of_three_domains_differs_in_its_prose_and_in_its_tokenizer() -> None:
    for offline in (False, True):
        ours = load("three-domains", offline=offline)
        other = load("three-domains-wikipedia", offline=offline)
        changed = {key.split(".")[0] for key in different(ours, other)}
        assert changed == {"name", "sources", "tokenizer"}
        assert ours.sources[:3] == other.sources[:3]
        assert (ours.sources[3].name, other.sources[3].name) == ("wikitext", "wikipedia")
        assert ours.sources[3].domain == other.sources[3].domain == "prose"


def test_the_scored_variant_of_web_mixture_differs_in_its_score_and_who_is_repeated() -> None:
    for offline in (False, True):
        ours, other = (load(name, offline=offline) for name in ("web-mixture", "web-mixture-scored"))
        assert {".".join(key.split(".")[:2]) for key in different(ours, other)} == {
            "name",
            "scores",
            "mixture.repeat",
        }


@pytest.mark.skipif(not R50K.exists(), reason="needs ../shared/data")
def test_three_domains_has_the_tokens_of_gpt_2() -> None:
    """The file that the recipe names is at hand under its sha256,
    and a tokenizer.json of GPT-2 gives the same ids."""
    asked = load("three-domains").tokenizer
    assert asked is not None
    assert asked.path is not None
    assert Path(asked.path).name == R50K.name
    assert hashlib.sha256(R50K.read_bytes()).hexdigest() == asked.sha256
    ranks = tokenizer_check(R50K, sha256=asked.sha256).description
    gpt2 = Tokenizer.from_file(str(R50K.parents[1] / "hf" / "gpt2-tokenizer.json"))
    assert ranks.vocab_size == gpt2.get_vocab_size() == 50_257
    texts = [
        "Problem: $x^2$",
        "def f(x):\n    return x  # ok\n",
        " the <unk> of 5 @-@ word lines , naïve 🙂 \n",
        "x\t\t\n\n",
    ]
    found = encode(R50K, texts, eos="<|endoftext|>")
    assert found == [gpt2.encode(text, add_special_tokens=False).ids for text in texts]


def test_the_numbers_are_those_of_the_projects() -> None:
    mini = load("mini-translation")
    (pairs,) = mini.sources
    assert mini.seed == 42
    assert pairs.sample is not None
    assert (pairs.sample.method, pairs.sample.k) == ("reservoir", 120)
    assert pairs.parallel is not None
    assert (pairs.parallel.min_chars, pairs.parallel.max_chars) == (2, 256)
    assert mini.split.counts is not None
    assert (mini.split.counts.train, mini.split.counts.valid, mini.split.counts.test) == (96, 12, 12)
    assert (mini.pack.layout, mini.pack.length) == ("pad", 64)

    web = load("web-mixture")
    assert [(rule.measure, rule.min, rule.max) for rule in web.filters] == [
        ("chars", 200, None),
        ("chars", None, 8000),
    ]
    assert web.language is not None
    # 0.85 of langdetect, whose scores come in sevenths: of the others, the score that keeps as much English
    assert web.language.recall is not None
    assert score_for_recall("langdetect", web.language.recall) == Decimal("0.8571")
    assert web.dedup.window is not None
    assert web.tokenizer is not None
    assert web.tokenizer.train is not None
    assert (web.tokenizer.train.model, web.tokenizer.train.vocab_size) == ("unigram", 32000)

    stage = load("stage-a")
    assert stage.mixture is not None
    assert [str(weight) for weight in stage.mixture.weights.values()] == [
        "0.3",
        "0.18",
        "0.18",
        "0.12",
        "0.1",
        "0.08",
        "0.02",
        "0.02",
    ]
    assert sum(stage.mixture.weights.values()) == 1
    assert (stage.pack.layout, stage.pack.length) == ("document", 4096)
    assert (stage.dedup.exact, stage.dedup.scope, stage.dedup.near is None) == (True, "global", False)

    healing = load("healing")
    assert healing.mixture is not None
    assert healing.mixture.tokens == 200_000_000
    assert healing.normalize.model_dump(include={"unicode", "nul", "newlines"}) == {
        "unicode": "none",
        "nul": "strip",
        "newlines": "keep",
    }
    assert healing.split.valid_fraction == Decimal("0.1")
    assert healing.sources[0].hub is not None
    assert len(healing.sources[0].hub.revision or "") == 40

    three = load("three-domains")
    assert three.sources[3].hub is not None
    assert three.sources[3].hub.dataset == "Salesforce/wikitext"
    assert [source.limit.megabytes for source in three.sources if source.limit] == [10, 10, 10]
    bounds = {
        name: [
            bound for rule in cleaning.filters or [] for bound in (rule.min, rule.max) if bound is not None
        ]
        for name, cleaning in three.domains.items()
    }
    # 100 < length < 10,000, and 200 < length < 10,000
    assert bounds == {"code": [101, 9_999], "prose": [201, 9_999]}
    assert three.mixture is not None
    assert (three.mixture.balance, three.pack.length, three.pack.tail) == ("smallest", 512, "drop")
