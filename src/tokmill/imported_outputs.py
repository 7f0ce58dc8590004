"""What other projects' lists of data say about tokens: the tokenizer's file, and what is written where.

tokenizer: tok/spm.model                          path, sha256 and eos, read from the file where it is at hand
output_dir: /data/out                             `--out` of a run
outputs: {dir: /data/out, format: npy}            the same, and a build in that format
outputs: [{name: rows, format: memmap}, …]        builds
"""

from __future__ import annotations

import re
from pathlib import Path

from tokmill.errors import TokmillError
from tokmill.imported_sources import moved_path, to_name
from tokmill.manifest import Json
from tokmill.recipe_lines import Mapping, Value
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.load import find_eos, load_tokenizer

_TOKENIZER = ("tokenizer", "tokenizer_path", "tokenizer_file", "tokenizer_name_or_path", "tokenizer_name")
_FILE = re.compile(r"\.(json|model|tiktoken)$")
_DIRECTORY = ("output_dir", "out_dir", "output_path", "output", "save_dir")
_WITHIN = ("dir", "directory", "path", *_DIRECTORY)
_FORMATS = ("memmap", "megatron", "npy", "parquet", "token_cache")
_USUAL_EOS = {".model": "</s>"}


class Outputs:
    """Where results go and as what, taken from the top of the file."""

    def __init__(self, top: Mapping, path: Path, base: Path) -> None:
        self._top, self._path, self._base = top, path, base
        self.out: str | None = None
        self.builds: list[Json] = []
        directory, outputs = top.take(*_DIRECTORY), top.take("outputs", "builds")
        for item in outputs.value if outputs is not None and isinstance(outputs.value, list) else [outputs]:
            if item is not None:
                self._add(item)
        if directory is not None:
            self._put(top, directory)
        self._build(top, top.take("output_format"), "rows")

    def tokenizer(self) -> Json | None:
        """The section of a recipe; None where the file names none that could be one."""
        given = self._top.take(*_TOKENIZER)
        inner = given.value if given is not None and isinstance(given.value, Mapping) else None
        named = inner.take("path", "file", "model", "name") if inner is not None else given
        if given is None or named is None:
            return None
        if not isinstance(named.value, str) or not _FILE.search(named.value):
            why = "no file of a tokenizer; name one: `tokenizer: {path: …, sha256: …, eos: …}`; one is trained otherwise"
            self._top.tell(named, why)
            return None
        section: Json = {"path": moved_path(named.value, self._path, self._base)}
        eos = inner.take("eos", "eos_token", "eos_id") if inner is not None else None
        sha256 = inner.take_text("sha256") if inner is not None else None
        file = self._base / Path(section["path"]).expanduser()
        if sha256 is None and file.is_file():
            sha256 = file_sha256(file)
        if sha256 is not None:
            section["sha256"] = sha256
        return section | {"eos": eos.value if eos is not None else self._eos(file, named)}

    def _eos(self, file: Path, named: Value) -> str:
        """What the file says itself; what such files usually have, and a word, where it cannot be asked."""
        try:
            return find_eos(load_tokenizer(file))
        except TokmillError:
            usual = _USUAL_EOS.get(file.suffix, "<|endoftext|>")
            self._top.tell(named, f"cannot be read here; a document is taken to end in {usual}: check `eos`")
            return usual

    def _add(self, item: Value) -> None:
        """One of `outputs`: a directory, or a mapping that says a format, a directory or both."""
        if not isinstance(item.value, Mapping):
            self._put(self._top, item)
            return
        inner = item.value
        name = inner.take_text("name") or "rows"
        if (directory := inner.take(*_WITHIN)) is not None:
            self._put(inner, directory)
        self._build(inner, inner.take("format", "output_format", "type"), name)

    def _put(self, owner: Mapping, directory: Value) -> None:
        if not isinstance(directory.value, str):
            owner.tell(directory, "should be a directory")
        elif self.out is not None:
            owner.tell(directory, f"a run writes all into one directory, {self.out}")
        else:
            self.out = directory.value

    def _build(self, owner: Mapping, form: Value | None, name: str) -> None:
        if form is None:
            return
        if form.value not in _FORMATS:
            owner.tell(form, f"no format that is written; there are {', '.join(_FORMATS)}")
            return
        taken = {build["name"] for build in self.builds}
        name = to_name(name)
        numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
        name = name if name not in taken else next(other for other in numbered if other not in taken)
        self.builds.append({"name": name, "format": form.value})
