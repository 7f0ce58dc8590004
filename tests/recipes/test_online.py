"""The recipes as they are written, against a hub on this machine that holds small datasets under the real
names."""

from __future__ import annotations

import bz2
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

import tokmill
from hub.loopback import LoopbackHub
from recipes.conftest import O200K, R50K
from recipes.published import publish, records
from recipes.shelved import Milled, Shelved
from tokmill.artifacts.manifest import load_manifest
from tokmill.recipe.examples import find_recipe
from tokmill.recipe.file import load_recipe
from tokmill.storage import codecs

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("datasets") and importlib.util.find_spec("huggingface_hub")),
    reason="the extra `hub` is not installed",
)
needs_json_gz = pytest.mark.skipif(
    ".json.gz" not in codecs.SUFFIXES,
    reason="C4 and codeparrot-clean are .json.gz, for which there is no reader",
)


@pytest.fixture
def hub(shelved: Shelved) -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    publish(hub, shelved.directory / "stand-in")
    with hub.serving():
        yield hub


def run(endpoint: str, home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("HF_") and not key.lower().endswith("_proxy")
    }
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "TOKMILL_WORKERS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", "from tokmill.cli import main; main()", *map(str, arguments)],
        env={**inherited, **settings},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def online(name: str, directory: Path, *sizes: tuple[str, str]) -> Path:
    text = find_recipe(name).read_text(encoding="utf-8")
    for old, new in sizes:
        assert old in text
        text = text.replace(old, new)
    path = directory / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow_recipes
@pytest.mark.skipif(not O200K.exists(), reason="no o200k_base.tiktoken here")
def test_healing_fetches_a_pinned_commit_once_and_then_needs_no_network(
    hub: LoopbackHub, milled: Milled, tmp_path: Path
) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "o200k_base.tiktoken").symlink_to(O200K)
    recipe = online("healing", tmp_path, ("tokens: 200M", "tokens: 50k"))
    done = run(hub.endpoint, tmp_path, "run", recipe)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out" / "healing"
    inputs = json.dumps(load_manifest(out / "ingest" / "fineweb-edu").config)
    assert "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9" in inputs
    # the same documents gave the same tokens, wherever they came from
    for split in ("train", "valid"):
        offline = milled.build("healing") / split / "tokens.bin"
        assert (out / "build" / "mega" / split / "tokens.bin").read_bytes() == offline.read_bytes()
    digest = tokmill.verify(out).digest
    asked = len(hub.log)
    for step in ("build", "tokens", "mixture"):
        shutil.rmtree(out / step)
    again = run("http://127.0.0.1:9", tmp_path, "run", recipe)
    assert again.returncode == 0, again.stderr
    assert len(hub.log) == asked
    assert tokmill.verify(out).digest == digest


@pytest.mark.slow_recipes
def test_mini_translation_draws_from_a_dataset_with_nested_sides(
    hub: LoopbackHub, milled: Milled, tmp_path: Path
) -> None:
    done = run(hub.endpoint, tmp_path, "run", online("mini-translation", tmp_path))
    assert done.returncode == 0, done.stderr
    made = load_manifest(tmp_path / "out" / "mini-translation" / "ingest" / "wmt14").counts
    assert made == milled("mini-translation").artifacts["ingest/wmt14"].manifest.counts


@needs_json_gz
@pytest.mark.slow_recipes
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("stage-a", ()),
        pytest.param(
            "three-domains",
            (),
            marks=pytest.mark.skipif(not R50K.exists(), reason="no r50k_base.tiktoken here"),
        ),
        ("three-domains-wikipedia", ()),
        (
            "web-mixture",
            (
                ("vocab_size: 32000", "vocab_size: 2000"),
                ("sample_megabytes: 256", "sample_megabytes: 1"),
                ("tokens: 500M", "tokens: 150k"),
            ),
        ),
    ],
)
def test_a_recipe_runs_against_the_hub_as_it_is_written(
    hub: LoopbackHub, shelved: Shelved, tmp_path: Path, name: str, sizes: tuple[tuple[str, str], ...]
) -> None:
    recipe = online(name, tmp_path, *sizes)
    if name == "stage-a":
        write_dumps(tmp_path / "dumps", shelved.directory / "stand-in")
    if name == "three-domains":
        (tmp_path / "tok").mkdir()
        (tmp_path / "tok" / R50K.name).symlink_to(R50K)
    done = run(hub.endpoint, tmp_path, "run", recipe)
    assert done.returncode == 0, done.stderr
    assert tokmill.verify(tmp_path / "out" / name).problems == []
    for source in load_recipe(recipe).sources:
        made = load_manifest(tmp_path / "out" / name / "ingest" / source.name)
        assert made.counts["kept"] > 0
        if source.hub is None:
            continue
        pinned = json.dumps(made.config)
        assert re.search(r"[0-9a-f]{40}", pinned)  # a branch is a commit from now on


def write_dumps(directory: Path, stand_in: Path) -> None:
    """What stage-a reads from its own files: a MediaWiki dump and the archive of a Stack Exchange site."""
    py7zr = pytest.importorskip("py7zr")
    pytest.importorskip("mwparserfromhell")
    (directory / "wikipedia").mkdir(parents=True)
    (directory / "stackexchange").mkdir()
    pages = "".join(
        f"<page><title>Place {number}</title><ns>0</ns><id>{number}</id><revision><id>1</id>"
        "<timestamp>2024-01-01T00:00:00Z</timestamp><model>wikitext</model><format>text/x-wiki</format>"
        f"<text>'''Place {number}''' is a place. {escape(record['text'])}</text></revision></page>"
        for number, record in enumerate(records(stand_in / "slimpajama.jsonl.zst"), 1)
    )
    dump = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">'
        '<siteinfo><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>'
        f"{pages}</mediawiki>"
    )
    (directory / "wikipedia" / "enwiki-pages-articles1.xml.bz2").write_bytes(bz2.compress(dump.encode()))
    with py7zr.SevenZipFile(directory / "stackexchange" / "counting.stackexchange.com.7z", "w") as archive:
        archive.write(stand_in / "qa" / "Posts.xml", "Posts.xml")
