"""`tokmill dedup`: whose copies count, and what the records that stay say of themselves."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tokmill.cli import main
from written import ZstdFile

LONG = (
    "The mill stands by the river and turns all day long, and whoever comes by may bring a sack of grain to "
    "it "
)
TEXTS = {
    "same": LONG + "before dusk.",
    "near": LONG + "before dusk today.",
    "other": "Nothing is like this one.",
}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZstdFile(path, "w") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
    return path


def load(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


def tokmill(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def deduped(out: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    result = tokmill("dedup", *arguments, "--out", out, "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    kept = load(out / "deduped.jsonl.zst")
    decisions = load(out / "decisions.jsonl.zst")
    assert Counter((row["source"], row["doc_id"]) for row in kept) == Counter(
        (row["source"], row["doc_id"]) for row in decisions if row["keep"]
    )
    return kept


@pytest.fixture
def norm(tmp_path: Path) -> Path:
    """Two sources and a copy of each text in both, in files that do not go by source."""
    records = [
        {
            "text": text,
            "source": source,
            "domain": f"{source}-domain",
            "doc_id": f"{source}-{name}",
            "license_tag": "MIT",
            "meta": {"of": source},
        }
        for name, text in TEXTS.items()
        for source in ("alpha", "beta")
    ]
    write(tmp_path / "norm/x/a.jsonl.zst", *records[:3])
    write(tmp_path / "norm/y/b.jsonl.zst", *records[3:], records[0] | {"doc_id": "alpha-again"})
    return tmp_path / "norm"


def ids(kept: list[dict[str, Any]]) -> set[str]:
    return {row["doc_id"] for row in kept}


def test_within_a_source_is_within_what_the_records_say_their_source_is(tmp_path: Path, norm: Path) -> None:
    glob = f"{norm}/**/*.jsonl.zst"
    everywhere = deduped(tmp_path / "global", "--input", glob, "--mode", "exact")
    assert ids(everywhere) == {"alpha-same", "alpha-near", "alpha-other"}
    within = deduped(tmp_path / "within", "--input", glob, "--mode", "exact", "--scope", "per-source")
    assert ids(within) == {f"{source}-{name}" for source in ("alpha", "beta") for name in TEXTS}


@pytest.mark.parametrize("mode", ["near", "both"])
def test_near_duplicates_of_another_source_stay_where_sources_are_kept_apart(
    tmp_path: Path, norm: Path, mode: str
) -> None:
    arguments = (f"{norm}/**/*.jsonl.zst", "--mode", mode, "--ngram", "3")
    everywhere = deduped(tmp_path / "global", *arguments)
    assert ids(everywhere) == {"alpha-same", "alpha-other"}
    within = deduped(tmp_path / "within", *arguments, "--scope", "per-source")
    assert ids(within) == {"alpha-same", "alpha-other", "beta-same", "beta-other"}


def test_records_keep_what_they_say_of_themselves(tmp_path: Path, norm: Path) -> None:
    kept = deduped(tmp_path / "out", "--input", f"{norm}/**/*.jsonl.zst", "--scope", "per-source")
    for row in kept:
        source = row["doc_id"].partition("-")[0]
        assert (row["source"], row["domain"], row["meta"]) == (source, f"{source}-domain", {"of": source})
        assert row["license_tag"] == "MIT"


def test_a_named_input_is_one_source_whatever_its_records_say(tmp_path: Path, norm: Path) -> None:
    kept = deduped(
        tmp_path / "out", "--input", f"web={norm}/**/*.jsonl.zst", "--mode", "exact", "--scope", "per-source"
    )
    assert ids(kept) == {"alpha-same", "alpha-near", "alpha-other"}
    assert {row["source"] for row in kept} == {"web"}
    assert {row["domain"] for row in kept} == {"alpha-domain"}


def test_a_glob_that_the_shell_expanded_is_the_same_as_one_in_quotes(tmp_path: Path, norm: Path) -> None:
    paths = sorted(norm.rglob("*.jsonl.zst"))
    assert len(paths) == 2
    ways = {
        "quoted": ["--input", f"{norm}/**/*.jsonl.zst"],
        "expanded after --input": ["--input", *paths],
        "expanded": paths,
    }
    results = {
        name: deduped(tmp_path / name, *way, "--scope", "per-source", "--mode", "exact")
        for name, way in ways.items()
    }
    assert results["quoted"] == results["expanded after --input"] == results["expanded"]
    assert len(results["quoted"]) == 6


def test_records_without_a_source_are_named_alike_however_the_glob_was_expanded(tmp_path: Path) -> None:
    for n in range(2):
        write(tmp_path / f"data/web-{n:05d}.jsonl.zst", {"text": f"text {n}"})
    quoted = deduped(tmp_path / "quoted", "--input", f"{tmp_path}/data/web-*.jsonl.zst")
    expanded = deduped(tmp_path / "expanded", *sorted((tmp_path / "data").iterdir()))
    assert quoted == expanded
    assert {row["source"] for row in quoted} == {"web"}


def test_files_that_may_belong_to_a_reference_are_refused(tmp_path: Path, norm: Path) -> None:
    first, second = sorted(norm.rglob("*.jsonl.zst"))
    refused = tokmill("dedup", "--input", first, "--reference", first, second, "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "may belong to any of several options" in refused.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--inputs", "x.jsonl.zst"], "No such option"),
        (["x.jsonl.zst", "--scop", "per-source"], "No such option"),
        (["no-such-file.jsonl.zst"], "no-such-file.jsonl.zst"),
        ([], "no files are given"),
    ],
    ids=["an option that is not there", "another", "a file that is not there", "nothing"],
)
def test_a_slip_of_the_command_line_is_told(tmp_path: Path, arguments: list[str], told: str) -> None:
    result = tokmill("dedup", *arguments, "--out", tmp_path / "out")
    assert result.exit_code in (1, 2)
    assert told in result.output
    assert not isinstance(result.exception, (KeyError, IndexError, ValueError))


@pytest.mark.parametrize("threshold", ["much", "nan", "0", "1.5"])
def test_a_curve_of_no_similarity_is_refused(threshold: str) -> None:
    refused = tokmill("dedup", "--curve", "--threshold", threshold)
    assert refused.exit_code in (1, 2)
    assert "threshold" in refused.output


def test_the_curve_is_shown_without_a_place_that_nothing_is_written_to() -> None:
    shown = tokmill("dedup", "--curve", "--threshold", "0.8", "--json")
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    for similarity, share in told["curve"]:
        assert share == pytest.approx(1 - (1 - similarity ** told["rows"]) ** told["bands"], abs=1e-6)


def test_without_a_curve_the_place_is_asked_for(norm: Path) -> None:
    refused = tokmill("dedup", str(norm))
    assert refused.exit_code == 2
    assert "Missing option '--out'" in refused.output
