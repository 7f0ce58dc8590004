"""All that a document is survives every verb: what tokmill writes, tokmill reads back, nulls included.

Files are written and read here by json and pyarrow alone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from tokmill.cli import main
from written import ZstdFile

Document = dict[str, Any]
SEVEN = ("text", "source", "domain", "doc_id", "license_tag", "created_at", "meta")

DOCUMENTS: list[Document] = [
    {
        "text": "The mill stands by the river.",
        "source": "alpha",
        "domain": "prose",
        "doc_id": "a/1",
        "license_tag": "CC-BY-4.0",
        "created_at": "2024-01-02",
        "meta": {"url": "https://example.org/é", "deep": {"list": [1, 2.5, None, True]}, 'a "quoted" key': 0},
    },
    {"text": "It turns all day.", "source": "beta", "domain": "code", "doc_id": "b/1", "meta": {}},
    {"text": "Ça tourne aussi.", "source": "beta", "domain": "web", "doc_id": "b/2", "license_tag": "MIT"},
    {"text": "At night it rests.", "source": "alpha", "domain": "prose", "doc_id": "0", "created_at": "7"},
]


def filled(document: Document) -> Document:
    return {name: document.get(name) for name in SEVEN}


def write_lines(path: Path, documents: Sequence[Document]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{key: value for key, value in row.items() if value is not None} for row in documents]
    with ZstdFile(path, "w") as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return str(path)


def write_columns(path: Path, documents: Sequence[Document]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [filled(row) for row in documents]
    metas = [None if row["meta"] is None else json.dumps(row["meta"], ensure_ascii=False) for row in rows]
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in SEVEN[:-1]}
    pq.write_table(pa.table({**columns, "meta": pa.array(metas, pa.string())}), path)
    return str(path)


def load(pattern: str) -> list[Document]:
    """Documents of JSONL.zst and Parquet files, with `meta` as the object that it is."""
    rows: list[Document] = []
    root, _, rest = pattern.partition("*")
    base = Path(root if root.endswith("/") else Path(root).parent)
    paths = sorted(base.glob(pattern.removeprefix(f"{base}/"))) if rest else [Path(pattern)]
    assert paths, pattern
    for path in paths:
        if path.suffix == ".parquet":
            for row in pq.read_table(path).to_pylist():
                rows.append({**row, "meta": None if row["meta"] is None else json.loads(row["meta"])})
        else:
            with ZstdFile(path) as file:
                rows += [json.loads(line) for line in file]
    return [filled(row) for row in rows]


def in_order(documents: Sequence[Document]) -> list[str]:
    return sorted(json.dumps(filled(row), sort_keys=True, ensure_ascii=False) for row in documents)


def tokmill(*arguments: str | Path) -> Any:
    result = CliRunner().invoke(main, [*map(str, arguments), "--workers", "1", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# -- the verbs: files in, files out ----------------------------------------------------------------


def normalize(files: str, out: Path) -> str:
    tokmill("normalize", files, "--unicode", "none", "--newlines", "keep", "--out", out)
    return f"{out}/files-*.jsonl.zst"


def filter_(files: str, out: Path) -> str:
    tokmill("filter", files, "--rule", "chars>=1", "--out", out)
    return f"{out}/files-*.jsonl.zst"


def dedup(files: str, out: Path) -> str:
    tokmill("dedup", files, "--mode", "exact", "--scope", "per-source", "--out", out)
    return f"{out}/deduped.jsonl.zst"


def ingest(files: str, out: Path) -> str:
    tokmill("ingest", "files", files, "--out", out)
    return f"{out}/ingest/files/documents-*.parquet"


def sample_lines(files: str, out: Path) -> str:
    tokmill("sample", files, "--k", "1000", "--out", out / "some.jsonl.zst")
    return str(out / "some.jsonl.zst")


def sample_columns(files: str, out: Path) -> str:
    tokmill("sample", files, "--method", "hash", "--fraction", "1", "--out", out / "some.parquet")
    return str(out / "some.parquet")


def materialize(files: str, out: Path) -> str:
    tokmill("materialize", "files", files, "--name", "corpus", "--out", out)
    return f"{out}/corpora/**/*.jsonl.zst"


VERBS: dict[str, Callable[[str, Path], str]] = {
    verb.__name__.rstrip("_"): verb
    for verb in (normalize, filter_, dedup, ingest, sample_lines, sample_columns, materialize)
}
WRITERS = {"lines": (write_lines, "a.jsonl.zst"), "columns": (write_columns, "a.parquet")}


@pytest.mark.parametrize("second", VERBS)
@pytest.mark.parametrize("first", VERBS)
def test_all_seven_fields_survive_two_verbs(tmp_path: Path, first: str, second: str) -> None:
    for form, (write, name) in WRITERS.items():
        files = write(tmp_path / form / name, DOCUMENTS)
        once = VERBS[first](files, tmp_path / form / "1")
        assert in_order(load(once)) == in_order(DOCUMENTS), f"{form} through {first}"
        twice = VERBS[second](once, tmp_path / form / "2")
        assert in_order(load(twice)) == in_order(DOCUMENTS), f"{form} through {first} and {second}"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('abé"\\ \n\x1f', min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
ANY_DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {"source": WORDS, "domain": WORDS, "doc_id": WORDS},
        optional={
            "license_tag": WORDS,
            "created_at": WORDS,
            "meta": st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3),
        },
    ),
    min_size=1,
    max_size=5,
).map(lambda rows: [{"text": f"Document number {n}.", **row} for n, row in enumerate(rows)])


@settings(deadline=None, max_examples=20)
@given(ANY_DOCUMENTS, st.sampled_from([*VERBS]), st.sampled_from([*VERBS]), st.sampled_from([*WRITERS]))
def test_any_documents_survive_any_two_verbs(
    documents: list[Document], first: str, second: str, form: str
) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        write, name = WRITERS[form]
        once = VERBS[first](write(directory / name, documents), directory / "1")
        twice = VERBS[second](once, directory / "2")
        assert in_order(load(twice)) == in_order(documents)
    finally:
        shutil.rmtree(directory)


# -- in a recipe, the recipe says what the source is -----------------------------------------------


@pytest.mark.parametrize("kind", ["files", "corpus"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_recipe_names_source_and_domain_and_keeps_all_else(tmp_path: Path, verb: str, kind: str) -> None:
    made = VERBS[verb](write_lines(tmp_path / "a.jsonl.zst", DOCUMENTS), tmp_path / "made")
    if kind == "corpus":
        made = VERBS["materialize"](made, tmp_path / "root")
        (manifest,) = (tmp_path / "root/manifests").glob("*.json")
        source: Document = {"corpus": {"manifest": str(manifest)}}
    else:
        source = {"files": made}
    recipe = tmp_path / "recipe.yaml"
    sources = [{"name": "mine", "domain": "books", "license": "CC0-1.0", **source}]
    recipe.write_text(json.dumps({"name": "again", "sources": sources}))
    out = mill.run(recipe, tmp_path / "out", workers=1, until="clean").out
    expected = [
        {
            **row,
            "source": "mine",
            "domain": "books",
            "license_tag": row.get("license_tag") or "CC0-1.0",  # its own wins
        }
        for row in DOCUMENTS
    ]
    assert in_order(load(f"{out}/ingest/mine/documents-*.parquet")) == in_order(expected)


# -- what an option says holds for every record ----------------------------------------------------


def test_an_option_that_names_source_or_domain_holds_for_every_record(tmp_path: Path) -> None:
    files = write_lines(tmp_path / "a.jsonl.zst", DOCUMENTS)
    tokmill("normalize", files, "--name", "mine", "--out", tmp_path / "named")
    named = load(f"{tmp_path}/named/mine-*.jsonl.zst")
    assert {row["source"] for row in named} == {"mine"}
    assert sorted(row["domain"] for row in named) == sorted(row["domain"] for row in DOCUMENTS)
    tokmill("filter", files, "--rule", "chars>=1", "--domain", "books", "--out", tmp_path / "books")
    books = load(f"{tmp_path}/books/files-*.jsonl.zst")
    assert {row["domain"] for row in books} == {"books"}
    assert sorted(row["source"] for row in books) == sorted(row["source"] for row in DOCUMENTS)


def test_records_that_say_no_source_are_of_the_one_that_is_read(tmp_path: Path) -> None:
    rows = [
        {"text": "no label"},
        {"text": "some label", "source": "alpha"},
        {"text": "odd", "source": {"a": 1}},
    ]
    files = write_lines(tmp_path / "a.jsonl.zst", rows)
    tokmill("normalize", files, "--out", tmp_path / "out")
    kept = load(f"{tmp_path}/out/files-*.jsonl.zst")
    assert [(row["source"], row["domain"]) for row in kept] == [
        ("files", "default"),
        ("alpha", "default"),
        ("files", "default"),
    ]
    (manifest,) = (json.loads(path.read_bytes()) for path in (tmp_path / "out").glob("*.manifest.json"))
    assert (manifest["source"], manifest["domain"]) == ("files", "default")
