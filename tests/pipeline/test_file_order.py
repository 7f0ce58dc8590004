"""Files, earlier corpora and benchmarks in another order: what is made again is what a fresh run makes."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill
from mill import digest_of
from mill import tokmill as command


def sentence(number: int) -> str:
    return " ".join(f"word{(number * 7919 + at * at) % 997}" for at in range(40))


def write(path: Path, *numbers: int) -> str:
    lines = [json.dumps({"id": f"{path.stem}{n}", "text": sentence(n)}) for n in numbers]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path.name


def recipe(files: list[str], **sections: Any) -> dict[str, Any]:
    return {
        "name": "ordered",
        "sources": [{"name": "notes", "files": files, "fields": {"id": "id"}}],
        "split": {"valid_fraction": 0.1},
        "tokenizer": {"train": {"vocab_size": 300}, "eos": "<eos>"},
        "pack": {"length": 16},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }


@pytest.fixture
def recipes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The same twice, but for an order."""
    monkeypatch.chdir(tmp_path)
    own = write(tmp_path / "own.jsonl", *range(20))
    if request.param == "files":
        names = [write(tmp_path / "b.jsonl", *range(15)), write(tmp_path / "a.jsonl", *range(10, 30))]
        return [recipe(names), recipe(names[::-1])]
    if request.param == "benchmarks":
        names = [write(tmp_path / "b.jsonl", 3), write(tmp_path / "a.jsonl", 3)]
        return [
            recipe([own], dedup={"against": {"files": order, "ngram": 13, "fields": ["text"]}})
            for order in (names, names[::-1])
        ]
    names = []
    for name, other in (("later", 100), ("earlier", 200)):
        lines = write(tmp_path / f"{name}.jsonl", 3, 4, *range(other, other + 12))
        tokmill.run(recipe([lines], name=name), tmp_path / name, workers=1)
        names.append(f"./{name}")
    return [recipe([own], dedup={"reference": order}) for order in (names, names[::-1])]


def drops(run: Path) -> list[tuple[Any, ...]]:
    return sorted(
        (row["doc_id"], row["reason"], row["detail"])
        for path in run.glob("dedup/ledger-*.parquet")
        for row in pq.read_table(path).to_pylist()
        if row["verdict"] == "drop"
    )


@pytest.mark.parametrize("recipes", ["files", "benchmarks", "references"], indirect=True)
def test_another_order_gives_what_a_fresh_run_gives(recipes: list[Any], tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    tokmill.run(recipes[0], out, workers=1)
    before = drops(out)
    again = tokmill.run(recipes[1], out, workers=1)
    tokmill.run(recipes[1], fresh, workers=1)
    assert drops(out) == drops(fresh) != before
    assert digest_of(out) == digest_of(fresh)
    assert again.ran
    assert not tokmill.run(recipes[1], out, workers=1).ran


def test_of_benchmarks_of_one_name_each_is_known_by_its_own_bytes(tmp_path: Path) -> None:
    """`arc/test.jsonl`, `hellaswag/test.jsonl`: an edit of either is seen, and drops what it names."""
    shown = {"arc": "test.jsonl", "hellaswag": "hellaswag/test.jsonl"}
    for name in ("arc", "hellaswag"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "test.jsonl", 100)
    write(tmp_path / "own.jsonl", *range(20))
    against = {"files": ["arc/test.jsonl", "hellaswag/test.jsonl"], "ngram": 13, "fields": ["text"]}
    written = recipe(["own.jsonl"], dedup={"against": against}, tokenizer=None, builds=[])
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(written))
    out = tmp_path / "out"
    assert tokmill.run(path, out, workers=1).ran
    assert drops(out) == []
    for number, name in ((3, "arc"), (4, "hellaswag")):
        write(tmp_path / name / "test.jsonl", number)
        tokmill.run(path, out, workers=1)
        assert [(doc, detail.split()[0]) for doc, _, detail in drops(out)] == [
            (f"own{n}", f"{shown[where]}:1") for n, where in ((3, "arc"), (4, "hellaswag"))[: number - 2]
        ]
        fresh = tmp_path / f"fresh{number}"  # in a process that has read nothing before
        assert command("run", path, "--out", fresh).returncode == 0
        assert digest_of(out) == digest_of(fresh)
    inputs = json.loads((out / "dedup" / "manifest.json").read_text())["inputs"]
    assert {label: digest for label, digest in inputs.items() if label.startswith("file against")} == {
        f"file against {shown[name]}": sha256((tmp_path / name / "test.jsonl").read_bytes()).hexdigest()
        for name in ("arc", "hellaswag")
    }
    tokmill.forget(out, doc_id="own7", base=tmp_path, workers=1)
    assert tokmill.verify(out).problems == []
