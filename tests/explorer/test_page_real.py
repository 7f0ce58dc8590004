"""The page on real documents: web pages, prose, code, mathematics, many languages. Some of them, and by
`make recipes` all 40,000."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer.browsed import AXE, Counted, Explored, open_explored
from mill import SHARED
from tokmill import run

SOURCES = ["code", "math", "multilingual", "prose", "web"]
VIEWS = [
    "",
    "documents?f=verdict:dropped&sort=-chars",
    "threshold?rule=chars.min&value=600",
    "clusters",
    "rows?build=fit&split=train",
    "labels?kind=border&rule=symbol_share.max",
    "labels?kind=disagreement",
    "compare",
]

pytestmark = pytest.mark.skipif(
    not (SHARED / "bench").is_dir(), reason="no real documents beside this checkout (../shared/bench)"
)


def write_recipe(path: Path, docs: int | None, least: int) -> Path:
    recipe: dict[str, Any] = {
        "name": path.stem,
        "seed": 7,
        "sources": [
            {
                "name": name,
                "domain": name,
                "license": "CC-BY-SA-4.0",
                "files": str(SHARED / "bench" / f"{name}.jsonl.zst"),
                **({"limit": {"docs": docs}} if docs else {}),
            }
            for name in SOURCES
        ],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "filters": [
            {"measure": "chars", "min": least, "reason": "too_short"},
            {"measure": "symbol_share", "max": 0.2, "reason": "symbols"},
        ],
        "clean": {"warn_source_loss": 1},
        "dedup": {"exact": True, "near": {"threshold": 0.7}},
        "split": {"method": "hash", "valid_fraction": 0.05},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 1024}, "eos": "<|endoftext|>"},
        "pack": {"length": 1024},
        "builds": [{"name": "fit", "format": "parquet", "pack": {"layout": "best_fit", "length": 1024}}],
    }
    path.write_text(json.dumps(recipe))
    return path


@pytest.fixture(
    scope="module", params=[120, pytest.param(None, marks=pytest.mark.slow_recipes)], ids=["some", "all"]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run, and an earlier one with another threshold."""
    directory = tmp_path_factory.mktemp("real")
    now, before = (
        run(
            write_recipe(directory / name, request.param, least),
            directory / name.removesuffix(".yaml"),
            workers=1,
        )
        for name, least in (("now.yaml", 400), ("before.yaml", 700))
    )
    return now.out, before.out


@pytest.fixture(scope="module")
def counted(made: tuple[Path, Path]) -> Counted:
    return Counted(made[0])


@pytest.fixture(scope="module")
def explored(made: tuple[Path, Path]) -> Iterator[Explored]:
    now, before = made
    with open_explored(now, compare=before, labels=now.parent / "labels.jsonl") as opened:
        yield opened
        assert opened.page.complaints == []
        assert opened.leaks() == []


def number(text: str) -> int:
    return int(text.split()[0].replace(",", ""))


@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_is_drawn_within_the_width_of_the_window(explored: Explored, width: int) -> None:
    explored.start(width=width)
    for view in VIEWS:
        explored.go(view)
        assert explored.page.run("document.querySelector('.fault') === null"), (
            view,
            explored.text("main")[:400],
        )
        assert explored.page.run("document.documentElement.scrollWidth") <= width, view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(explored: Explored, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `npm ci` in tests/explorer")
    explored.start(scheme=scheme)
    for view in VIEWS:
        explored.go(view)
        assert explored.faults() == [], view


def test_the_table_says_as_many_as_the_tables_have(explored: Explored, counted: Counted) -> None:
    for reason, documents in Counter(
        one["reasons"][0][1] for one in counted.documents if one["reasons"]
    ).items():
        explored.go(f"documents?f=reason:{reason}")
        assert number(explored.text("main h1")) == documents, reason
    for source in SOURCES:
        explored.go(f"documents?f=source:{source}&f=verdict:kept")
        assert number(explored.text("main h1")) == counted.count(source=source, verdict="kept")
    explored.go("documents?f=chars:1000..2000")
    wanted = sum(1000 <= one["measures"]["chars"] <= 2000 for one in counted.documents)
    assert number(explored.text("main h1")) == wanted


def test_a_moved_threshold_says_who_would_change_sides(explored: Explored, counted: Counted) -> None:
    for least in (100, 400, 900):
        explored.go(f"threshold?rule=chars.min&value={least}")
        kept = sum(
            one["measures"]["chars"] >= least and one["measures"]["symbol_share"] <= 0.2
            for one in counted.documents
        )
        assert number(explored.text("[data-then]")) == kept


def test_every_document_of_a_page_opens_and_its_words_are_those_of_the_table(
    explored: Explored, counted: Counted
) -> None:
    """The longest and the shortest, of every source."""
    texts = {(one["source"], one["id"]): one["text"] for one in counted.documents}
    for source in SOURCES:
        for sort in ("-chars", "chars"):
            explored.go(f"documents?f=source:{source}&sort={sort}")
            explored.press(lambda: explored.page.run("document.querySelector('td.id a').click()"))
            shown = explored.page.run(
                "(() => { const box = document.querySelector('#part-texts .text').cloneNode(true); "
                "box.querySelectorAll('.glyph, br, button, .gap').forEach((one) => one.remove()); "
                "return box.textContent.slice(0, 3000); })()"
            )
            text = texts[source, explored.text("main h1")]
            plain = "".join(c for c in text[:3500] if c.isascii() and c.isprintable() and c != " ")
            assert (
                "".join(c for c in shown if c.isascii() and c.isprintable() and c != " ")[:1000]
                == plain[:1000]
            )


def test_rows_show_padding_as_the_build_has_it(explored: Explored, made: tuple[Path, Path]) -> None:
    explored.go("rows?build=fit&split=train")
    explored.page.wait("document.querySelectorAll('.rowline').length > 5")
    lengths = explored.page.run(
        "[...document.querySelectorAll('.rowline')].map((line) => [...line.querySelectorAll('rect.mark')]"
        ".map((one) => one.dataset.tip.match(/columns ([0-9,]+) to ([0-9,]+)/).slice(1)"
        ".map((text) => Number(text.replaceAll(',', '')))))"
    )
    for spans in lengths:
        assert spans[0][0] == 0
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= 1024


def test_who_changed_sides_is_counted_from_both_runs(
    explored: Explored, counted: Counted, made: tuple[Path, Path]
) -> None:
    """By source and id, which are of one document each here."""
    before = {(one["source"], one["id"]): not one["reasons"] for one in Counted(made[1]).documents}
    now = {(one["source"], one["id"]): not one["reasons"] for one in counted.documents}
    came = sum(is_kept and not before[key] for key, is_kept in now.items())
    went = sum(not is_kept and before[key] for key, is_kept in now.items())
    explored.go("compare")
    shown = explored.page.run(
        "[...document.querySelectorAll('[data-change]')].map((one) => "
        "[one.dataset.change, Number(one.dataset.documents)])"
    )
    found: Counter[str] = Counter()
    for change, documents in shown:
        found[change] += documents
    assert (found["came"], found["went"]) == (came, went)
    assert came > 0
    explored.press(lambda: explored.page.run("document.querySelector('.changelist a').click()"))
    assert number(explored.text("main h2")) == shown[0][1]
