"""Formats are known by their records: one of another package is built, loaded,
checked and verified like ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill
from mill import small_corpus
from tokmill.errors import InputError, RecipeError
from tokmill.formats import all_formats, find_format, format_names
from written import MegatronFile

SOURCE = Path(tokmill.__file__).parent

OURS = [
    *("arrow", "levanter", "litdata", "llmc", "mds", "megatron", "memmap", "nanogpt"),
    *("nanotron", "npy", "olmo", "parquet", "token_cache"),
]

# Ids as decimal numbers, a row a line; the last line says how many there are.
LINES = """
import os
from pathlib import Path

import numpy as np

from tokmill.errors import CorruptFile
from tokmill.formats import Format
from tokmill.formats.ids import Sequences
from tokmill.formats.stores import Part, PartStore
from tokmill.artifacts.manifest import file_entry
from tokmill.storage.disk import open_commit
from tokmill.storage.location import file_sha256

NAME = "ids.txt"


def write(directory, tokens):
    with open_commit(directory / NAME) as file:
        for batch in tokens.read_sequences():
            for ids in np.split(batch.ids, np.cumsum(batch.lengths)[:-1]):
                file.write((" ".join(map(str, ids.tolist())) + "\\n").encode())
        file.write(f"{tokens.rows} rows of {tokens.seq_len or 'any'}\\n".encode())
    return [file_entry(NAME, "lines", file.written, rows=tokens.rows)]


def load(directory):
    *lines, last = (directory / NAME).read_text().splitlines()
    if int(last.split()[0]) != len(lines):
        raise CorruptFile(f"{len(lines)} lines, and it says {last}", where=str(directory / NAME))
    rows = [np.array(line.split(), np.int32) for line in lines]
    lengths = np.array([len(row) for row in rows], np.int64)
    return Sequences(np.concatenate([np.empty(0, np.int32), *rows]), lengths), last.split()[-1]


def open_store(directory, split):
    sequences, length = load(directory)
    path = directory / NAME
    part = Part(path, len(sequences.lengths), len(sequences.ids), file_sha256(path))
    seq_len = None if length == "any" else int(length)
    return PartStore("lines", {}, [part], lambda number: sequences, is_mapped=True, seq_len=seq_len)


def check(directory):
    load(directory)
    with open(os.environ["CHECKED"], "a") as log:
        log.write(f"{Path(directory).parent.name}/{Path(directory).name}\\n")


LINES = Format(
    name="lines",
    recognizes=lambda directory: (directory / NAME).is_file(),
    open_store=open_store,
    check=check,
    write=write,
)
"""

DRIVER = """
import json, sys
import tokmill
from tokmill.formats import format_names
from tokmill.loader import Batches, open_dataset

def main(recipe):
    out = tokmill.run(recipe, workers=2).out
    told = {"out": str(out), "names": format_names(), "rows": format_names("rows")}
    told["problems"] = [str(problem) for problem in tokmill.verify(out).problems]
    for name in ("text", "texts"):
        dataset = open_dataset(out / "build" / name, verify="hashes")
        told[name] = [example["ids"].tolist() for example in dataset]
        told[name + " batch"] = next(iter(Batches(dataset, 2, seed=3)))["tokens"].tolist()
        findings = tokmill.check(out / "build" / name, steps=0).findings
        told[name + " faults"] = [f"{one.check}: {one.detail}" for one in findings if not one.ok]
    print(json.dumps(told))

if __name__ == "__main__":
    main(sys.argv[1])
