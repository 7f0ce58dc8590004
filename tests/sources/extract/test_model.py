"""A file that is no model is an error with a sentence; what another model took out of pages is not reused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokmill.errors import CorruptFile
from tokmill.sources.extract.engines import engine_version
from tokmill.sources.extract.model import load_model

SHIPPED = files("tokmill.sources.extract").joinpath("model.npz")


def arrays() -> dict[str, Any]:
    with SHIPPED.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def write(path: Path, **changed: Any) -> Path:
    np.savez(path, **{name: value for name, value in (arrays() | changed).items() if value is not None})
    return path


def test_the_shipped_model_loads_by_its_path_too(tmp_path: Path) -> None:
    assert load_model(write(tmp_path / "m.npz")).threshold == load_model().threshold


@pytest.mark.parametrize("part", ["first_words", "second_leaves", "class_hashes", "threshold"])
def test_a_model_without_a_part_is_told_with_its_name(tmp_path: Path, part: str) -> None:
    with pytest.raises(CorruptFile, match=f"no model of web pages: it has no .*{part}"):
        load_model(write(tmp_path / "m.npz", **{part: None}))


@pytest.mark.parametrize(
    "part", ["first_words", "first_values", "second_nodes", "second_leaves", "class_odds", "text_hashes"]
)
def test_a_model_of_wrong_sizes_is_refused(tmp_path: Path, part: str) -> None:
    with pytest.raises(CorruptFile, match=r"no model of web pages: .*(not there|shorter|longer)"):
        load_model(write(tmp_path / "m.npz", **{part: arrays()[part][:-1]}))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"text", b"\x93NUMPY\1\0"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="no model of web pages") as caught:
        load_model(path)
    assert caught.value.where == str(path)


def test_every_cut_of_a_model_is_refused(tmp_path: Path) -> None:
    whole, path = SHIPPED.read_bytes(), tmp_path / "m.npz"
    for cut in range(0, len(whole), 40_000):
        path.write_bytes(whole[:cut])
        load_model.cache_clear()
        with pytest.raises(CorruptFile):
            load_model(path)


# --- a run with another model ---

PAGE = (
    "<html><head><title>Rivers</title></head><body><nav><a href=/>Home</a> <a href=/a>About us</a></nav>"
    f"<article><h1>Rivers</h1>{'<p>A river is a stream of water that flows to the sea or a lake.</p>' * 9}"
    "</article><footer>Imprint</footer></body></html>"
)


def another_package(where: Path) -> Path:
    """The package as it is, but for its model, which keeps next to nothing."""
    own = Path(str(SHIPPED)).parents[2]
    package = where / "tokmill"
    extract = package / "sources/extract"
    extract.mkdir(parents=True)
    for directory, others in ((own, "sources"), (own / "sources", "extract"), (own / "sources/extract", "")):
        for path in directory.iterdir():
            if path.name not in (others, "model.npz"):
                (package / path.relative_to(own)).symlink_to(path)
    write(extract / "model.npz", threshold=np.array(1 << 30))
    return where


def run_with(package: Path | None, recipe: Path, out: Path) -> tuple[bytes, list[str]]:
    """The manifest of what was ingested, and its texts."""
    environment = {**os.environ, **({"PYTHONPATH": str(package)} if package else {})}
    begin = [sys.executable, "-c", "from tokmill.cli import main; main()"]
    command = [*begin, "run", str(recipe), "--out", str(out), "--until", "ingest/s"]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    texts = [
        text
        for path in sorted((out / "ingest/s").glob("documents-*.parquet"))
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    return (out / "ingest/s/manifest.json").read_bytes(), texts


def test_what_another_model_took_out_of_pages_is_not_used_again(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.html").write_text(PAGE)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: r\nsources: [{name: s, directory: {path: site, suffixes: [.html]}, extract: {}}]\n"
    )
    other = another_package(tmp_path / "other")
    first, texts = run_with(None, recipe, tmp_path / "out")
    assert texts[0].count("A river") == 9
    assert run_with(None, recipe, tmp_path / "out") == (first, texts)  # nothing is done twice
    second, others = run_with(other, recipe, tmp_path / "out")
    assert second != first
    assert others != texts
    assert others == run_with(other, recipe, tmp_path / "fresh")[1]
    assert run_with(None, recipe, tmp_path / "out")[1] == texts


def test_engines_of_others_are_told_apart_by_their_versions() -> None:
    pytest.importorskip("resiliparse")
    version = importlib.metadata.version("resiliparse")
    assert engine_version({"engine": "resiliparse"}) == f"resiliparse {version}"
    assert engine_version({}) == f"tokmill, model {hashlib.sha256(SHIPPED.read_bytes()).hexdigest()[:16]}"
