"""The frame of interop: readers that our own tests have the packages of run here; a difference is told."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
HERE = [
    ROOT / f"interop/readers/{name}.py"
    for name in ("arrow_disk", "hf_datasets", "numpy_memmap", "numpy_npy", "polars_parquet")
]

TEXTS = sorted((ROOT / "interop/texts").glob("*.py"))

WRITER = """
import json, sys
SOURCE = {"files": "*.jsonl", "fields": {"text": "text", "id": "id", "license": "license"}}
records = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
with open(sys.argv[2] + "/made.jsonl", "w", encoding="utf-8") as file:
    for record in records:
        file.write(json.dumps(spoil(record)) + "\\n")
print(json.dumps({"package": "json", "version": "1"}))
"""


@pytest.fixture(scope="module")
def frame() -> ModuleType:
    sys.path.append(str(ROOT / "interop"))  # as for a script that is run
    spec = importlib.util.spec_from_file_location("interop_all", ROOT / "interop/all.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def builds(frame, tmp_path_factory) -> tuple[Path, dict[bool, Path]]:
    folder = tmp_path_factory.mktemp("interop")
    out = frame.make_builds(HERE, folder)
    return out, frame.write_expected(out, folder)


@pytest.mark.parametrize("script", HERE, ids=lambda script: script.stem)
def test_readers_that_are_at_hand_agree(script, frame, builds):
    out, expected = builds
    build = frame.constant_of(script, "BUILD")
    told = frame.run_script(
        sys.executable, script, out / "build" / script.stem, expected[frame.is_documents(build)]
    )
    lengths = np.load(expected[frame.is_documents(build)])["lengths"]
    assert told["tokens"] == lengths.sum() > 30_000


def test_one_token_that_differs_is_told(frame, builds, tmp_path):
    out, expected = builds
    with np.load(expected[False]) as arrays:
        other = {name: arrays[name].copy() for name in arrays.files}
    other["ids"][1234] += 1
    np.savez(tmp_path / "other.npz", **other)
    script = ROOT / "interop/readers/numpy_memmap.py"
    with pytest.raises(frame.Differs, match=r"readers/numpy_memmap.py: .*the first that differs is 1,234"):
        frame.run_script(sys.executable, script, out / "build/numpy_memmap", tmp_path / "other.npz")


def test_a_package_that_is_not_installed_is_a_row_that_says_so(frame, tmp_path):
    (tmp_path / "toy.py").write_text("import no_such_package")
    told = frame.run_script(sys.executable, tmp_path / "toy.py")
    row = frame.row_of("toy", told, "tokens")
    assert frame.render({"readers": [row]}).endswith(
        "| `toy` | not run: No module named 'no_such_package' | | | |\n"
    )


def test_what_a_writer_wrote_comes_back(frame, tmp_path):
    script = tmp_path / "jsonl.py"
    script.write_text("spoil = lambda record: record\n" + WRITER)
    (row,) = frame.read_written(Path(sys.executable), [script], tmp_path / "made")
    assert (row.package, row.equal) == ("json", len(frame.make_records()))


@pytest.mark.parametrize("spoiled", ["text", "id", "license"])
def test_a_field_that_does_not_come_back_is_told(spoiled, frame, tmp_path):
    script = tmp_path / "jsonl.py"
    script.write_text(
        f"spoil = lambda record: record | {{'{spoiled}': 'x' + record['{spoiled}'][1:]}}\n" + WRITER
    )
    with pytest.raises(frame.Differs, match=r"jsonl.py: document .?oc-0000 is "):
        frame.read_written(Path(sys.executable), [script], tmp_path / "made")


@pytest.mark.parametrize("fields", [["text"], ["id", "lines"], ["words"]])
def test_a_writer_says_what_its_format_can_hold(fields, frame, tmp_path):
    script = tmp_path / "jsonl.py"
    spoil = "spoil = lambda record: {'text': record['text'], 'id': record['id']}\n"
    source = WRITER.replace(', "license": "license"', "")
    script.write_text(f"AS = {{'compare': {fields}}}\n" + spoil + source)
    (row,) = frame.read_written(Path(sys.executable), [script], tmp_path / "made")
    assert (row.compared, row.equal) == (
        f"every {' and '.join(field.removesuffix('s') for field in fields)}",
        len(frame.make_records()),
    )


def test_a_folder_of_mail_that_stdlib_wrote_comes_back(frame, tmp_path):
    script = ROOT / "interop/writers/mbox_stdlib.py"
    (row,) = frame.read_written(Path(sys.executable), [script], tmp_path / "made")
    assert row.equal == len(frame.make_records())


def test_the_page_has_a_line_for_every_script(frame):
    page = (ROOT / "docs/interop.md").read_text(encoding="utf-8")
    scripts = [path for kind in frame.KINDS for path in (ROOT / "interop" / kind).glob("[a-z]*.py")]
    templates = sys.modules["conversations"].MODELS  # one script renders them all
    assert len(re.findall(r"^\| `", page, re.M)) == len(scripts) - 1 + len(templates)


@pytest.fixture(scope="module")
def texts(frame, tmp_path_factory) -> tuple[Path, Path]:
    return frame.build_texts(TEXTS, tmp_path_factory.mktemp("texts") / "made")


@pytest.mark.parametrize("script", TEXTS, ids=lambda script: script.stem)
def test_readers_of_texts_that_are_at_hand_agree(script, frame, texts):
    out, expected = texts
    told = frame.run_script(sys.executable, script, out / "texts" / script.stem, expected)
    if "missing" in told:
        pytest.skip(told["missing"])
    assert told["documents"] == len(frame.make_records())
    row = frame.row_of(script.stem, told, "documents")
    assert f"| {row.compared} | {row.equal:,} |" in frame.render({"texts": [row]})


def test_one_text_that_differs_is_told(frame, texts, tmp_path):
    pytest.importorskip("datasets")
    out, expected = texts
    other = expected.read_text(encoding="utf-8").replace("NaN null", "NaN  null")
    (tmp_path / "other.jsonl").write_text(other, encoding="utf-8")
    script = ROOT / "interop/texts/datasets_parquet.py"
    with pytest.raises(frame.Differs, match=r"datasets read \d+ of \d+ documents of \w+; \d+ differs"):
        frame.run_script(sys.executable, script, out / "texts/datasets_parquet", tmp_path / "other.jsonl")
