"""The reviewer: each check is set off by one spoilt run or recipe and by nothing else;
a good build by none of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from reviews.reviewed import (
    WORDS,
    Corpus,
    clean_run,
    copied,
    deal_out_rows,
    flip_byte,
    mill,
    remove_ends,
    words,
    write_recipe,
)
from tokmill import review
from tokmill.reviews.review import CHECKS

Recipe = dict[str, Any]


# --- spoilt runs ---


def without_licenses(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:5]:
        record["license"] = None


def outside_policy(corpus: Corpus, recipe: Recipe) -> None:
    """The source has a looser policy than the recipe."""
    for record in corpus["prose"]:
        record["license"] = "GPL-3.0-only"
    recipe["sources"][2]["clean"] = {"license": {"allow": ["GPL-3.0-only"]}}


def only_the_head(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"].sort(key=lambda record: record["label"])
    recipe["sources"][2]["limit"] = {"docs": 110}


def without_labels(corpus: Corpus, recipe: Recipe) -> None:
    """The language is still carried along, but it is no label."""
    recipe["sources"][2]["fields"] = {**recipe["sources"][2]["fields"], "meta": []}


def exact_copies(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"] += [{**record, "id": f"copy-{record['id']}"} for record in corpus["prose"][:40]]
    recipe["dedup"] = {**recipe["dedup"], "exact": False, "near": None}


def near_copies(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:40]:
        text = record["text"].replace(" ", " almost ", 1)
        corpus["prose"].append({**record, "id": f"again-{record['id']}", "text": text})
    recipe["dedup"] = {**recipe["dedup"], "near": None}


def nothing_held_out(corpus: Corpus, recipe: Recipe) -> None:
    recipe["split"] = {"valid_fraction": 0}


def one_beginning(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["math"]:
        record["text"] = f"Question: {record['text']}"


def one_first_character(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:80]:
        record["text"] = f"“{record['text']}"


def leading_spaces(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:4]:
        record["text"] = f" {record['text']}"


def unequal_weights(corpus: Corpus, recipe: Recipe) -> None:
    recipe["mixture"] = {"weights": {"code": "0.25", "math": "0.35", "prose": "0.4"}, "tokens": 40_000}


def balanced_against_weights(corpus: Corpus, recipe: Recipe) -> None:
    weights = {"code": "0.3", "math": "0.3", "prose": "0.4"}
    recipe["mixture"] = {"weights": weights, "balance": "smallest", "tokens": 40_000}


def too_little_of_one(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"] = corpus["prose"][:50]
    del recipe["mixture"]["tokens"]


def too_strict_a_rule(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"] += [
        {**corpus["prose"][0], "id": f"tiny-{number}", "text": f"tiny {number}"} for number in range(150)
    ]
    recipe["sources"][2]["clean"] = {"filters": [{"measure": "words", "min": 20, "reason": "too_few_words"}]}


def one_id_for_many(corpus: Corpus, recipe: Recipe) -> None:
    """Of documents that are trained on, to a name that is: what is held out stays as it was."""
    trained = [record for record in corpus["prose"] if sha256(record["id"].encode()).digest()[0] > 50]
    for record in trained[:12]:
        record["id"] = "page"


def two_languages(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:12]:
        record["lang"] = "de"


def repeated(corpus: Corpus, recipe: Recipe) -> None:
    recipe["mixture"] |= {"tokens": 150_000, "exhausted": "repeat"}


def too_large_a_budget(corpus: Corpus, recipe: Recipe) -> None:
    recipe["mixture"] = {"tokens": 150_000, "exhausted": "renormalize"}


def longer_and_longer(corpus: Corpus, recipe: Recipe) -> None:
    for records in corpus.values():
        for number, record in enumerate(records):
            record["text"] += words(random.Random(number), number // 2)
    recipe["mixture"]["order"] = "corpus"


def one_giant(corpus: Corpus, recipe: Recipe) -> None:
    corpus["prose"][0] |= {"id": "giant-2", "text": words(random.Random(1), 600)}
    del recipe["mixture"]["tokens"]  # all that there is, so that it has its turn


def alike(corpus: Corpus) -> None:
    """One kind of text: in rows as long as documents, signs of code alone would tell the domains apart."""
    rng = random.Random(13)
    for records in corpus.values():
        for record in records:
            record["text"] = words(rng, 65)


def long_rows(corpus: Corpus, recipe: Recipe) -> None:
    alike(corpus)
    recipe["pack"] = {"length": 1024}


def loose_rows(corpus: Corpus, recipe: Recipe) -> None:
    alike(corpus)
    recipe["pack"] = {"layout": "document", "length": 300}


def truncated(corpus: Corpus, recipe: Recipe) -> None:
    recipe["pack"] = {"layout": "pad", "length": 64}
    recipe["mixture"] = {"tokens": 50_000}  # of each document a row: shares of tokens cannot be kept


def control_literals(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:3]:
        record["text"] += " <|im_start|> <|endoftext|>"


def one_cluster(corpus: Corpus, recipe: Recipe) -> None:
    text = words(random.Random(2), 65)
    corpus["prose"] += [
        {**corpus["prose"][0], "id": f"letter-{number}", "text": f"{word} {text}"}
        for number, word in enumerate(text.split()[:40])
    ]


def leaked_benchmark(corpus: Corpus, recipe: Recipe) -> None:
    leaked = "How many zebras may graze on nine hills before any of the seven shepherds takes notice of them?"
    corpus["prose"][5]["text"] += f" {leaked}"
    recipe["dedup"]["against"] = {**recipe["dedup"]["against"], "policy": "report"}


def old_marks(corpus: Corpus, recipe: Recipe) -> None:
    for record in corpus["prose"][:2]:
        record["text"] = record["text"].replace(" ", " <unk> ", 1)


def words_of_their_own(corpus: Corpus, recipe: Recipe) -> None:
    """No domain has a word of another, and no sign either."""
    rng = random.Random(11)
    for number, records in enumerate(corpus.values()):
        mine = WORDS[number * 27 : number * 27 + 27]
        for record in records:
            record["text"] = " ".join(rng.choice(mine) for _ in range(65))


def uneven_documents(corpus: Corpus, recipe: Recipe) -> None:
    """Half of them have eight words and no more: ten held-out ones say little of the rest."""
    rng = random.Random(12)
    for record in corpus["prose"][::2]:
        record["text"] = " ".join(rng.choice(WORDS[:8]) for _ in range(65))


def too_large_a_model(corpus: Corpus, recipe: Recipe) -> None:
    recipe["review"] = {"model_params": 1_000, "train_tokens": "10k"}


def trained_too_long(corpus: Corpus, recipe: Recipe) -> None:
    recipe["review"] = {"model_params": 500, "train_tokens": "100k"}


SPOILT: dict[str, Callable[[Corpus, Recipe], None]] = {
    "license_missing": without_licenses,
    "license_outside_policy": outside_policy,
    "head_sampling": only_the_head,
    "subsource_labels": without_labels,
    "exact_overlap": exact_copies,
    "near_overlap": near_copies,
    "held_out": nothing_held_out,
    "constant_prefix": one_beginning,
    "first_character": one_first_character,
    "hidden_characters": leading_spaces,
    "domain_imbalance": unequal_weights,
    "built_mix": balanced_against_weights,
    "starved_build": too_little_of_one,
    "source_loss": too_strict_a_rule,
    "run_warnings": one_id_for_many,
    "language_mixture": two_languages,
    "source_repeats": repeated,
    "budget_epochs": too_large_a_budget,
    "drift": longer_and_longer,
    "giant_document": one_giant,
    "tail_drop": long_rows,
    "padding": loose_rows,
    "truncation": truncated,
    "control_tokens": control_literals,
    "giant_clusters": one_cluster,
    "contamination": leaked_benchmark,
    "dataset_artefacts": old_marks,
    "surface_shortcut": words_of_their_own,
    "held_out_noise": uneven_documents,
    "tokens_per_parameter": too_large_a_model,
    "plan_epochs": trained_too_long,
}

# --- damage that the mill itself never does ---

TAMPERED: dict[str, Callable[[Path], None]] = {
    "split_after_packing": deal_out_rows,
    "missing_eos": remove_ends,
    "counts_and_hashes": lambda run: flip_byte(run / "ATTRIBUTION.md"),
}

# --- recipes ---

_HUB = {"name": "web", "license": "MIT", "fields": {"meta": ["url"]}}
_DATASET = {"dataset": "org/data", "revision": "0" * 40}
RECIPES: dict[str, Recipe] = {
    "unpinned_revision": {**_HUB, "hub": {**_DATASET, "revision": "main"}},
    "remote_code": {**_HUB, "hub": {**_DATASET, "trust_remote_code": True}},
}


def recipe_with(source: Recipe) -> Recipe:
    return {
        "name": "plan",
        "sources": [source],
        "language": {"method": "detect"},
        "split": {"valid_fraction": "0.05"},
    }


# --- every check ---


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clean_run(tmp_path_factory.getbasetemp())


def tokenizer_of(run: Path) -> Path:
    return run / "tokenizer" / "tokenizer.json"


@pytest.fixture
def fixture_of(clean: Path, tmp_path: Path) -> Callable[[str], Path]:
    def made(name: str) -> Path:
        if name in RECIPES:
            return write_recipe(tmp_path, recipe_with(RECIPES[name]))
        if name in TAMPERED:
            run = copied(clean, tmp_path / "tampered")
            TAMPERED[name](run)
            return run
        return mill(tmp_path, SPOILT[name], tokenizer_of(clean))

    return made


def found_by(found: Any) -> set[str]:
    return {finding.check for finding in found.findings}


def test_a_good_build_sets_off_no_check_and_every_check_is_made(clean: Path) -> None:
    found = review(clean)
    assert found.findings == ()
    assert found.checks_not_made == ()
    assert found.assumptions == ()
    assert found.recommendations == ()
    assert set(found.checks_made) == {check.name for check in CHECKS}


def test_every_check_has_a_fixture_that_sets_it_off() -> None:
    assert {check.name for check in CHECKS} == {*SPOILT, *TAMPERED, *RECIPES}
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_a_fixture_sets_off_its_check_and_without_that_check_nothing(
    name: str, fixture_of: Callable[[str], Path]
) -> None:
    target = fixture_of(name)
    found = review(target)
    assert found_by(found) == {name}
    for finding in found.findings:
        assert finding.evidence
        assert all(measure.read_from for measure in finding.evidence)
        assert any(isinstance(measure.value, (int, float)) for measure in finding.evidence) or name in RECIPES
    assert [check for check, _ in found.recommendations] == [name]
    others = [check for check in CHECKS if check.name != name]
    assert review(target, checks=others, no_verify=True).findings == ()
