"""Parse errors by tree-sitter, as a recipe asks for them."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill
from tokmill.artifacts import packages
from tokmill.errors import MissingExtra

GOOD = {
    "python": "def f(x):\n    return x + 1\n",
    "javascript": "const f = (x) => x + 1;\n",
    "typescript": "const f = (x: number): number => x + 1;\n",
    "tsx": "const f = () => <a>b</a>;\n",
    "java": "class A { int f(int x) { return x + 1; } }\n",
    "c": "int f(int x) { return x + 1; }\n",
    "c++": "template <class T> T f(T x) { return x + 1; }\n",
    "c#": "class A { int F(int x) => x + 1; }\n",
    "go": "package a\n\nfunc f(x int) int { return x + 1 }\n",
    "rust": "fn f(x: i32) -> i32 { x + 1 }\n",
    "ruby": "def f(x)\n  x + 1\nend\n",
    "php": "<?php function f($x) { return $x + 1; }\n",
    "bash": 'f() { echo "$1"; }\n',
}
BROKEN = ") ) } ] ( { [ ) ) ; : } ] ) (\n" * 4


def shares(directory: Path, records: list[dict[str, Any]]) -> dict[str, float]:
    """As a run keeps them, by id."""
    (directory / "code.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = {
        "name": "parsed",
        "sources": [
            {
                "name": "code",
                "domain": "code",
                "files": str(directory / "code.jsonl"),
                "fields": {"id": "id", "meta": ["lang", "path"]},
            }
        ],
        "filters": [{"measure": "parse_error_share", "max": 0.2, "reason": "does_not_parse"}],
        "dedup": {"exact": False},
    }
    out = tokmill.run(recipe, directory / "out", workers=1, until="clean").out
    (path,) = (out / "clean/code").glob("ledger-*")
    (measured,) = (out / "clean/code").glob("measures-*")
    values = pq.read_table(measured).column("hook.parse_error_share").to_pylist()
    dropped = {row["doc_id"] for row in pq.read_table(path).to_pylist() if row["verdict"] == "drop"}
    by_id = dict(zip([record["id"] for record in records], values, strict=True))
    assert dropped == {doc_id for doc_id, value in by_id.items() if value > 0.2}
    return by_id


def test_a_file_is_parsed_by_the_grammar_of_its_language(tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter")
    records = [
        {"id": f"{lang}-{kind}", "text": text, "lang": lang, "path": None}
        for lang, good in GOOD.items()
        for kind, text in (("good", good), ("broken", "<?php " * (lang == "php") + BROKEN))
    ]
    found = shares(tmp_path, records)
    assert {doc_id for doc_id, share in found.items() if share == 0} == {f"{lang}-good" for lang in GOOD}
    assert all(share > 0.2 for doc_id, share in found.items() if doc_id.endswith("broken")), found


def test_the_language_is_that_of_meta_or_of_the_name_and_what_has_none_is_not_parsed(tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter")
    records = [
        {"id": "a", "text": BROKEN, "lang": "Python", "path": "x.unknown"},
        {"id": "b", "text": BROKEN, "lang": None, "path": "src/b.rs"},
        {"id": "repo/c.GO", "text": BROKEN, "lang": None, "path": None},
        {"id": "d", "text": BROKEN, "lang": None, "path": None},
        {"id": "e", "text": BROKEN, "lang": "cobol", "path": "e.cob"},
        {"id": "f.py", "text": BROKEN * 10_000, "lang": None, "path": None},
    ]
    found = shares(tmp_path, records)
    assert {doc_id for doc_id, share in found.items() if share} == {"a", "b", "repo/c.GO"}


def test_without_the_extra_the_recipe_is_refused_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    packages.installed_digest.cache_clear()
    with pytest.raises(MissingExtra) as caught:
        shares(tmp_path, [{"id": "a", "text": "x", "lang": "python", "path": None}])
    assert caught.value.what == "parsing source files needs the package tree-sitter"
    assert caught.value.next.startswith("pip install '.[code]' in the clone")
    assert not (tmp_path / "out/ingest").exists()
