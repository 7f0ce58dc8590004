"""A directory of recipes, and what they were milled into, each of them once."""

from __future__ import annotations

import re
from pathlib import Path

import tokmill
from tokmill.pipeline.run import RunResult

NAMES = (
    "healing",
    "mini-translation",
    "stage-a",
    "stage-a-fast",
    "three-domains",
    "three-domains-wikipedia",
    "web-mixture",
    "web-mixture-scored",
)

# A tokenizer that every machine has, for a recipe whose file of ranks this one lacks.
_TRAINED = "tokenizer: {train: {model: byte_bpe, vocab_size: 4096}, eos: '<|endoftext|>'}\n"


class Shelved:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.has_o200k = (directory / "tok" / "o200k_base.tiktoken").exists()

    def path(self, name: str) -> Path:
        path = self.directory / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        named = re.search(r"path: (tok/\S+)", text)
        if named and not (self.directory / named[1]).exists():
            path.write_text(re.sub(r"tokenizer:\n(  .*\n)+", _TRAINED, text), encoding="utf-8")
        return path

    def changed(self, name: str, *replacements: tuple[str, str]) -> Path:
        """A copy of the recipe with other words in it, each of which must be there."""
        text = self.path(name).read_text(encoding="utf-8")
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        path = self.directory / f"{name}-changed.yaml"
        path.write_text(text, encoding="utf-8")
        return path


class Milled:
    def __init__(self, shelved: Shelved) -> None:
        self._shelved = shelved
        self._results: dict[str, RunResult] = {}

    def __call__(self, name: str) -> RunResult:
        if name not in self._results:
            out = self._shelved.directory / "out" / name
            self._results[name] = tokmill.run(self._shelved.path(name), out, workers=1)
        return self._results[name]

    def build(self, name: str) -> Path:
        found: Path = self(name).out / "build"
        (only,) = sorted(found.iterdir())
        return only
