"""Scores in the report: every bar, share and bound recounted from the written parquet files, and the page in
a real browser."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from browser import open_page
from made_fasttext import write_model
from mill import small_corpus
from reports.reported import figures_of
from tokmill.reports.scores import bar_edges

EDU = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}, "percentile": "corpus"}
LOUD = {"name": "loud", "hook": "loud.py:loudness"}
HOOK = '''
import numpy as np


def loudness(documents):
    """Whole numbers, far apart, and one that is farther than all."""
    sizes = [len(text) for text in documents["text"]]
    return np.array([size * size if size % 7 else -size for size in sizes], np.int64)
'''
LEAST, LOWEST = 0.58, 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scored")
    write_model(directory / "edu.bin")
    (directory / "loud.py").write_text(HOOK)
    filters = [
        {"measure": "score.edu", "min": LEAST, "reason": "low_edu"},
        {"measure": "score.edu.percentile", "min": LOWEST, "reason": "lowest"},
    ]
    recipe = small_corpus(
        directory, problems=200, scores=[EDU, LOUD], filters=filters, shards={"megabytes": 1}
    )
    own = json.loads(recipe.read_text())
    own["sources"][1]["clean"] = {"filters": []}  # notes are not judged
    recipe.write_text(json.dumps(own))
    return mill.run(recipe, workers=1, until="split").out


def rows_of(run: Path, measure: str) -> list[tuple[str, str, float, bool]]:
    """Source, domain, score and whether the document is there after the rules, by pyarrow alone."""
    found, number = [], 0
    for source in ("problems", "notes"):
        for path in sorted((run / "ingest" / source).glob("documents-*.parquet")):
            key = path.name.removeprefix("documents-")
            values = pq.read_table(run / "clean" / source / f"measures-{key}").column(measure).to_pylist()
            domains = pq.read_table(path, columns=["domain"]).column("domain").to_pylist()
            kept = pq.read_table(run / "scores" / f"marks-{number:05d}.parquet").column("kept").to_pylist()
            found += zip([source] * len(values), domains, values, kept, strict=True)
            number += 1
    return [row for row in found if row[2] is not None]


@pytest.mark.parametrize("measure", ["score.edu", "score.loud"])
def test_every_bar_is_what_the_files_hold(run: Path, measure: str) -> None:
    (told,) = [one for one in figures_of(run)["scores"] if one["measure"] == measure]
    rows = rows_of(run, measure)
    edges = told["edges"]
    assert len(rows) > 100
    assert 20 <= len(edges) <= 60
    widths = [high - low for low, high in itertools.pairwise(edges)]
    assert widths == pytest.approx([widths[0]] * len(widths))

    def bars(chosen: list[tuple[str, str, float, bool]]) -> list[int]:
        counts: Counter[int] = Counter()
        for row in chosen:
            at = sum(edge <= row[2] for edge in edges) - 1
            counts[min(max(at, 0), len(edges) - 2)] += 1
        return [counts[at] for at in range(len(edges) - 1)]

    for place, by in ((None, None), (0, "source"), (1, "domain")):
        groups = [told] if by is None else told["by"][by]
        assert by is None or {group["name"] for group in groups} == {row[place] for row in rows}
        for group in groups:
            own = [row for row in rows if by is None or row[place] == group["name"]]
            assert group["docs"] == len(own)
            assert group["kept"] == sum(row[3] for row in own)
            assert group["bars"] == bars(own)
            assert group["bars_kept"] == bars([row for row in own if row[3]])
    assert told["below"] == sum(row[2] < edges[0] for row in rows)
    assert told["above"] == sum(row[2] > edges[-1] for row in rows)


def test_bounds_are_told_of_the_sources_that_have_them(run: Path) -> None:
    edu, loud = figures_of(run)["scores"]
    rows = rows_of(run, "score.edu")
    whose = {"source": "problems", "domain": "math"}
    assert edu["bounds"] == [
        {**whose, "measure": "score.edu", "bound": "min", "threshold": LEAST},
        {**whose, "measure": "score.edu.percentile", "bound": "min", "threshold": float(LOWEST)},
    ]
    by_source = {group["name"]: group for group in edu["by"]["source"]}
    passes = sum(row[2] >= LEAST for row in rows if row[0] == "problems")
    assert by_source["problems"]["passes"] == passes
    assert 0 < by_source["problems"]["kept"] < passes
    assert by_source["notes"]["passes"] is None
    problems = sum(row[0] == "problems" for row in rows)
    assert (edu["passes"], edu["judged"]) == (passes, problems)
    assert (by_source["problems"]["judged"], by_source["notes"]["judged"]) == (problems, 0)
    assert (loud["bounds"], loud["passes"], loud["judged"]) == ([], None, 0)


def test_a_drop_by_a_percentile_has_its_bound_and_who_just_held_it(run: Path) -> None:
    name = "score.edu.percentile"
    (drop,) = [one for one in figures_of(run)["drops"] if one["reason"] == "lowest"]
    assert [(b["source"], b["measure"], b["bound"], b["threshold"]) for b in drop["bounds"]] == [
        ("problems", name, "min", float(LOWEST))
    ]
    held = []
    for number, path in enumerate(sorted((run / "ingest" / "problems").glob("documents-*.parquet"))):
        ids = pq.read_table(path, columns=["doc_id"]).column("doc_id").to_pylist()
        values = pq.read_table(run / "scores" / f"percentiles-{number:05d}.parquet").column(name).to_pylist()
        kept = pq.read_table(run / "scores" / f"marks-{number:05d}.parquet").column("kept").to_pylist()
        held += [(value, doc_id) for value, doc_id, stays in zip(values, ids, kept, strict=True) if stays]
    told = [(one["value"], one["doc_id"]) for one in drop["just_kept"]]
    assert len(told) > 2
    assert [value for value, _ in told] == [value for value, _ in sorted(held)[: len(told)]]
    assert set(told) <= set(held)


def test_who_no_rule_judges_is_not_said_to_hold_its_bound(run: Path, tmp_path: Path) -> None:
    rows = rows_of(run, "score.edu")
    judged = [row for row in rows if row[0] == "problems"]
    passes = sum(row[2] >= LEAST for row in judged)
    assert 0 < len(rows) - len(judged) < len(rows)
    page = mill.report(run, out=tmp_path / "page").page.read_text()
    share = f"{100 * passes / len(judged):.1f} %"
    assert (
        f"{passes:,} ({share}) hold min {LEAST}; {len(rows) - len(judged):,} are judged by no rule;" in page
    )


def test_bounds_that_must_both_hold_are_not_alternatives(tmp_path: Path) -> None:
    write_model(tmp_path / "edu.bin")
    both = [
        {"measure": "score.edu", "min": 0.1, "reason": "low"},
        {"measure": "score.edu", "max": 0.9, "reason": "high"},
    ]
    recipe = small_corpus(tmp_path, scores=[EDU], filters=both)
    page = mill.report(mill.run(recipe, workers=1, until="split").out, out=tmp_path / "page").page.read_text()
    assert "hold min 0.1 and max 0.9;" in page
    own = json.loads(recipe.read_text())
    own["sources"][1]["clean"] = {"filters": [{"measure": "score.edu", "min": 0.2, "reason": "low"}]}
    recipe.write_text(json.dumps(own))
    page = mill.report(
        mill.run(recipe, workers=1, until="split").out, out=tmp_path / "other"
    ).page.read_text()
    assert "hold min 0.1 and max 0.9 (problems); min 0.2 (notes);" in page


def test_a_run_without_scores_has_no_section_of_them(tmp_path: Path) -> None:
    made = mill.report(mill.run(small_corpus(tmp_path), workers=1, until="split").out, out=tmp_path / "page")
    assert made.facts["scores"] is None
    assert 'id="scores"' not in made.page.read_text()


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (0, 1),
        (0.0001, 0.0002),
        (-3, 700),
        (5, 5),
        (0, 0),
        (1e12, 1e12 + 1),
        (-1e308, 1e308),
        (1e-300, 2e-300),
    ],
)
def test_edges_are_round_increasing_and_around_all(least: float, most: float) -> None:
    edges = bar_edges(least, most).tolist()
    assert edges == sorted(set(edges))
    assert 2 <= len(edges) <= 60
    assert edges[0] <= max(least, -1e300)
    assert edges[-1] >= min(most, 1e300)
    assert all(math.isfinite(edge) for edge in edges)
    assert max(len(f"{abs(edge):.15g}".replace(".", "").strip("0")) for edge in edges) <= 15


def test_the_page_draws_scores_with_their_bounds_light_and_dark(run: Path, tmp_path: Path) -> None:
    made = mill.report(run, out=tmp_path)
    with open_page() as page:
        for scheme in ("light", "dark"):
            page.open(made.page, scheme=scheme)
            assert page.complaints == []
            chart = "document.querySelector('.score-0-histogram')"
            edu = made.facts["scores"][0]
            filled = sum(docs > 0 for key in ("bars", "bars_kept") for docs in edu[key])
            assert page.run(f"{chart}.querySelectorAll('.mark').length") == filled
            assert page.run(f"{chart}.querySelectorAll('.bound-line').length") == 1
            assert f"min {LEAST}" in page.run(f"{chart}.textContent")
            # the line stands where the threshold is on the axis of the bars
            at = float(page.run(f"{chart}.querySelector('.bound-line').getAttribute('x1')"))
            edges = edu["edges"]
            share = (LEAST - edges[0]) / (edges[-1] - edges[0])
            assert at == pytest.approx(54 + share * (960 - 54 - 8), abs=0.2)
            stroke = page.run(f"getComputedStyle({chart}.querySelector('.bound-line')).stroke")
            assert stroke == {"light": "rgb(168, 67, 45)", "dark": "rgb(224, 138, 112)"}[scheme]
            rows = page.run("[...document.querySelectorAll('#scores tbody tr')].map(r => r.innerText)")
            assert len(rows) == 8
            assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
