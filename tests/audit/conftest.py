"""Every variant is milled once for all tests of figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.figures import Json, Milled
from mill import tokmill
from recount import Recount
from reviews.variants import BENCH, DOMAINS, VARIANTS, write_variant
from tokmill.reports.facts import gather_facts
from tokmill.reviews.review import review

_REAL = ("plain", "weighted", "budgeted", "balanced", "truncated", "repeated")


_PARAMETERS = [
    *(pytest.param((variant, "generated"), id=variant) for variant in VARIANTS),
    *(
        pytest.param(
            (variant, "real"),
            id=f"{variant}-real",
            marks=pytest.mark.skipif(not BENCH.is_dir(), reason="no ../shared here"),
        )
        for variant in _REAL
    ),
]


@pytest.fixture(scope="session", params=_PARAMETERS)
def milled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Milled:
    variant, texts = request.param
    recipe = write_variant(tmp_path_factory.mktemp("figures") / texts, variant, texts)
    found = tokmill("run", recipe, "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    return Milled(
        variant,
        json.loads(recipe.read_text()),
        found.stderr,
        told,
        Recount(Path(told["out"]), DOMAINS),
    )


@pytest.fixture(scope="session")
def report(milled: Milled) -> Json:
    return gather_facts(milled.out)


@pytest.fixture(scope="session")
def reviewed(milled: Milled) -> Json:
    return review(milled.out).as_json()
