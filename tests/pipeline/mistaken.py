"""A workspace with a finished run, mistakes to make in its recipe, and the command line on them."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokmill
from tokmill.cli import main

RECIPE = """\
name: small
seed: 7
sources:
  - name: web
    domain: web
    license: CC-BY-4.0
    files: web/*.jsonl
  - name: notes
    domain: prose
    files: notes.txt
    unit: paragraph
filters:
  - {measure: chars, min: 5, reason: too_short}
license: {allow: [MIT, "CC-BY-*"], unknown: keep}
dedup: {exact: true}
split: {valid_fraction: 0.1}
tokenizer:
  path: tok.json
  sha256: "%s"
  eos: "<|endoftext|>"
mixture: {weights: {web: 0.6, prose: 0.4}, tokens: 300}
pack: {length: 16}
builds:
  - {name: rows, format: memmap}
  - {name: mega, format: megatron}
"""

HOOKS = """\
def raises_when_made(**options):
    raise ValueError("no model here")

def makes_nothing(**options):
    return 7

not_a_function = 3
"""


class Workspace(NamedTuple):
    directory: Path
    text: str

    @property
    def out(self) -> Path:
        return self.directory / "out" / "small"


@contextmanager
def made_workspace() -> Iterator[Workspace]:
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    (directory / "web").mkdir()
    (directory / "other").mkdir()
    pages = [{"id": f"p{n}", "text": f"Page {n} tells of mill number {n * n}."} for n in range(40)]
    (directory / "web" / "a.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    notes = "\n\n".join(f"Note {n}: the river stands {n + 3} feet high." for n in range(40))
    (directory / "notes.txt").write_text(notes)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [notes],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.save(str(directory / "tok.json"))
    (directory / "hooks.py").write_text(HOOKS)
    text = RECIPE % hashlib.sha256((directory / "tok.json").read_bytes()).hexdigest()
    (directory / "recipe.yaml").write_text(text)
    tokmill.run(directory / "recipe.yaml", workers=1)
    yield Workspace(directory, text)
    shutil.rmtree(directory)


def command(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def contents(directory: Path) -> dict[str, tuple[int, str]]:
    """Time and digest of everything below it."""
    return {
        path.relative_to(directory).as_posix(): (
            path.lstat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(directory.rglob("*"))
    }


class Case(NamedTuple):
    """An edit of the recipe (`old` becomes `new`), files beside it, and what is said of it."""

    old: str
    new: str
    place: str
    message: str
    next: str
    files: dict[str, bytes]


def edit(old: str, new: str, place: str, message: str, next: str = "", **files: bytes) -> Case:
    return Case(old, new, place, message, next, files)


CHECK = "tokmill recipe check"  # what to do about several, or about a key
NOTES, WEB = "files: notes.txt", "files: web/*.jsonl"
PATH = "path: tok.json"


def jsonl(data: bytes, name: str = "x.jsonl") -> dict[str, bytes]:
    return {name: data}
