"""A dedup method of one's own, in the three source files that CONTRIBUTING names:
drops, reasons and `why` follow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokmill

SOURCE = Path(tokmill.__file__).parent

TITLES = '''
"""Documents with the first line of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions
from tokmill.artifacts.upstream import write_task_table
from tokmill.schema import DROPS
from tokmill.stages.dedup.method import Considered, DedupStep, Keep, Method, Phase, load_ranked


class TitleOptions(msgspec.Struct, frozen=True):
    min_words: int = 5


class CompareOptions(TaskOptions, frozen=True):
    asked: TitleOptions
    keep: Keep
    shard: str
    number: int


def _find(step: DedupStep, asked: TitleOptions, considered: Sequence[Considered]) -> Phase:
    return (
        yield [
            Task(
                function="dedup.titles",
                key=f"i{shard.number:05d}",
                options=CompareOptions(asked=asked, keep=keep, shard=shard.name, number=shard.number),
                inputs=inputs,
                directory=str(step.directory),
            )
            for shard, keep, inputs in considered
        ]
    )


def perform_titles(task: Task[CompareOptions]) -> Made:
    options = task.options
    ranked = load_ranked(task.inputs, options.number, options.keep)
    first: dict[str, int] = {}
    drops = []
    for row, text in zip(ranked.rows.tolist(), ranked.texts.to_pylist(), strict=True):
        title = text.partition("\\n")[0]
        if len(title.split()) >= options.asked.min_words and first.setdefault(title, row) != row:
            told = {"shard": options.number, "row": row, "survivor_shard": options.shard}
            drops.append({**told, "survivor_row": first[title], "detail": title})
    return Made([write_task_table(task, "titles", pa.Table.from_pylist(drops, schema=DROPS), "shard")], {})


METHOD = Method(
    key="titles",
    options=TitleOptions,
    reason="title_dup",
    find=_find,
    tasks={"dedup.titles": TaskFunction(CompareOptions, perform_titles)},
)
'''

SECTION = """class Titles(Section):
    min_words: int = Field(5, ge=1, description="shorter first lines are not compared")


class Dedup(Section):
"""

RECIPE = """
name: titles
sources: [{name: notes, files: notes.jsonl}]
dedup: {exact: false, titles: {min_words: 3}}
split: {valid_fraction: 0}
tokenizer: {train: {vocab_size: 300}, eos: <eos>}
builds: [{name: rows, format: memmap, pack: {length: 16}}]
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our tree with the diff applied: the rooms of the files are copied,
    the others are where they are."""
    tree = tmp_path_factory.mktemp("tree") / "tokmill"
    tree.mkdir()
    for path in SOURCE.iterdir():
        if path.name in ("recipe", "stages"):
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name != "__pycache__":
            (tree / path.name).symlink_to(path)
    (tree / "stages/dedup/titles.py").write_text(TITLES, encoding="utf-8")
    methods = '"exact", "templates", "near", "window")\n'
    for file, before, after in (
        ("names", methods, methods.replace('"exact",', '"exact", "titles",')),
        ("dedup", "class Dedup(Section):\n", SECTION),
        (
            "dedup",
            "    near: Near | None = None\n",
            "    near: Near | None = None\n    titles: Titles | None = None\n",
        ),
    ):
        path = tree / f"recipe/{file}.py"
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, after), encoding="utf-8")
    return tree.parent


def told(source: Path, directory: Path, *words: str) -> str:
    """What a command of that tree says."""
    environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    command = [sys.executable, "-c", "import tokmill.cli; tokmill.cli.main()", *words]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_method_of_three_files_drops_tells_and_is_one_for_any_workers(source: Path, tmp_path: Path) -> None:
    texts = [f"the title of {n % 7}\nbody number {n} that no other has" for n in range(40)]
    lines = [json.dumps({"id": f"n{n}", "text": text}) for n, text in enumerate(texts)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    contents = set()
    for workers in ("1", "3"):
        told(source, tmp_path, "run", "recipe.yaml", "--out", f"out{workers}", "--workers", workers)
        contents.add(json.loads((tmp_path / f"out{workers}/manifest.json").read_text("utf-8"))["identity"])
    assert len(contents) == 1
    counts = json.loads((tmp_path / "out1/dedup/manifest.json").read_text("utf-8"))["counts"]
    assert counts["dropped"] == {"title_dup": 33}
    why = told(source, tmp_path, "why", "out1", "n9")
    assert "title_dup" in why
    assert "n2" in why
    assert "titles" in told(source, tmp_path, "recipe", "schema")
    told(source, tmp_path, "verify", "out1")
