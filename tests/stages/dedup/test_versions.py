"""A step whose methods read texts otherwise is made again; one of before, which did not say how, holds."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from mill import tokmill, write_recipe
from written import Json, load_manifest

WITH_ANOTHER = """
import sys
import {module} as module
module.{name} = module.{name} + " of tomorrow"
from tokmill.cli import main
main(sys.argv[1:])
"""


def write(directory: Path, dedup: Json) -> Path:
    records = [
        {"id": f"d{n}", "text": f"It says {n} and no more.", "url": f"a.com/{n}", "q": f"a question of {n}"}
        for n in range(4)
    ]
    (directory / "all.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"name": "all", "files": "all.jsonl", "fields": {"id": "id", "meta": ["url"]}}
    none = dict.fromkeys(("filters", "normalize", "split", "tokenizer", "builds", "pack"))
    return write_recipe(directory, sources=[source], dedup={"exact": False, **dedup}, **none)


@pytest.mark.parametrize(
    ("method", "asked", "module", "name"),
    [
        ("near", {}, "tokmill.duplicates.near", "SHINGLE_NORMALIZATION"),
        ("window", {}, "tokmill.duplicates.shingling", "WORD_NORMALIZATION"),
        ("templates", True, "tokmill.duplicates.templates", "LINE_NORMALIZATION"),
        ("url", True, "tokmill.clean.urls", "URL_NORMALIZATION"),
        (
            "against",
            {"files": "all.jsonl", "fields": ["q"], "policy": "report"},
            "tokmill.duplicates.shingling",
            "WORD_NORMALIZATION",
        ),
    ],
)
def test_another_version_of_a_method_makes_the_step_again(
    tmp_path: Path, method: str, asked: Json | bool, module: str, name: str
) -> None:
    recipe = write(tmp_path, {method: asked})
    assert tokmill("run", recipe).returncode == 0
    manifest = tmp_path / "out/small/dedup/manifest.json"
    before = manifest.read_bytes()
    inputs = load_manifest(manifest.parent).inputs
    if unicodedata.unidata_version == "14.0.0":
        assert not [key for key in inputs if key.startswith("version")], "as it was before any was written"
    assert "nothing to do" in tokmill("run", recipe).stdout
    code = WITH_ANOTHER.format(module=module, name=name)
    command = [sys.executable, "-c", code, "run", str(recipe), "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert manifest.read_bytes() != before
    assert load_manifest(manifest.parent).inputs[f"version of {method}"].endswith(" of tomorrow")
    assert "dedup" in tokmill("plan", recipe).stdout
    assert f"version of {method} " in tokmill("plan", recipe).stdout


@pytest.mark.parametrize(
    ("dedup", "told"),
    [
        ({"near": {"threshold": 1}}, {"near"}),
        ({"near": {"threshold": 1, "verify": "signature"}}, set()),
        ({"near": {"threshold": 0.9}, "reference": ["all"]}, set()),
        ({"window": {"policy": "drop"}}, set()),
        ({"window": {"policy": "drop"}, "reference": ["all"]}, {"window"}),
        ({"window": {"policy": "report"}, "reference": ["all"]}, set()),
        ({"window": {"policy": "trim", "min_words": 0}}, {"window"}),
        ({"window": {"policy": "drop", "min_words": 0}}, set()),
    ],
)
def test_runs_that_were_wrong_are_made_again_and_no_others(
    tmp_path: Path, dedup: Json, told: set[str]
) -> None:
    assert tokmill("run", write(tmp_path, dedup)).returncode == 0
    inputs = load_manifest(tmp_path / "out/small/dedup").inputs
    phrases = ("all are compared", "a reference loses nothing", "none is left empty")
    assert {key for key, value in inputs.items() if value.endswith(phrases)} == {
        f"version of {m}" for m in told
    }
