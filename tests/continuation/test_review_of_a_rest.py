"""What a run and a review say of a rest: of the whole training, and of what a source had left; counted here
from seen.parquet, lengths, order-train.parquet and index.jsonl.zst."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from continuation.rests import DOMAINS, id_of, recipe_of, table_of, written
from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.loader import Batches, open_dataset
from tokmill.pipeline.run import RunResult

ROWS = [{"name": "rows", "format": "memmap"}]


@pytest.fixture(scope="module")
def late(place: Path) -> Json:
    """A state of `old`, most documents of which were seen whole."""
    batches = Batches(open_dataset(place / "old/build/rows", "train"), 1, 1)
    return {**batches.state_dict(), "position": batches.epoch_samples * 24 // 25}


def rest_of(place: Path, build: str, name: str, state: Json, recipe: Json) -> RunResult:
    recipe = {**recipe, "builds": ROWS}
    return mill.continue_(
        place / build, recipe=written(place, name, recipe), out=place / name, at=state, workers=1
    ).run


def tokens_left(run: Path, names: list[str]) -> Counter[str]:
    """By source, of training documents that were not had whole."""
    had = table_of(run)
    found: Counter[str] = Counter()
    for doc in Recount(run, {name: DOMAINS[name] for name in names}).in_split("train"):
        if (one := had.get((doc.source, id_of(doc.doc_id)))) is None or not one.passes:
            found[doc.source] += doc.tokens
    return found


def scheduled(run: Path, names: list[str]) -> int:
    return sum(doc.tokens for doc in Recount(run, {name: DOMAINS[name] for name in names}).turns("train"))


def tokens_seen(run: Path) -> Counter[str]:
    return Counter(
        {
            source: sum(one.tokens for (name, _), one in table_of(run).items() if name == source)
            for source in DOMAINS
        }
    )


def findings_of(run: Path, check: str, **told: Any) -> list[Json]:
    found = mill.review(run, no_verify=True, **told)
    assert check in found.checks_made
    return [one for one in found.as_json()["findings"] if one["check"] == check]


def values_of(finding: Json) -> Json:
    return {measure["name"]: measure["value"] for measure in finding["evidence"]}


def test_a_rest_that_gives_all_that_is_left_is_not_said_to_be_limited(place: Path, late: Json) -> None:
    run = rest_of(place, "old/build/rows", "all_left", late, recipe_of("web", "math", mixture={}))
    left = tokens_left(run.out, ["web", "math"])
    assert scheduled(run.out, ["web", "math"]) >= 0.9 * left.total()
    assert "mixture" not in dict(run.warnings)
    assert findings_of(run.out, "starved_build") == []


def test_what_limits_a_rest_is_what_has_least_left_for_its_weight(place: Path, late: Json) -> None:
    mixture = {"weights": {"web": "0.8", "math": "0.2"}}
    run = rest_of(place, "old/build/rows", "starved", late, recipe_of("web", "math", "more", mixture=mixture))
    left = tokens_left(run.out, list(DOMAINS))
    of_domains = {"web": left["web"], "math": left["math"] + left["more"]}
    assert of_domains["web"] / 0.8 < of_domains["math"] / 0.2
    (said,) = (what for step, what in run.warnings if step == "mixture")
    built = scheduled(run.out, list(DOMAINS))
    share = 100 * built / left.total()
    assert said.startswith(
        f"web limits the build to {share:.0f} % of the tokens left ({built:,} of {left.total():,}): it has "
        f"{left['web']:,};"
    )
    (finding,) = findings_of(run.out, "starved_build")
    assert values_of(finding) == {
        "scheduled": built,
        "left": left.total(),
        "of the tokens left": pytest.approx(share, abs=1e-5),
        "web has": left["web"],
    }


# --- what is of the whole training ---


@pytest.fixture(scope="module")
def ending(place: Path) -> RunResult:
    """The last twentieth of `twice`, by the recipe of it."""
    batches = Batches(open_dataset(place / "twice/build/mega", "train"), 1, 1)
    state = {**batches.state_dict(), "position": batches.epoch_samples * 19 // 20}
    recipe = json.loads((place / "twice.yaml").read_text())
    return rest_of(place, "twice/build/mega", "ending", state, recipe)


def test_a_rest_is_judged_as_the_end_of_the_whole_training(place: Path, ending: RunResult) -> None:
    run, names = ending.out, ["web", "math"]
    recount = Recount(run, {name: DOMAINS[name] for name in names})
    rows, seen = Counter[str](), tokens_seen(run)
    for turn in recount.built("rows", "train").turns:
        rows[turn.doc.source] += turn.written
    whole = seen.total() + rows.total()
    valid = recount.built("rows", "valid").written
    assert rows.total() < valid < whole, "or this proves nothing"
    assert not [what for step, what in ending.warnings if "held out" in what]
    asked: Json = {"model_params": whole // 30, "train_tokens": 3 * whole}
    (epochs,) = findings_of(run, "plan_epochs", **asked)
    assert epochs["about"] == "build rows, with what was trained on before"
    there = Counter(doc.source for doc in recount.in_split("train") for _ in range(doc.tokens))
    turns = Counter(doc.source for doc in recount.turns("train") for _ in range(doc.tokens))
    assert values_of(epochs) == {
        "passes": 3.0,
        "of the tokens trained on are new": pytest.approx(100 / 3, abs=1e-5),
        **{
            f"source {name} is seen": pytest.approx(
                3 * max((seen[name] + turns[name]) / there[name], 1), abs=1e-4
            )
            for name in names
        },
    }
    assert findings_of(run, "tokens_per_parameter", model_params=whole // 30) == []
    (short,) = findings_of(run, "tokens_per_parameter", model_params=whole)
    assert values_of(short)["trained on"] == whole
    # the whole training and its end have the same findings
    for check in ("plan_epochs", "held_out", "source_repeats", "budget_epochs"):
        kinds = []
        for target in (run, place / "twice"):
            found = findings_of(target, check, **asked)
            kinds.append({one["severity"] for one in found})
        assert kinds[0] == kinds[1], check


def test_a_build_of_some_sources_was_trained_before_on_those_alone(place: Path, late: Json) -> None:
    only = {"name": "only", "format": "memmap", "sources": ["math"]}
    recipe = {**recipe_of("web", "math", mixture={}), "builds": [only]}
    run = mill.continue_(
        place / "old/build/rows",
        recipe=written(place, "some", recipe),
        out=place / "some",
        at=late,
        workers=1,
    ).run.out
    recount = Recount(run, {name: DOMAINS[name] for name in ("web", "math")})
    own = sum(turn.written for turn in recount.built("only", "train").turns)
    seen = tokens_seen(run)
    assert min(own, seen["web"], seen["math"]) > 0
    (short,) = findings_of(run, "tokens_per_parameter", model_params=own + seen.total())
    assert values_of(short)["trained on"] == own + seen["math"]


def test_what_a_budget_asks_of_a_source_is_what_the_rest_asks_of_it(place: Path, late: Json) -> None:
    """And what of it was trained on before."""
    seen = tokens_seen(place / "all_left").total()
    mixture: Json = {"tokens": seen + 2000, "held_out": "whole"}
    run = rest_of(place, "old/build/rows", "budget", late, recipe_of("more", mixture=mixture))
    there = sum(doc.tokens for doc in Recount(run.out, DOMAINS).in_split("train") if doc.source == "more")
    assert 2000 < there < seen + 2000
    assert findings_of(run.out, "budget_epochs") == []
    (size,) = (
        one for one in mill.review(run.out, no_verify=True).questions if "large enough" in one.question
    )
    (said,) = (one for one in size.says if one.startswith("The target is "))
    assert said.endswith(f"; {seen:,} were trained on before.")

    mixture = {"tokens": 60000, "exhausted": "renormalize", "held_out": "whole"}
    mixture["weights"] = {"web": "0.75", "math": "0.25"}
    run = rest_of(place, "old/build/rows", "too_much", late, recipe_of("web", "more", mixture=mixture))
    recount, had = Recount(run.out, {name: DOMAINS[name] for name in ("web", "more")}), tokens_seen(run.out)
    there, scheduled = (
        Counter(doc.source for doc in docs for _ in range(doc.tokens))
        for docs in (recount.in_split("train"), recount.turns("train"))
    )
    (repeated,) = findings_of(run.out, "source_repeats")  # parts of documents were had, and come again
    assert repeated["about"] == "source web"
    epochs = (had["web"] + scheduled["web"]) / there["web"]
    assert values_of(repeated)["epochs"] == pytest.approx(epochs, abs=1e-5)
    (beyond,) = findings_of(run.out, "budget_epochs")
    assert beyond["about"] == "source more"
    asked = 0.25 * (60000 - had.total())
    assert values_of(beyond) == {
        "epochs that the budget implies": pytest.approx(asked / there["more"], abs=1e-5),
        "its part of the budget": round(asked),
        "there are": there["more"],
    }
