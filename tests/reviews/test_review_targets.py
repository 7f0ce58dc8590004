"""What can be reviewed: runs whole and cut short, builds inside and outside of a run, recipes;
wherever they lie."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mill import tokmill
from reviews.reviewed import copied, flip_byte, mill, write_recipe
from tokmill import build, review
from tokmill import run as run_recipe
from tokmill.cli import main
from tokmill.errors import InputError, RecipeError, StorageError
from written import MANIFEST, load_manifest


def spoil(corpus: dict[str, list[dict[str, Any]]], recipe: dict[str, Any]) -> None:
    """Several things at once, of each severity."""
    for record in corpus["math"]:
        record["text"] = f"Question: {record['text']}"
    for record in corpus["prose"][:5]:
        record["license"] = None
    recipe["sources"][0]["fields"] = {**recipe["sources"][0]["fields"], "meta": []}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill(tmp_path_factory.mktemp("several"), spoil)


def checks_of(found: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in found.findings]


SEVERAL = [("high", "constant_prefix"), ("medium", "license_missing"), ("low", "subsource_labels")]


def test_findings_come_by_severity(run: Path) -> None:
    assert checks_of(review(run)) == SEVERAL


def test_a_copy_that_cannot_be_written_gives_the_same_review(run: Path, tmp_path: Path) -> None:
    elsewhere = copied(run, tmp_path / "elsewhere" / "under another name")
    for path in [elsewhere, *elsewhere.rglob("*")]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    before = sorted((str(p), p.stat().st_mtime_ns) for p in elsewhere.rglob("*"))
    try:
        assert review(elsewhere).as_json() == review(run).as_json()
        assert sorted((str(p), p.stat().st_mtime_ns) for p in elsewhere.rglob("*")) == before
    finally:
        for path in [elsewhere, *elsewhere.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_no_path_of_this_machine_is_in_a_review(run: Path) -> None:
    assert str(run.parent) not in json.dumps(review(run).as_json())


@pytest.mark.parametrize(
    ("missing", "still_made"),
    [
        (("build/rows", "build/mega"), {"exact_overlap", "constant_prefix", "drift", "source_repeats"}),
        (
            ("build", "mixture", "tokens", "tokenizer"),
            {"exact_overlap", "near_overlap", "constant_prefix", "held_out"},
        ),
        (("build", "mixture", "tokens", "tokenizer", "split", "dedup"), {"license_missing", "head_sampling"}),
    ],
)
def test_a_run_that_was_cut_short_is_reviewed_as_far_as_it_got(
    run: Path, tmp_path: Path, missing: tuple[str, ...], still_made: set[str]
) -> None:
    cut = copied(run, tmp_path / "cut")
    (cut / MANIFEST).unlink()
    for step in missing:
        shutil.rmtree(cut / step)
    (cut / "split").mkdir(exist_ok=True)
    found = review(cut)
    assert still_made <= set(found.checks_made)
    assert "missing_eos" in found.checks_not_made
    told = {assumption.about for assumption in found.assumptions}
    assert set(found.checks_not_made) <= told, "what is not measured is said"
    assert ("medium", "license_missing") in checks_of(found)
    assert not any(check == "counts_and_hashes" for _, check in checks_of(found)), "unfinished is not damaged"


def test_a_damaged_table_is_a_finding_and_what_needs_it_is_not_measured(run: Path, tmp_path: Path) -> None:
    damaged = copied(run, tmp_path / "damaged")
    (table,) = (damaged / "clean" / "prose").glob("marks-*.parquet")
    table.write_bytes(table.read_bytes()[:-40])
    found = review(damaged)
    assert ("high", "counts_and_hashes") in checks_of(found)
    assert "exact_overlap" in found.checks_not_made
    (said,) = [one.says for one in found.assumptions if one.about == "exact_overlap"]
    assert "clean/prose/marks" in said
    assert str(tmp_path) not in said


def test_hashes_are_not_compared_when_it_is_not_asked_for(run: Path, tmp_path: Path) -> None:
    damaged = copied(run, tmp_path / "damaged")
    flip_byte(damaged / "ATTRIBUTION.md")
    found = review(damaged, no_verify=True)
    assert checks_of(found) == SEVERAL
    assert found.checks_not_made == ("counts_and_hashes",)


# --- builds ---


def test_a_build_within_a_run_is_reviewed_with_its_run(run: Path) -> None:
    found = review(run / "build" / "rows")
    assert found.kind == "build"
    assert checks_of(found) == SEVERAL
    assert "mega" not in json.dumps(found.as_json()["questions"])


@pytest.fixture(scope="module")
def published(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("published")
    texts = [json.dumps({"id": f"d{n}", "text": f"{'word ' * 40}{n}"}) for n in range(200)]
    (directory / "a.jsonl").write_text("\n".join(texts))
    (directory / "mixture.yaml").write_text("datasets: [{name: a, files: a.jsonl, weight: 1}]\n")
    out = directory / "out"
    build(
        "memmap",
        manifest=directory / "mixture.yaml",
        out=out,
        tokenizer=run / "tokenizer" / "tokenizer.json",
        eos="<|endoftext|>",
        valid_fraction="0.1",
        length=32,
        workers=1,
    )
    return out


def test_a_published_build_is_reviewed_from_its_rows_and_its_manifest(published: Path) -> None:
    found = review(published)
    assert found.kind == "build"
    assert checks_of(found) == [("medium", "license_missing")]
    assert {"held_out", "tail_drop", "padding", "truncation", "missing_eos", "split_after_packing"} <= set(
        found.checks_made
    )
    assert {"drift", "giant_document", "counts_and_hashes"} <= set(found.checks_made)
    assert {"exact_overlap", "constant_prefix"} <= set(found.checks_not_made)


def test_a_damaged_published_build_is_found_out(published: Path, tmp_path: Path) -> None:
    damaged = copied(published, tmp_path / "damaged")
    flip_byte(damaged / "train" / "input_ids.mmap")
    assert ("high", "counts_and_hashes") in checks_of(review(damaged))


# --- recipes ---


def recipe(**changes: Any) -> dict[str, Any]:
    source = {"name": "web", "files": "*.jsonl", "license": "MIT", "fields": {"meta": ["url"]}}
    return {
        "name": "plan",
        "sources": [{**source, **changes.pop("source", {})}],
        "language": {"method": "detect"},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"source": {"license": None}}, [("medium", "license_missing")]),
        ({"license": {"allow": ["Apache-2.0"]}}, [("high", "license_outside_policy")]),
        ({"source": {"limit": {"docs": 5}}}, [("medium", "head_sampling")]),
        ({"source": {"sample": {"method": "head", "k": 5}}}, [("medium", "head_sampling")]),
        ({"source": {"sample": {"method": "reservoir", "k": 5}}}, []),
        ({"source": {"fields": {}}}, [("low", "subsource_labels")]),
        ({"split": {"valid_fraction": 0}}, [("high", "held_out")]),
        ({"split": {"valid_fraction": "0.009"}}, [("medium", "held_out")]),
        ({"split": {"valid_fraction": "0.2"}}, []),
        ({"split": {"valid_fraction": "0.2", "test_fraction": "0.01"}}, [("medium", "held_out")]),
        ({"split": {"method": "formula"}}, []),
        ({"language": None}, [("low", "language_mixture")]),
        ({"source": {"template": "Question: {q}"}}, [("high", "constant_prefix")]),
        ({"source": {"template": "Q: {q} <|im_end|>"}}, [("medium", "control_tokens")]),
        ({"tokenizer": {"path": "t.json", "eos": "</s>"}}, [("low", "unpinned_revision")]),
    ],
)
def test_what_a_recipe_alone_says(tmp_path: Path, changes: dict[str, Any], expected: list[Any]) -> None:
    asked = recipe(**changes)
    asked = {key: value for key, value in asked.items() if value is not None}
    asked["sources"] = [{k: v for k, v in source.items() if v is not None} for source in asked["sources"]]
    found = review(write_recipe(tmp_path, asked))
    assert checks_of(found) == expected
    assert {"exact_overlap", "missing_eos", "counts_and_hashes"} <= set(found.checks_not_made)


def test_remote_code_is_found_wherever_it_is_asked_for_and_other_mistakes_are_still_mistakes(
    tmp_path: Path,
) -> None:
    text = "name: plan\nsources:\n  - {name: web, license: MIT, files: a.jsonl, trust_remote_code: yes}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    assert ("high", "remote_code") in checks_of(review(tmp_path / "recipe.yaml"))
    (tmp_path / "recipe.yaml").write_text(text.replace("files:", "fils:"))
    with pytest.raises(RecipeError, match="fils"):
        review(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(text.replace("a.jsonl", "&a a.jsonl") + "seed: *a\n")
    with pytest.raises(RecipeError, match="alias"):
        review(tmp_path / "recipe.yaml")


# --- what cannot be reviewed ---


def test_a_share_that_was_asked_for_is_no_finding_where_the_draw_differs_a_little(tmp_path: Path) -> None:
    """Of 2,000 documents 19 are held out: 0.95 %, where 1 % was asked for."""
    lines = (json.dumps({"id": str(n), "text": f"line {n}"}) + "\n" for n in range(2000))
    (tmp_path / "lines.jsonl").write_text("".join(lines))
    recipe = {
        "name": "lines",
        "sources": [{"name": "lines", "files": "lines.jsonl"}],
        "split": {"valid_fraction": "0.01"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = run_recipe(tmp_path / "recipe.yaml", workers=1).out
    assert load_manifest(out / "split").counts["valid"] == 19
    assert [one.says for one in review(out).findings if one.check == "held_out"] == []


def test_what_is_no_run_build_or_recipe_is_refused_with_a_hint(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        review(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is the artifact of the step split"):
        review(run / "split")
    with pytest.raises(StorageError, match="not the directory of a run"):
        review(tmp_path)


# --- the command ---


def test_the_exit_status_says_whether_there_is_such_a_finding(run: Path, tmp_path: Path) -> None:
    def status(target: Path, *options: str) -> int:
        return CliRunner().invoke(main, ["review", str(target), "--no-verify", *options]).exit_code

    assert status(run) == 0
    assert [status(run, "--fail-on", severity) for severity in ("high", "medium", "low")] == [1, 1, 1]
    low = write_recipe(tmp_path, recipe(source={"fields": {}}))
    assert [status(low, "--fail-on", severity) for severity in ("high", "medium", "low")] == [0, 0, 1]
    assert status(low.with_name("nowhere")) == 2


def test_the_command_writes_any_format_to_a_file_and_fails_only_when_asked(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "review.json"
    found = CliRunner().invoke(main, ["review", str(run), "--format", "json", "--out", str(target)])
    assert found.exit_code == 0, found.output
    told = json.loads(target.read_text())
    assert told["counts"] == {"high": 1, "medium": 1, "low": 1}
    assert [finding["check"] for finding in told["findings"]] == [check for _, check in SEVERAL]
    assert [path.name for path in tmp_path.iterdir()] == ["review.json"]
    again = tokmill("review", run, "--json", "--fail-on", "high")
    assert again.returncode == 1
    assert json.loads(again.stdout) == told
