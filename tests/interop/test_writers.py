"""What other projects' own writers wrote comes back: every id, text and licence."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sources.ingested import ingest, ingest_source

WRITERS = Path(__file__).resolve().parents[2] / "interop" / "writers"
# those that need nothing beyond what tests need
NAMES = [
    "arrow_datasets", "arrow_polars", "csv_pandas", "feather_pandas", "git_checkout", "json_array",
    "tsv_polars", "webdataset_tar", "zstd_long",
]  # fmt: skip
PACKAGES = {"webdataset_tar": ("webdataset",)}
RECORDS: list[dict[str, Any]] = [
    {
        "id": f"d{n}",
        "text": f'number {n}, "so it goes"\n\ttab and\r\nline ends “é” 日本 ' * (n % 5 + 1),
        "license": ["MIT", "CC-BY-4.0"][n % 2],
        "lang": "en",
        "meta": {"n": n, "deep": {"a": [1, None, "x"]}},
    }
    for n in range(40)
]


def constant_of(writer: Path, name: str) -> dict[str, Any]:
    """SOURCE, or AS where it has one, without importing what it needs."""
    for node in ast.parse(writer.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == name
        ):
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    assert name == "AS", f"{writer} has no {name}"
    return {}


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_comes_back(tmp_path, name):
    writer = WRITERS / f"{name}.py"
    for package in PACKAGES.get(name, ()):
        pytest.importorskip(package)
    if name == "git_checkout" and shutil.which("git") is None:
        pytest.skip("git is not installed")
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    told = subprocess.run(
        [sys.executable, writer, tmp_path / "records.jsonl", tmp_path / "out"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert set(json.loads(told.splitlines()[-1])) == {"package", "version"}
    source, held = constant_of(writer, "SOURCE"), constant_of(writer, "AS")
    if "directory" in source:
        path = str(tmp_path / "out" / source["directory"]["path"])
        found = ingest_source(**{**source, "directory": {**source["directory"], "path": path}})
    else:
        found = ingest(tmp_path / "out", source.pop("files"), **source)
    assert found.bad == []
    expected = [{**record, **{key: held[key].format(**record) for key in held}} for record in RECORDS]
    if "directory" in source:  # in the order of their names
        expected.sort(key=lambda record: record["id"])
    assert [(row["doc_id"], row["text"], row["license_tag"]) for row in found.documents] == [
        (record["id"], record["text"], record["license"]) for record in expected
    ]
