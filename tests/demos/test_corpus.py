from __future__ import annotations

import io
import json
import string
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

import tokmill
from tokmill.demos.corpus import RECIPE, read_modules, write_corpus, write_recipe
from tokmill.errors import InputError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    write_corpus(directory / "corpus")
    write_recipe(directory)
    return directory


def load_records(path: Path) -> list[dict[str, Any]]:
    """Each format by a reader that is not ours."""
    if path.name.endswith(".jsonl.zst"):
        raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
        return [json.loads(line) for line in raw.split(b"\n")[:-1]]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return [{"text": text} for text in path.read_text(encoding="utf-8").split("\n\n")]


def test_four_files_hold_what_they_promise(demo: Path) -> None:
    code, topics, problems, paragraphs = (
        load_records(demo / "corpus" / name)
        for name in ("code.jsonl.zst", "topics.parquet", "problems.jsonl", "paragraphs.txt")
    )
    assert len(code) > 300
    assert all(set(module) == {"path", "content", "license"} for module in code)
    assert len(topics) > 50
    assert [set(problem) for problem in problems] == [{"id", "question", "answer"}] * 2_000
    assert len(paragraphs) >= 60


def test_modules_are_the_standard_library_in_order_and_unchanged(demo: Path) -> None:
    modules = load_records(demo / "corpus" / "code.jsonl.zst")
    paths = [module["path"] for module in modules]
    assert paths == sorted(paths)
    assert "json/decoder.py" in paths
    assert not {"test", "tests", "idlelib", "site-packages", "pydoc_data"} & {
        part for path in paths for part in path.split("/")[:-1]
    }
    library = Path(sysconfig.get_paths()["stdlib"])
    assert all(module["content"].encode() == (library / module["path"]).read_bytes() for module in modules)


def test_writing_twice_gives_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    for path in write_corpus(tmp_path):
        assert path.read_bytes() == (demo / "corpus" / path.name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (demo / "corpus").iterdir()
    )


def test_the_recipe_names_files_and_fields_that_exist(demo: Path) -> None:
    recipe = yaml.safe_load((demo / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe == yaml.safe_load(RECIPE)
    for source in recipe["sources"]:
        record = load_records(demo / source["files"])[0]
        used = set(source.get("fields", {}).values())
        used |= {name for _, name, _, _ in string.Formatter().parse(source.get("template", "")) if name}
        assert used <= set(record), source["name"]
        assert "template" in source or source.get("fields", {}).get("text", "text") in record


def test_folders_that_are_not_the_library_are_left_out(tmp_path: Path) -> None:
    for name in [
        "b.py",
        "a/z.py",
        "a/__init__.py",
        "a-b.py",
        "a/tests/t.py",
        "test/t.py",
        "idlelib/i.py",
        "lib2to3/l.py",
        "site-packages/other/o.py",
        "dist-packages/d.py",
        "__pycache__/c.py",
        "turtledemo/t.py",
        "ensurepip/_bundled/p.py",
        "pydoc_data/topics.py",
        "config-3.11-x86_64-linux-gnu/python-config.py",
        "_sysconfigdata__linux_x86_64-linux-gnu.py",
        "sitecustomize.py",
        "notes.txt",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    assert [module["path"] for module in read_modules(tmp_path)] == [
        "a-b.py",
        "a/__init__.py",
        "a/z.py",
        "b.py",
    ]


def test_a_module_that_is_not_utf8_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    (tmp_path / "utf.py").write_bytes("name = 'é'\r\n".encode())
    assert list(read_modules(tmp_path)) == [
        {"path": "utf.py", "content": "name = 'é'\r\n", "license": "PSF-2.0"}
    ]


def test_a_python_without_sources_is_told_so_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, out = tmp_path / "empty", tmp_path / "out"
    empty.mkdir()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(empty)})
    with pytest.raises(InputError, match="no sources of its standard library"):
        tokmill.demo(out)
    assert [path for path in out.rglob("*") if not path.is_dir()] == []


def test_a_python_without_topics_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError, match=r"pydoc_data\.topics(.|\n)*next: install"):
        tokmill.demo(tmp_path)
