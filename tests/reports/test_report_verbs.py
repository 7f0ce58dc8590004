"""`tokmill report DIR` over what normalize, filter, dedup and pack have written:
recounted from their files."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from cleaned import prose
from mill import small_corpus, tokmill
from written import ZstdFile, read_row_index

TEXTS = {
    "web": [prose(n) for n in range(40)] + [prose(3), "short"],
    "math": [f"{prose(100 + n)} Sum {n}." for n in range(20)],
}


def load_lines(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


def done(*arguments: str | Path) -> None:
    found = tokmill(*arguments)
    assert found.returncode == 0, found.stderr + found.stdout


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """raw, then one directory for each verb."""
    root = tmp_path_factory.mktemp("verbs")
    work = root / "work"
    (root / "raw").mkdir()
    for name, texts in TEXTS.items():
        lines = [json.dumps({"id": f"{name}-{n}", "text": text}) + "\n" for n, text in enumerate(texts)]
        (root / f"raw/{name}.jsonl").write_text("".join(lines))
        given = ("--name", name, "--domain", name)
        done("normalize", root / f"raw/{name}.jsonl", *given, "--out", work / "1-normal" / name)
        kept = work / "2-kept" / name
        done(
            "filter",
            work / f"1-normal/{name}/{name}-*.jsonl.zst",
            *given,
            "--rule",
            "chars>=20",
            "--out",
            kept,
        )
    inputs = [
        word for name in TEXTS for word in ("--input", f"{name}={work}/2-kept/{name}/{name}-*.jsonl.zst")
    ]
    done("dedup", *inputs, "--mode", "exact", "--out", work / "3-once")
    (root / "mixture.yaml").write_text(
        "datasets:\n"
        + "".join(
            f"  - {{name: {name}, domain: {name}, files: 'work/2-kept/{name}/{name}-*.jsonl.zst', weight: "
            f"0.5}}\n"
            for name in TEXTS
        )
    )
    done(
        "tokenizer", "train", "--manifest", root / "mixture.yaml", "--vocab-size", "300",
        "--model", "byte_bpe", "--out", root / "tok",
    )  # fmt: skip
    done(
        "pack", "--manifest", root / "mixture.yaml", "--tokenizer", root / "tok/tokenizer.json",
        "--length", "64", "--layout", "concat", "--out", work / "4-rows",
    )  # fmt: skip
    return work


def recounted(directory: Path) -> tuple[int, int, Counter[str], int]:
    """Documents in and kept, drops by reason, estimated tokens: from the documents and the decisions."""
    decisions = load_lines(directory / "decisions.jsonl.zst")
    documents = [
        document
        for path in sorted(directory.glob("*.jsonl.zst"))
        if path.name not in ("decisions.jsonl.zst", "passages.jsonl.zst")
        for document in load_lines(path)
    ]
    drops = Counter(item["reason"] for item in decisions if not item["keep"])
    return (
        len(decisions),
        len(documents),
        drops,
        sum(-(-len(document["text"]) // 4) for document in documents),
    )


def test_every_figure_is_that_of_the_files(work: Path) -> None:
    found = tokmill("report", work, "--json")
    assert found.returncode == 0, found.stderr
    figures = json.loads((work / "report.json").read_text())
    steps = {step["name"]: step for step in figures["steps"]}
    assert list(steps) == [
        *("1-normal/math", "1-normal/web", "2-kept/math", "2-kept/web", "3-once", "4-rows")
    ]
    for name in list(steps)[:-1]:
        step = steps[name]
        told = (step["docs_in"], step["docs"], Counter(step["drops"]), step["est_tokens"])
        assert told == recounted(work / name), name
        assert sum(own["docs"] for own in step["domains"].values()) == step["docs"]
    assert steps["2-kept/web"]["drops"] == {"too_few_chars": 1}
    assert steps["3-once"]["drops"] == {"exact_dup": 1}
    tokens: Counter[str] = Counter()
    for row in read_row_index(work / "4-rows/index.jsonl.zst"):
        for span in row.docs:
            tokens[span.source] += span.end - span.start  # of the same name
    rows = steps["4-rows"]
    assert {name: own["tokens"] for name, own in rows["domains"].items()} == dict(tokens)
    assert rows["tokens"] == sum(tokens.values()) == (work / "4-rows/input_ids.mmap").stat().st_size // 4
    assert figures["domains"]["math"]["4-rows"]["tokens"] == tokens["math"]


def test_the_page_has_the_same_figures_and_runs_nothing(work: Path) -> None:
    shown = tokmill("report", work, "--out", work.parent / "page.html")
    assert shown.returncode == 0, shown.stderr
    assert "1 exact_dup" in shown.stdout
    page = (work.parent / "page.html").read_text()
    figures = json.loads((work.parent / "page.json").read_text())
    assert "<script" not in page
    assert "default-src 'none'" in page
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    for step in figures["steps"]:
        assert step["name"] in cells
        assert f"{step['docs_in']:,}" in cells
        assert f"{step['docs']:,}" in cells
    assert (work / "4-rows/manifest.json").is_file()
    assert mill.report(work, out=work.parent / "again.html").facts == figures
    one = json.loads(tokmill("report", work / "3-once", "--json").stdout)
    assert [step["name"] for step in one["steps"]] == ["3-once"]


def test_a_run_of_a_recipe_is_reported_as_before_and_an_empty_directory_is_refused(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path / "a", tokenizer=None, builds=None)
    done("run", recipe, "--out", tmp_path / "run")
    done("report", tmp_path / "run")
    assert "flow" in json.loads((tmp_path / "run/report.json").read_text())
    (tmp_path / "empty").mkdir()
    refused = tokmill("report", tmp_path / "empty")
    assert refused.returncode == 1
    assert "is not the directory of a run" in refused.stderr