"""

BUILDS = [
    {"name": "text", "format": "lines"},
    {"name": "texts", "format": "lines", "pack": {"layout": "indexed"}},
    {"name": "rows", "format": "memmap"},
    {"name": "mega", "format": "megatron"},
]


def install(site: Path) -> Path:
    """As pip leaves a package: its module, and what it says its entry points are."""
    info = site / "toy_lines-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_lines.py").write_text(LINES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-lines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokmill.formats]\nlines = toy_lines:LINES\n")
    return site


def run_python(site: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([str(site), *sys.path])
    environment = {**os.environ, "PYTHONPATH": search, "CHECKED": str(site / "checked.log")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def told(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("toy")
    recipe = small_corpus(folder, builds=BUILDS)
    (folder / "driver.py").write_text(DRIVER)
    ran = run_python(site, folder / "driver.py", recipe)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_a_format_of_another_package_is_one_of_the_choices(told: dict[str, Any]) -> None:
    assert told["names"] == sorted(["lines", *OURS])
    rows = ["arrow", "levanter", "lines", "litdata", "mds", "memmap", "npy", "olmo", "parquet"]
    assert told["rows"] == rows


def test_its_rows_and_documents_are_those_of_our_own_formats(told: dict[str, Any]) -> None:
    """In its files, as they are read here without its reader, and as the loader gives them."""
    build = Path(told["out"]) / "build"
    flat = np.fromfile(build / "rows/train/input_ids.mmap", "<i4").reshape(-1, 64)
    lines = (build / "text/train/ids.txt").read_text().splitlines()
    assert len(flat) > 3
    assert [list(map(int, line.split())) for line in lines[:-1]] == flat.tolist() == told["text"]
    pair = MegatronFile(build / "mega/train/tokens")
    documents = [pair.sequence(number).tolist() for number in range(len(pair))]
    lines = (build / "texts/train/ids.txt").read_text().splitlines()
    assert [list(map(int, line.split())) for line in lines[:-1]] == documents == told["texts"]
    assert all(row in flat.tolist() for row in told["text batch"])


def test_its_files_are_proven_and_its_own_check_is_asked(told: dict[str, Any], site: Path) -> None:
    assert told["problems"] == told["text faults"] == told["texts faults"] == []
    assert {"text/train", "text/valid", "texts/train", "texts/valid"} <= set(
        (site / "checked.log").read_text().split()
    )


def test_without_the_package_a_run_says_which_format_is_missing(told: dict[str, Any]) -> None:
    problems = tokmill.verify(told["out"]).problems
    assert {problem.where for problem in problems} == {"build/text", "build/texts"}
    assert all("there is no format 'lines'" in problem.what for problem in problems)


def test_the_rules_of_a_recipe_are_those_of_the_record(site: Path, tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, builds=[{"name": "a", "format": "lines", "dtype": "uint16"}])
    code = f"import tokmill; tokmill.run({str(recipe)!r}, workers=1)"
    ran = run_python(site, "-c", code)
    assert ran.returncode != 0
    assert "lines is always int32" in ran.stderr


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("toy = no_such_module:TOY", "the format at no_such_module:TOY cannot be loaded"),
        ("toy = json:TOY", "the format at json:TOY cannot be loaded"),
        ("toy = json:loads", "the format is a function, not a tokmill.formats.Format"),
    ],
)
def test_a_package_whose_format_is_broken_is_named(points: str, message: str, tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    (site / "toy_lines-1.0.dist-info/entry_points.txt").write_text(f"[tokmill.formats]\n{points}\n")
    ran = run_python(site, "-c", "from tokmill.formats import find_format; find_format('toy')")
    assert message in ran.stderr
    assert "InputError" in ran.stderr


def test_a_format_that_is_only_read_is_not_built(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    code = "import dataclasses, toy_lines\nREAD = dataclasses.replace(toy_lines.LINES, write=None)\n"
    (site / "only_read.py").write_text(code)
    points = site / "toy_lines-1.0.dist-info/entry_points.txt"
    points.write_text("[tokmill.formats]\nlines = only_read:READ\n")
    recipe = small_corpus(tmp_path, builds=[{"name": "a", "format": "lines"}])
    ran = run_python(site, "-c", f"import tokmill; tokmill.run({str(recipe)!r}, workers=1)")
    assert "lines is only read" in ran.stderr


@pytest.mark.parametrize("wrong", ["lines", 3])
def test_a_format_that_nobody_brings_is_refused_with_those_there_are(wrong: Any, tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, builds=[{"name": "a", "format": wrong}])
    known = sorted({*OURS, "jsonl", "webdataset"})  # those of texts too
    with pytest.raises(RecipeError, match=rf"is not a choice; one of: {', '.join(known)}"):
        tokmill.run(recipe, workers=1)


def test_an_unknown_name_is_told_the_others() -> None:
    with pytest.raises(InputError, match="there is no format 'tfrecord'"):
        find_format("tfrecord")


def test_a_record_has_the_name_that_it_is_registered_by() -> None:
    assert [find_format(name).name for name in format_names()] == format_names()
    assert {one.name for one in all_formats() if one.write is None} == {"bare"}


# Where one format is meant, and no other would do.
NAMED = {
    "adhoc/tokens.py": {"npy", "token_cache"},  # `shard` and `encode` make these
    "cli/__init__.py": {"memmap"},  # what `pack`, an old name of `build`, makes unless it is told otherwise
    "adhoc/imported_sources.py": {"parquet"},  # files that are read, not builds
    "artifacts/plugins.py": {"arrow"},  # an attribute
    "artifacts/directory.py": {"arrow", "mds", "npy", "parquet"},  # suffixes of files
    "sources/reading.py": {"arrow"},  # a format of `datasets`, in memory
    # files of texts, which are no builds of tokens
    "cli/export.py": {"parquet"},
    "recipe/tokens.py": {"parquet"},
    "storage/textfiles.py": {"parquet"},
}


def test_no_module_but_its_own_branches_on_the_name_of_a_format() -> None:
    named: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith("formats/"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            if common := strings & set(format_names()):
                named[place] = common
    assert named == NAMED
