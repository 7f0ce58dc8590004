"""A directory as a source: a document per file, and a row for everything that is left out."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill
from sources.ingested import Ingested, ingest_source
from tokmill.errors import EmptyGlob, InputChanged, InputError, RecipeError, TokmillError
from tokmill.storage import tree
from written import load_manifest


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def read(root: Path, *, workers: int = 1, out: Path | None = None, **section: Any) -> Ingested:
    source = {key: section.pop(key) for key in ("max_record_bytes", "limit") if key in section}
    return ingest_source(out, workers, directory={"path": str(root), **section}, **source)


def texts(found: Ingested) -> dict[str, str]:
    return {row["doc_id"]: row["text"] for row in found.documents}


def reasons(found: Ingested) -> dict[str, str]:
    return {row["file"]: row["reason"] for row in found.ledger}


def test_every_file_of_the_suffixes_is_a_document_with_its_path_as_id(tmp_path: Path) -> None:
    root = write(
        tmp_path / "repo",
        {
            "b.py": "x = 1\n",
            "a/é.md": "# Über\n",
            "a/b/c.txt": "deep",
            "a.rst": "r",
            "t.tex": "t",
            "z.c": "int x;",
            ".hidden/h.py": "",
            "a-b.txt": "sorted by path",
        },
    )
    found = read(root)
    assert [row["doc_id"] for row in found.documents] == sorted(
        [".hidden/h.py", "a-b.txt", "a.rst", "a/b/c.txt", "a/é.md", "b.py", "t.tex"]
    )
    assert texts(found)["b.py"] == "x = 1\n"
    assert texts(found)["a/é.md"] == "# Über\n"
    metas = {row["doc_id"]: json.loads(row["meta"]) for row in found.documents}
    assert metas["b.py"] == {"path": "b.py", "language": "Python"}
    assert metas["a/é.md"] == {"path": "a/é.md", "language": "Markdown"}
    assert metas["a/b/c.txt"] == {"path": "a/b/c.txt"}
    assert found.ledger == []


def test_other_suffixes_can_be_asked_for(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "p", "b.c": "c", "c.h": "h", "d.d.ts": "t", "e.ts": "u"})
    assert list(texts(read(root, suffixes=[".c", ".h", ".d.ts"]))) == ["b.c", "c.h", "d.d.ts"]


def test_what_gitignore_names_is_left_out_and_counted(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            ".gitignore": "*.txt\n!keep.txt\n/build/\n",
            "a.txt": "", "keep.txt": "k", "build/x.py": "", "src/build/y.py": "y", "src/a.txt": "",
            "src/.gitignore": "!a.txt\ny2.py\n", "src/y2.py": "", "y2.py": "2",
            ".git/config.txt": "", "sub/.git/HEAD.md": "", "sub/s.py": "s",
        },
    )  # fmt: skip
    found = read(root)
    assert set(texts(found)) == {"keep.txt", "src/build/y.py", "src/a.txt", "y2.py", "sub/s.py"}
    assert reasons(found) == {"a.txt": "ignored", "build/": "ignored", "src/y2.py": "ignored"}
    assert found.counts["in"] == 8
    every = read(root, gitignore=False)
    assert len(every.documents) == 8
    assert every.ledger == []


def test_links_pipes_and_binary_files_are_left_out_with_their_reason(tmp_path: Path) -> None:
    root = write(tmp_path / "repo", {"a.txt": "a", "nul.txt": b"a\0b", "late.txt": b"x" * 8192 + b"\0"})
    write(tmp_path / "outside", {"secret.txt": "s"})
    (root / "out.txt").symlink_to(tmp_path / "outside/secret.txt")
    (root / "folder").symlink_to(tmp_path / "outside", target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "self.md").symlink_to(root / "self.md")
    (root / "nowhere.py").symlink_to(root / "gone.py")
    os.mkfifo(root / "pipe.txt")
    found = read(root)
    assert set(texts(found)) == {"a.txt", "late.txt"}
    links = dict.fromkeys(["out.txt", "folder", "loop", "self.md", "nowhere.py"], "link")
    assert reasons(found) == {**links, "nul.txt": "binary", "pipe.txt": "special_file"}


def test_encodings_are_told_by_their_mark_and_any_other_is_quarantined(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "bom.txt": b"\xef\xbb\xbfeight",
            "le.txt": "\ufeffété 😀".encode("utf-16-le"),
            "be.txt": "\ufeffété".encode("utf-16-be"),
            "odd.txt": b"\xff\xfea",
            "wide.txt": "\ufeffabc".encode("utf-32-le"),
            "latin.txt": "café".encode("latin-1"),
            "cut.py": "é".encode()[:1],
            "empty.txt": b"",
        },
    )
    found = read(root)
    assert texts(found) == {"bom.txt": "eight", "le.txt": "été 😀", "be.txt": "été", "empty.txt": ""}
    assert reasons(found) == {
        "odd.txt": "invalid_utf16",
        "wide.txt": "binary",
        "latin.txt": "invalid_utf8",
        "cut.py": "invalid_utf8",
    }


def test_a_page_is_its_text(tmp_path: Path) -> None:
    page = "<head><style>p{}</style></head><body><h1>T</h1><p>a &lt; b</p><script>x</script></body>"
    found = read(write(tmp_path, {"a.html": page, "b.py": "'<p>'", "c.html": "", "d.html": "<p>é"}))
    assert texts(found) == {"a.html": "T\n\na < b", "b.py": "'<p>'", "c.html": "", "d.html": "é"}


def test_a_suffix_in_capitals_is_the_same_kind_of_file(tmp_path: Path) -> None:
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]})
    root = write(tmp_path, {"a.HTM": "<p>a &lt; b", "b.Html": "<b>c</b>", "c.IPYNB": notebook})
    found = read(root, suffixes=[".HTM", ".Html", ".IPYNB"])
    assert texts(found) == {"a.HTM": "a < b", "b.Html": "c", "c.IPYNB": "x = 1"}


def cell(kind: str, source: Any, **more: Any) -> dict[str, Any]:
    return {"cell_type": kind, "source": source, "metadata": {}, **more}


def test_a_notebook_is_the_source_of_its_cells(tmp_path: Path) -> None:
    printed = [{"output_type": "stream", "text": ["42\n"]}]
    new = {
        "cells": [
            cell("markdown", ["# Title\n", "words"]),
            cell("code", "print(42)", outputs=printed),
            cell("raw", "raw"),
            cell("code", []),
            cell("markdown", "end"),
        ],
        "nbformat": 4,
    }
    code = {"cell_type": "code", "input": ["x = 1\n", "x"], "outputs": printed}
    old = {"worksheets": [{"cells": [code, cell("markdown", "m")]}], "nbformat": 3}
    found = read(write(tmp_path, {"new.ipynb": json.dumps(new), "old.ipynb": json.dumps(old), "a.py": "p"}))
    assert texts(found) == {
        "new.ipynb": "# Title\nwords\n\nprint(42)\n\nend",
        "old.ipynb": "x = 1\nx\n\nm",
        "a.py": "p",
    }


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b'{"cells": 1}', b'{"cells": [1]}', b'{"cells": [{"source": "x"}]}',
        b'{"cells": [{"cell_type": "code", "source": {"a": 1}}]}',
        b'{"cells": [{"cell_type": "code", "source": "\\ud800"}]}',
        b'{"cells":' * 100_000, b'{"cells": [{"cell_type": "code", "x":' + b"[" * 100_000,
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_notebook_is_quarantined(tmp_path: Path, content: bytes) -> None:
    found = read(write(tmp_path, {"a.ipynb": content, "b.ipynb": json.dumps({"cells": []}), "c.txt": "c"}))
    assert texts(found) == {"b.ipynb": "", "c.txt": "c"}
    assert reasons(found) == {"a.ipynb": "bad_notebook"}
    assert found.ledger[0]["detail"]


def test_a_file_above_max_record_bytes_is_quarantined_and_not_read(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.txt": "x" * 1025, "b.txt": "y" * 1024})
    with (root / "huge.txt").open("wb") as sparse:
        sparse.truncate(1 << 40)
    found = read(root, max_record_bytes=1024)
    assert list(texts(found)) == ["b.txt"]
    assert reasons(found) == {"a.txt": "too_large", "huge.txt": "too_large"}
    assert "1,025 bytes in one file" in found.ledger[0]["detail"]


def test_a_name_that_is_no_utf8_is_quarantined(tmp_path: Path) -> None:
    root = write(tmp_path / "repo", {"a.txt": "a"})
    (Path(os.fsdecode(os.fsencode(root) + b"/\xff.txt"))).write_text("x")
    found = read(root)
    assert list(texts(found)) == ["a.txt"]
    assert reasons(found) == {"\\xff.txt": "bad_name"}


def many(root: Path, count: int) -> Path:
    return write(root, {f"d{n % 7}/{n:05d}.py": f"x = {n}\n" * (n % 9 + 1) for n in range(count)})


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_PART_FILES", 50)
    root = many(tmp_path / "repo", 400)
    one, three = read(root), read(root, workers=3)
    assert len(one.inputs) == 8
    assert one.corpus_digest == three.corpus_digest
    assert one.documents == three.documents
    assert [row["doc_id"] for row in one.documents] == sorted(row["doc_id"] for row in one.documents)


def test_thousands_of_files_are_few_inputs(tmp_path: Path) -> None:
    found = read(many(tmp_path, 5000))
    assert len(found.documents) == 5000
    assert len(found.inputs) == 2
    names = sorted(row["doc_id"] for row in found.documents)
    assert list(found.inputs) == [f"{names[0]} to {names[4095]}", f"{names[4096]} to {names[-1]}"]


def test_the_same_files_on_demand_and_later_are_the_same_input(tmp_path: Path) -> None:
    first = read(many(tmp_path / "one", 20))
    second = read(many(tmp_path / "two", 20))
    assert first.inputs == second.inputs
    (tmp_path / "two/d0/00000.py").rename(tmp_path / "two/d0/0.py")
    assert read(tmp_path / "two").corpus_digest != first.corpus_digest


def test_a_second_run_finds_it_up_to_date_until_a_file_changes(tmp_path: Path) -> None:
    root, out = many(tmp_path / "repo", 20), tmp_path / "out"
    recipe = {"name": "r", "sources": [{"name": "s", "directory": {"path": str(root)}}]}
    assert tokmill.run(recipe, out, workers=1, until="ingest").ran == ["ingest/s"]
    assert tokmill.run(recipe, out, workers=1, until="ingest").ran == []
    (root / "d0/00000.py").touch()
    assert tokmill.run(recipe, out, workers=1, until="ingest").ran == []
    (root / "d0/00000.py").write_text("other")
    assert tokmill.run(recipe, out, workers=1, until="ingest").ran == ["ingest/s"]
    (root / ".gitignore").write_text("00001.py\n")
    assert tokmill.run(recipe, out, workers=1, until="ingest").ran == ["ingest/s"]
    assert load_manifest(out / "ingest/s").counts["dropped"] == {"ignored": 1}


def test_a_limit_takes_the_first_files(tmp_path: Path) -> None:
    found = read(many(tmp_path, 50), limit={"docs": 3})
    assert [row["doc_id"] for row in found.documents] == ["d0/00000.py", "d0/00007.py", "d0/00014.py"]


def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.txt": "abc", "b.txt": "b"})
    (part,) = tree.list_tree(
        root, [".txt"], max_record_bytes=1 << 20, uses_gitignore=True, is_side=lambda _: False
    )
    assert isinstance(part.path, tree.FileList)
    with part.path.open() as stream:
        spelled = stream.read()
    assert spelled == b"a.txt\x003\nabcb.txt\x001\nb"
    part.path.check()
    assert part.path.load() == [b"abc", b"b"]
    (root / "a.txt").write_text("abd")
    os.utime(root / "a.txt", ns=(1, 1))
    with pytest.raises(InputChanged, match=r"a\.txt: the file changed while its directory was being read"):
        part.path.check()
    for change in (lambda: (root / "a.txt").write_text("longer"), (root / "a.txt").unlink):
        change()
        for act in (part.path.load, part.path.check):
            with pytest.raises(InputChanged, match=r"a\.txt: the file changed while its"):
                act()


@pytest.mark.parametrize(
    ("section", "kind", "what"),
    [
        ({"path": "nowhere"}, InputError, "nowhere: there is no such directory"),
        ({"path": "repo/a.txt"}, InputError, "is a file, and `directory` reads the files of a directory"),
        ({"path": "repo", "suffixes": [".c"]}, EmptyGlob, "no file below it ends in .c"),
        ({"path": "only"}, EmptyGlob, r"no file below it is read: all 1 are left out \(ignored\)"),
        ({"path": "large"}, InputError, "is more than the 1,048,576 that a `.gitignore` may have"),
        ({"path": "repo", "suffixes": []}, RecipeError, "suffixes"),
        ({"path": "repo", "suffixes": ["py"]}, RecipeError, "suffixes"),
        ({"path": "s3://bucket/a"}, TokmillError, "`directory` works on a directory of this machine"),
    ],
)
def test_a_directory_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: Any, kind: type[TokmillError], what: str
) -> None:
    write(tmp_path, {"repo/a.txt": "a", "only/.gitignore": "*", "only/a.txt": ""})
    write(tmp_path, {"large/a.txt": "", "large/.gitignore": b"#" * (1 << 20) + b"#"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=what):
        tokmill.run({"name": "r", "sources": [{"name": "s", "directory": section}]}, tmp_path / "out")


def test_a_source_has_a_directory_or_files(tmp_path: Path) -> None:
    source = {"name": "s", "files": "a.txt", "directory": {"path": "repo"}}
    with pytest.raises(RecipeError, match="needs either `files`, `hub`, `corpus` or `directory`"):
        tokmill.load_recipe(json.dumps({"name": "r", "sources": [source]}) + "\n")


def test_counts_say_what_was_left_out(tmp_path: Path) -> None:
    found = read(
        write(tmp_path, {".gitignore": "i*\n", "i1.py": "", "i2.py": "", "b.py": "b", "c.py": b"\0"})
    )
    assert found.counts["dropped"] == {"ignored": 2, "binary": 1}
    assert Counter(row["verdict"] for row in found.ledger) == {"drop": 3}
