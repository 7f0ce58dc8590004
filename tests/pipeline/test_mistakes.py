"""Mistakes that people make in recipes: each is told before any work, with its place and what to do,
and changes nothing.

A workspace has a finished run. Each mistake is an edit of its recipe, or a file beside it;
`recipe check`, `plan` and `run` are then given the edited one, for the directory of the finished run.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokmill
from mill import write_recipe
from tokmill.cli import main
from tokmill.errors import EmptyGlob, InputError, RecipeError

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


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
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
TEXT = ("unit: paragraph", "unit: document")


def jsonl(data: bytes, name: str = "x.jsonl") -> dict[str, bytes]:
    return {name: data}


# -- keys and values
KEYS = {
    "a key with a typo": edit("filters:", "filtres:", "line 12: filtres", "did you mean `filters`?", CHECK),
    "a key of a source with a typo": edit(
        "license: CC", "licence: CC", "line 6: sources[0].licence", "did you mean `license`?", CHECK
    ),
    "a nested key with a typo": edit("length: 16", "legnth: 16", "line 22: pack.legnth", "`length`", CHECK),
    "a key of nowhere": edit("seed: 7", "qqqq: 7", "line 2: qqqq", "unknown key; known keys: builds", CHECK),
    "a choice with a typo": edit(
        "unit: paragraph", "unit: paragraphs", "line 11: sources[1].unit", "did you mean `paragraph`?", CHECK
    ),
    "a number in quotes": edit("seed: 7", 'seed: "7"', "line 2: seed", 'valid integer (got "7")', CHECK),
    "a number for a name": edit("name: small", "name: 12", "line 1: name", "put it in quotes", CHECK),
    "a negative seed": edit("seed: 7", "seed: -7", "line 2: seed", "greater than or equal to 0", CHECK),
    "a list for a section": edit("{length: 16}", "[16]", "line 22: pack", "(got a list)", CHECK),
    "a section for a list": edit(
        'allow: [MIT, "CC-BY-*"]', "allow: {MIT: 1}", "line 14: license.allow", "valid list", CHECK
    ),
    "yes for true": edit("exact: true", "exact: yes", "line 15: dedup.exact", "write true or false", CHECK),
    "a key twice": edit("seed: 7", "seed: 7\nseed: 8", "line 3: seed", "key occurs twice", CHECK),
    "no eos": edit('  eos: "<|endoftext|>"\n', "", "line 17: tokenizer.eos", "is required", CHECK),
    "no name": edit("name: small\n", "", "name", "is required", CHECK),
    "two sources of one name": edit(
        "name: notes", "name: web", "line 8: sources[1].name", "sources[0] is called web too", CHECK
    ),
    "two builds of one name": edit(
        "name: mega", "name: rows", "line 25: builds[1].name", "builds[0] is called rows too", CHECK
    ),
    "an unknown format": edit(
        "format: memmap", "format: memmapp", "line 24: builds[0].format", "did you mean `memmap`?", CHECK
    ),
    "a negative budget": edit("tokens: 300", "tokens: -3", "line 21: mixture.tokens", "an amount", CHECK),
    "no budget at all": edit("tokens: 300", "tokens: 0", "line 21: mixture.tokens", "an amount", CHECK),
    "a budget of no known unit": edit("tokens: 300", "tokens: 3X", "line 21: mixture.tokens", "200M", CHECK),
    "two budgets": edit(
        "tokens: 300", "tokens: 300, blocks: 3", "line 21: mixture.blocks", "keep one", CHECK
    ),
    "nothing left to train on": edit(
        "valid_fraction: 0.1",
        "valid_fraction: 0.5, test_fraction: 0.5",
        "line 16: split.test_fraction",
        "nothing is left to train on",
        CHECK,
    ),
    "a share above one": edit(
        "valid_fraction: 0.1", "valid_fraction: 10", "line 16: split.valid_fraction", "less than", CHECK
    ),
    "min above max": edit(
        "min: 5,", "min: 5, max: 3,", "line 13: filters[0].min", "nothing would be kept", CHECK
    ),
    "a rule without a bound": edit("min: 5, ", "", "line 13: filters[0]", "needs `min` or `max`", CHECK),
    "a sha256 that is none": edit('sha256: "', 'sha256: "xyz', "line 19: tokenizer.sha256", "match", CHECK),
    "a template with a lone brace": edit(
        WEB, WEB + '\n    template: "{text"', "line 8: sources[0].template", "for literal braces", CHECK
    ),
    "files and hub": edit(
        WEB, WEB + "\n    hub: {dataset: a/b}", "line 4: sources[0]", "either `files`, `hub`", CHECK
    ),
    "an empty limit": edit(WEB, WEB + "\n    limit: {}", "line 8: sources[0].limit", "needs `docs`", CHECK),
    "a name with a slash": edit("name: small", "name: a/b", "line 1: name", "match pattern", CHECK),
    "a domain that no source has": edit(
        "filters:", "domains: {wbe: {redact: [email]}}\nfilters:", "line 12: domains.wbe", "no source", CHECK
    ),
    "a redaction of nothing known": edit(
        "filters:", "redact: [emial]\nfilters:", "line 12: redact[0]", "did you mean `email`?", CHECK
    ),
    "a priority for nobody": edit(
        "{exact: true}", "{exact: true, priority: [wb]}", "line 15: dedup.priority", "called wb", CHECK
    ),
    "a build of a source that is not there": edit(
        "format: megatron", "format: megatron, sources: [nots]", "line 25: builds[1].sources", "nots", CHECK
    ),
    "repeat without an end": edit(
        "tokens: 300", "exhausted: repeat", "line 21: mixture.exhausted", "without a target", CHECK
    ),
}

# -- YAML
YAML = {
    "a tab for an indent": edit(
        "    domain: web", "\tdomain: web", "line 5, column 1", "'\\t'", "indent with spaces, never with tabs"
    ),
    "a wrong indent": edit("    domain: web", "   domain: web", "line 5, column 4", "YAML", "indentation"),
    "an open bracket": edit("{length: 16}", "{length: 16", "line 23, column", "YAML", "brackets"),
    "an open quote": edit("name: small", 'name: "small', "column", "(it begins in line 1)", "quotes"),
    "a colon in a value": edit("name: small", "name: a: b", "line 1, column 8", "mapping values", "quotes"),
    "an alias": edit("seed: 7", "seed: *x", "line 2, column 7", "no aliases", "fix this place"),
    "a tag": edit("seed: 7", "seed: !!int 7", "line 2, column 7", "no tags", "fix this place"),
    "two documents": edit("seed: 7", "---\nseed: 7", "line 2, column 1", "YAML", "fix this place"),
    "no text in UTF-8": edit(
        "name: small", "name: sm\udce4ll", "line 1, column 9", "UTF-8", "fix this place"
    ),
}

# -- files
FILES = {
    "a directory that is not there": edit(
        WEB, "files: wb/*.jsonl", "line 7: sources[0].files", "matches no file", "no directory wb/"
    ),
    "a pattern that matches nothing": edit(
        WEB, "files: web/*.jsonll", "line 7: sources[0].files", "web/*.jsonll: the pattern", "a.jsonl"
    ),
    "a file that is not there": edit(
        NOTES, "files: nots.txt", "line 10: sources[1].files", "nots.txt: the pattern matches no file"
    ),
    "one pattern of two": edit(
        NOTES, "files: [notes.txt, nots.txt]", "line 10: sources[1].files[1]", "nots.txt: the pattern"
    ),
    "a directory for a file": edit(
        WEB,
        "files: web",
        "line 7: sources[0].files",
        "web: matches no file: it is a directory",
        "document: `directory: {path: web}` instead of `files`",
    ),
    "a directory with a slash": edit(
        WEB,
        "files: web/",
        "line 7: sources[0].files",
        "web/: matches no file: it is a directory",
        "`files: web/*.jsonl`",
    ),
    "a shard of many that is missing": edit(
        WEB, 'files: "web/{00..02}.jsonl"', "line 7: sources[0].files", "web/00.jsonl: the pattern"
    ),
    "numbers that run backwards": edit(
        WEB, "files: 'a-{5..1}.jsonl'", "line 7: sources[0].files", "`{5..1}` is 0 numbers", "smaller to the"
    ),
    "more numbers than anyone has": edit(
        WEB,
        "files: 'a-{0..999999999}.jsonl'",
        "line 7: sources[0].files",
        "`{0..999999999}` is 1,000,000,000 numbers",
        "100,000 at most",
    ),
    "a tar archive without its section": edit(
        WEB,
        "files: x.tar.gz",
        "x.tar.gz: is a tar archive, by its name",
        "`webdataset: {}`",
        **{"x.tar.gz": b"x"},
    ),
    "a tar archive of another end": edit(
        WEB,
        "files: x.tgz",
        "line 7: sources[0].files",
        "x.tgz: is a tar archive, by its name",
        "name it `x.tar.gz`",
        **{"x.tgz": b"x"},
    ),
    "pages of a source that has none": edit(
        WEB, f"{WEB}\n    extract: {{}}", "line 8: sources[0].extract", "is for web pages", CHECK
    ),
    "Markdown of an engine that writes none": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {engine: resiliparse, markup: markdown}",
        "line 9: sources[0].extract.markup",
        "`resiliparse` writes plain text; `tokmill` and `trafilatura` write Markdown",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "links in plain text": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {links: true}",
        "line 9: sources[0].extract.links",
        "are for `markup: markdown`",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "comments of an engine that cannot be asked for them": edit(
        WEB,
        "files: x.warc\n    warc: {}\n    extract: {engine: resiliparse, comments: true}",
        "line 9: sources[0].extract.comments",
        "`resiliparse` keeps what it takes for text; the other two can be asked",
        CHECK,
        **{"x.warc": b"x"},
    ),
    "a web archive without its section": edit(
        WEB,
        "files: x.warc.gz",
        "x.warc.gz: is a web archive, by its name",
        "`warc: {}`",
        **{"x.warc.gz": b"x"},
    ),
    "a dump without its section": edit(
        WEB,
        "files: x.7z",
        "line 7: sources[0].files",
        "x.7z: is a dump of Stack Exchange",
        "`stackexchange: {}`",
        **{"x.7z": b"x"},
    ),
    "XML without a section": edit(
        WEB,
        "files: x.xml.bz2",
        "line 7: sources[0].files",
        "x.xml.bz2: is XML, by its name",
        "`wikipedia: {}`",
        **{"x.xml.bz2": b"x"},
    ),
    "source code as records": edit(
        WEB,
        "files: x.py",
        "line 7: sources[0].files",
        "x.py: .py files are not records",
        "suffixes: [.py]}`",
        **{"x.py": b"x"},
    ),
    "a tar archive with another name": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "x.jsonl: is a tar archive, and its name does not say so",
        "give its name the end .tar, and say so: `webdataset: {}` in this source",
        **jsonl(b"a.txt".ljust(257, b"\0") + b"ustar\x0000".ljust(300, b"\0")),
    ),
    "an empty file": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "x.jsonl: the file is empty",
        "copied whole",
        **jsonl(b""),
    ),
    "a binary file": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "has no JSON object on any of its first lines",
        "convert the file",
        **jsonl(bytes(range(256)) * 40),
    ),
    "a JSON array": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "holds a JSON array, and should hold an object on each line",
        "name it x.json",
        **jsonl(b'[{"text": "a"}]\n'),
    ),
    "gzip without its suffix": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is compressed with gzip, and its name does not say so",
        "name it x.jsonl.gz",
        **jsonl(gzip.compress(b'{"text": "a"}\n')),
    ),
    "zstd in gzip's name": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "is compressed with zstd, and its name says something else",
        "name it x.jsonl.zst",
        **jsonl(b"\x28\xb5\x2f\xfd" + bytes(90), "x.jsonl.gz"),
    ),
    "Parquet in JSON's name": edit(
        WEB,
        "files: x.json",
        "line 7: sources[0].files",
        "is a Parquet file, and its name does not say so",
        "name it x.parquet",
        **jsonl(b"PAR1" + bytes(90), "x.json"),
    ),
    "Arrow in Parquet's name": edit(
        WEB,
        "files: x.parquet",
        "line 7: sources[0].files",
        "is an Arrow file, and its name says something else",
        "name it x.arrow",
        **jsonl(b"ARROW1" + bytes(90), "x.parquet"),
    ),
    "a page in CSV's name": edit(
        WEB,
        "files: x.csv",
        "line 7: sources[0].files",
        "is an HTML page",
        "download the file again",
        **jsonl(b"\n<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n", "x.csv"),
    ),
    "JSON lines in CSV's name": edit(
        WEB,
        "files: x.csv.gz",
        "line 7: sources[0].files",
        "holds JSON lines, and its name does not say so",
        "name it x.jsonl",
        **jsonl(gzip.compress(b'{"text": "a"}\n'), "x.csv.gz"),
    ),
    "one JSON object over several lines": edit(
        WEB,
        "files: x.json",
        "line 7: sources[0].files",
        "holds one JSON object over several lines",
        "jq -c '.KEY[]' FILE",
        **jsonl(b'{\n "data": [\n  {"text": "a"},\n  {"text": "b"}\n ]\n}\n', "x.json"),
    ),
    "a ZIP archive": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is a ZIP archive",
        "unpack it",
        **jsonl(b"PK\x03\x04" + bytes(90)),
    ),
    "no gzip": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "is not compressed with gzip, and its name says so",
        "name it x.jsonl",
        **jsonl(b'{"text": "a"}\n', "x.jsonl.gz"),
    ),
    "gzip that is cut": edit(
        WEB,
        "files: x.jsonl.gz",
        "line 7: sources[0].files",
        "truncated",
        "copy or download it again",
        **jsonl(gzip.compress(os.urandom(900))[:500], "x.jsonl.gz"),
    ),
    "no zstd": edit(
        WEB,
        "files: x.jsonl.zst",
        "line 7: sources[0].files",
        "is not compressed with zstd, and its name says so",
        "name it x.jsonl",
        **jsonl(b'{"text": "a"}\n', "x.jsonl.zst"),
    ),
    "no Parquet": edit(
        WEB,
        "files: x.parquet",
        "line 7: sources[0].files",
        "x.parquet",
        "copy",
        **jsonl(b'{"text": "a"}\n', "x.parquet"),
    ),
    "UTF-16": edit(
        WEB,
        "files: x.jsonl",
        "line 7: sources[0].files",
        "is text in UTF-16",
        "convert it to UTF-8",
        **jsonl('{"text": "a"}\n'.encode("utf-16")),
    ),
    "Latin-1": edit(
        NOTES + "\n    unit: paragraph",
        "files: x.txt",
        "line 10: sources[1].files",
        "is not UTF-8 (byte 3:",
        "convert the file",
        **jsonl("café au lait".encode("latin-1"), "x.txt"),
    ),
    "an unknown suffix": edit(
        WEB,
        "files: x.xlsx",
        "line 7: sources[0].files",
        "no reader for the suffix .xlsx",
        "known suffixes: .jsonl",
        **jsonl(b"a,b\n", "x.xlsx"),
    ),
    "a text that no record has": edit(
        WEB,
        WEB + "\n    fields: {text: txet}",
        "line 8: sources[0].fields",
        "the first records have no field `txet`; they have id, text",
        "did you mean `text`?",
    ),
    "an id that no record has": edit(
        WEB,
        WEB + "\n    fields: {id: idd}",
        "line 8: sources[0].fields",
        "`fields.id` names the field `idd`",
        "did you mean `id`?",
    ),
    "a template of what no record has": edit(
        WEB,
        WEB + '\n    template: "{question}"',
        "line 8: sources[0].template",
        "the first records have no field `question`",
        "`template` of this source",
    ),
    "benchmarks that are not there": edit(
        "{exact: true}",
        "{exact: true, against: {files: b/*.jsonl, fields: [text]}}",
        "line 15: dedup.against.files",
        "matches no file",
        "no directory b/",
    ),
}

# -- rules, and code of others
RULES = {
    "an unknown pack": edit(
        "filters:", "filters:\n  - gopher-qualty", "line 13: filters[0]", "no filter pack", "'gopher-quality'"
    ),
    "an unknown measure": edit(
        "measure: chars",
        "measure: charz",
        "line 13: filters[0]",
        "no measure `charz`",
        "did you mean `chars`",
    ),
    "a rule that the pack has not": edit(
        "filters:",
        "filters:\n  - {pack: gopher-quality, set: {min_wrds: 3}}",
        "line 13: filters[0]",
        "has no rule `min_wrds`",
        "did you mean `min_words`?",
    ),
    "two packs that edit lines": edit(
        "filters:",
        "filters:\n  - c4\n  - web-en",
        "line 12: filters",
        "two packs edit lines",
        "keep one of them",
    ),
    "an unknown licence": edit(
        "allow: [MIT,", "allow: [MITT,", "line 14: license.allow[0]", "'MITT' is not a known licence", "MIT"
    ),
    "an unknown licence of a domain": edit(
        "filters:",
        "domains: {web: {license: {deny: [Apachee-2.0]}}}\nfilters:",
        "line 12: domains.web.license.deny[0]",
        "'Apachee-2.0' is not a known licence",
        "Apache-2.0",
    ),
    "an unknown language": edit(
        "filters:", "language: {keep: [enn]}\nfilters:", "line 12: language.keep", "no language 'enn'", "en"
    ),
    "a hook that is not there": edit(
        "measure: chars",
        "measure: hoks.py:f",
        "line 13: filters[0]",
        "hoks.py:f: no such file",
        "relative to the recipe",
    ),
    "a function that the hook has not": edit(
        "measure: chars",
        "measure: hooks.py:f",
        "line 13: filters[0]",
        "there is no measure `f`",
        "after the colon",
    ),
    "a hook that raises": edit(
        "measure: chars",
        "measure: h.py:f",
        "line 13: filters[0]",
        "cannot be loaded (ZeroDivisionError: division by zero; line 2)",
        "fix the file",
        **{"h.py": b"\n1 / 0\n"},
    ),
    "a hook that is no Python": edit(
        "measure: chars",
        "measure: h.py:f",
        "line 13: filters[0]",
        "cannot be loaded (SyntaxError",
        "fix the file",
        **{"h.py": b"def f(:\n"},
    ),
    "a hook that is no function": edit(
        "measure: chars",
        "measure: hooks.py:not_a_function",
        "line 13: filters[0]",
        "is int 3, not a function",
        "name a function",
    ),
    "a transform that is not there": edit(
        "filters:",
        "transforms: [shout]\nfilters:",
        "line 12: transforms[0]",
        "no transform `shout`",
        "install",
    ),
    "a reader that is not there": edit(
        WEB, WEB + "\n    reader: epub", "line 8: sources[0].reader", "there is no reader `epub`", "install"
    ),
    "a format in a hook that is none": edit(
        "format: memmap",
        "format: 'hooks.py:not_a_function'",
        "line 24: builds[0].format",
        "is a int, not a tokmill.formats.Format",
        "name the record",
    ),
}

# -- tokenizer, mixture, builds
PATH = "path: tok.json"
PLUGIN = PATH + "\n  sha256: "
TOKENS = {
    "a tokenizer that is not there": edit(
        PATH, "path: tk.json", "line 18: tokenizer.path", "no such tokenizer file", "relative to the recipe"
    ),
    "a directory for a tokenizer": edit(
        PATH, "path: web", "line 18: tokenizer.path", "a directory without a tokenizer", "it should hold"
    ),
    "another file than the pinned one": edit(
        PATH, "path: notes.txt", "line 19: tokenizer.sha256", "its sha256 is", "restore the pinned file"
    ),
    "an eos that is not in it": edit(
        "<|endoftext|>", "</s>", "line 20: tokenizer.eos", "no token '</s>'", "<|endoftext|>"
    ),
    "an eos outside of it": edit(
        '"<|endoftext|>"', "100000", "line 20: tokenizer.eos", "eos id 100000 is outside", "<|endoftext|>"
    ),
    "an eos that text spells": edit(
        "<|endoftext|>", "a", "line 20: tokenizer.eos", "could end in its middle", "set `eos` to one of"
    ),
    "a control token that is not in it": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  control: ["<|user|>"]',
        "line 21: tokenizer.control[0]",
        "no control token '<|user|>'",
        "choose from <|endoftext|>",
    ),
    "a padded vocabulary that is too small": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  padded_vocab_size: 64',
        "line 21: tokenizer.padded_vocab_size",
        "padded_vocab_size is 64",
        "or more, or leave it out",
    ),
    "an encoding for a file that has its own": edit(
        '"<|endoftext|>"',
        '"<|endoftext|>"\n  encoding: cl100k_base',
        "line 18: tokenizer.path",
        "is for tiktoken rank files",
        "leave encoding out",
    ),
    "ids that two bytes cannot hold": edit(
        '"<|endoftext|>"\n',
        '"<|endoftext|>"\n  padded_vocab_size: 70000\n',
        "line 25: builds[0].dtype",
        "vocab 70,000 does not fit uint16",
        "set `dtype: int32`",
    ),
    "a weight for nobody": edit(
        "weights: {web: 0.6,",
        "weights: {wbe: 0.6,",
        "line 21: mixture.weights.wbe",
        "no domain is called wbe",
        "did you mean web?",
    ),
    "a domain without a weight": edit(
        "{web: 0.6, prose: 0.4}",
        "{web: 1}",
        "line 21: mixture.weights",
        "no weight for the domain prose",
        "0 leaves it out",
    ),
    "weights of nothing": edit(
        "{web: 0.6, prose: 0.4}",
        "{web: 0, prose: 0}",
        "line 21: mixture.weights",
        "all weights are 0",
        "weight",
    ),
    "a weight of a source for nobody": edit(
        "tokens: 300",
        "tokens: 300, sources: {web: {wib: 1}}",
        "line 21: mixture.sources.web.wib",
        "no source is called wib",
        "did you mean web?",
    ),
    "a budget beyond all bytes": edit(
        "tokens: 300",
        "tokens: 200M",
        "line 21: mixture.tokens",
        "asks for 120,000,000 tokens of the domain web, which cannot give more than",
        "ask for less, add files, or set `exhausted: renormalize`",
    ),
    "rows that cannot be balanced": edit(
        "{length: 16}",
        "{length: 16, mix_domains: true}",
        "line 22: pack.mix_domains",
        "balanced",
        "balance: none",
    ),
    "rows of a layout that has none": edit(
        "{length: 16}",
        "{length: 16, layout: indexed}",
        "line 24: builds[0]",
        "is made of rows",
        "another layout",
    ),
}
# what a case needs besides its own edit
BESIDES = {
    "ids that two bytes cannot hold": ("format: memmap}", "format: memmap, dtype: uint16}"),
    "rows that cannot be balanced": ("tokens: 300", "tokens: 300, balance: smallest"),
}

CASES = {**KEYS, **YAML, **FILES, **RULES, **TOKENS}


def write_case(workspace: Workspace, name: str) -> tuple[Path, list[Path]]:
    case, text = CASES[name], workspace.text
    for old, new in [(case.old, case.new), BESIDES.get(name, ("", ""))]:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = workspace.directory / "case.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    written = [path]
    for file, data in case.files.items():
        (workspace.directory / file).write_bytes(data)
        written.append(workspace.directory / file)
    return path, written


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_with_its_place_and_what_to_do_and_nothing_changes(
    workspace: Workspace, name: str
) -> None:
    case = CASES[name]
    path, written = write_case(workspace, name)
    try:
        before = contents(workspace.directory)
        shown = command("run", path, "--out", workspace.out, "--workers", "1")
        assert shown.exit_code == 1, shown.output
        assert shown.stdout == ""
        for part in (str(path), case.place, case.message):
            assert part in shown.stderr
        *_, last = shown.stderr.splitlines()
        assert last.startswith("  next: ")
        assert case.next in last
        for verb in (["plan"], ["recipe", "check"]):
            assert command(*verb, path, "--out", workspace.out).stderr == shown.stderr
        assert contents(workspace.directory) == before
    finally:
        for file in written:
            file.unlink()


def test_there_are_more_than_fifty_five_of_them() -> None:
    assert len(CASES) >= 55


def test_after_all_mistakes_the_finished_run_is_still_finished(workspace: Workspace) -> None:
    assert command("verify", workspace.out).exit_code == 0
    shown = command("run", workspace.directory / "recipe.yaml")
    assert "nothing to do" in shown.stdout


# -- many at once


def test_seven_mistakes_of_seven_kinds_are_told_together_in_the_order_of_the_file(
    workspace: Workspace,
) -> None:
    text = workspace.text
    for old, new in [
        ("seed: 7", "sed: 7"),
        (WEB, "files: wb/*.jsonl"),
        ("measure: chars", "measure: charz"),
        ("allow: [MIT,", "allow: [MITT,"),
        ("<|endoftext|>", "</s>"),
        ("web: 0.6", "wbe: 0.6"),
        ("format: memmap", "format: memmapp"),
    ]:
        assert old in text
        text = text.replace(old, new)
    path = workspace.directory / "seven.yaml"
    path.write_text(text)
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    head, *lines, last = shown.stderr.splitlines()
    assert head == f"RecipeError {path}: 7 mistakes"
    places = ["2: sed", "7: sources[0].files", "13: filters[0]", "14: license.allow[0]", "20: tokenizer.eos"]
    places += ["21: mixture.weights.wbe", "24: builds[0].format"]
    assert [line.split(": ", 2)[:2] for line in lines] == [
        [f"  line {place.split(': ')[0]}", place.split(": ")[1]] for place in places
    ]
    assert last == "  next: fix them and run `tokmill recipe check`; `tokmill help KEY` explains a key"


def test_a_source_that_cannot_be_used_does_not_move_the_lines_and_places_of_those_after_it(
    workspace: Workspace,
) -> None:
    text = workspace.text.replace("  - name: web\n", "  - nme: web\n").replace(NOTES, "files: nots.txt")
    path = workspace.directory / "moved.yaml"
    path.write_text(text)
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert [line.split(": ", 2)[:2] for line in shown.stderr.splitlines()[1:-1]] == [
        ["  line 4", "sources[0].name"],
        ["  line 4", "sources[0].nme"],
        ["  line 10", "sources[1].files"],
    ]


def test_one_mistake_keeps_its_kind_and_several_are_one_error(workspace: Workspace) -> None:
    content = {"name": "x", "sources": [{"name": "a", "files": str(workspace.directory / "none.txt")}]}
    with pytest.raises(EmptyGlob, match=r"the recipe, sources\[0\].files: .*none.txt: the pattern"):
        tokmill.recipe_check(content)
    content["filters"] = ["nopack"]
    with pytest.raises(RecipeError, match=r"2 mistakes\n  sources\[0\].files: .*\n  filters\[0\]: "):
        tokmill.run(content, workspace.directory / "never")
    assert not (workspace.directory / "never").exists()


# -- budgets


def rated_corpus(directory: Path, times: int, tokens: int) -> Path:
    """Every document is built `times` times; the target has so many tokens."""
    directory.mkdir()
    for name, word in (("good", "theorem"), ("bad", "sale")):
        lines = [json.dumps({"text": f"{word} number {number} of {name} " * 8}) for number in range(40)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    sides = {"positive": [{"source": "good"}], "negative": [{"source": "bad"}]}
    repeat = {"by": "score.good", "percentiles": {"0": times}}
    return write_recipe(
        directory,
        sources=[{"name": name, "files": f"{name}.jsonl"} for name in ("good", "bad")],
        filters=None,
        scores=[{"name": "good", "train": sides, "percentile": "corpus"}],
        mixture={"tokens": tokens, "repeat": repeat},
        builds=[{"name": "rows", "format": "memmap"}],
    )


def test_a_budget_that_only_repeated_documents_reach_is_no_mistake(tmp_path: Path) -> None:
    first = rated_corpus(tmp_path / "first", 1, 100)
    size = sum(path.stat().st_size for path in first.parent.glob("*.jsonl"))
    target = 3 * size  # more than the 2 x that a pass is trusted with
    out = tokmill.run(rated_corpus(tmp_path / "often", 40, target), workers=1).out
    written = sum(path.stat().st_size // 4 for path in (out / "build/rows").glob("train/*.mmap"))
    assert 2 * size < written <= target
    for times in (1, 2):
        with pytest.raises(InputError, match=r"mixture\.tokens: asks for") as refused:
            tokmill.plan(rated_corpus(tmp_path / f"{times} times", times, 5 * size))
        most = f"cannot give more than {2 * times * size:,} bytes of text"
        assert most + (", each 2 times" if times == 2 else "") in str(refused.value)


# -- the command line


def test_out_that_is_a_file_is_told(workspace: Workspace) -> None:
    recipe, file = workspace.directory / "recipe.yaml", workspace.directory / "notes.txt"
    for out in (file, file / "below"):
        shown = command("run", recipe, "--out", out)
        assert shown.exit_code == 1
        assert (
            f"--out: {file}: cannot write here (it is a file, and results need a directory)" in shown.stderr
        )
        assert "next: choose another directory with `--out`" in shown.stderr


@pytest.mark.parametrize("what", ["the recipe", "a file"])
def test_what_may_not_be_written_or_read_is_told(workspace: Workspace, what: str) -> None:
    """As somebody who is not root, whom nothing is forbidden."""
    directory = workspace.directory
    command("recipe", "check", directory / "recipe.yaml")  # loads what it needs
    locked = directory / "locked"
    locked.mkdir()
    (directory / "secret.txt").write_text("hush")
    (directory / "secret.txt").chmod(0)
    (directory / "secret.yaml").write_text(workspace.text.replace(NOTES, "files: secret.txt"))
    locked.chmod(0o555)
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        if what == "a file":
            shown = command("recipe", "check", directory / "secret.yaml", "--out", Path("/tmp/never"))
            told = ["line 10: sources[1].files: ", "secret.txt: cannot be read (Permission denied)"]
        else:
            shown = command("run", directory / "recipe.yaml", "--out", locked / "out")
            told = [
                f"--out: {locked}: cannot write here (no permission)",
                "next: choose another directory with `--out`",
            ]
    finally:
        os.seteuid(was)
        for path in (locked, directory / "secret.txt"):
            path.chmod(0o755)
        locked.rmdir()
        (directory / "secret.txt").unlink()
        (directory / "secret.yaml").unlink()
    assert shown.exit_code == 1
    for part in told:
        assert part in shown.stderr


def test_an_input_that_no_disk_here_can_hold_again_is_told_before_it_is_read(workspace: Workspace) -> None:
    file, path = workspace.directory / "huge.txt", workspace.directory / "huge.yaml"
    size = 9 * shutil.disk_usage(workspace.directory).free
    with file.open("wb") as opened:
        opened.write(b"a" * 70_000)
        opened.truncate(size)  # a hole: it takes no room
    path.write_text(workspace.text.replace(NOTES, "files: huge.txt"))
    try:
        shown = command("run", path, "--out", workspace.directory / "never")
    finally:
        file.unlink()
        path.unlink()
    assert shown.exit_code == 1
    assert f"the input has {size / 1e9:,.1f} GB, a run needs roughly as much, and " in shown.stderr
    assert "next: choose another disk with `--out`, or `limit` the sources" in shown.stderr
    assert not (workspace.directory / "never").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{}/none.yaml"], "none.yaml' does not exist"),
        (["run", "{}"], "is a directory"),
        (["run", "{}/recipe.yaml", "--engine", "spark"], "'spark' is not one of"),
        (["run", "{}/recipe.yaml", "--wokers", "2"], "--wokers"),
        (["rnu", "{}/recipe.yaml"], "rnu"),
        (["recipe", "check"], "Missing argument 'RECIPE'"),
    ],
)
def test_a_wrong_argument_is_told_with_how_to_ask_for_help(
    workspace: Workspace, arguments: list[str], message: str
) -> None:
    before = contents(workspace.directory)
    shown = command(*(argument.format(workspace.directory) for argument in arguments))
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert "--help" in shown.stderr
    assert contents(workspace.directory) == before


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- a list\n", "words\n"])
def test_what_is_no_recipe_at_all_is_told_with_the_way_to_start(workspace: Workspace, text: str) -> None:
    path = workspace.directory / "none.yaml"
    path.write_text(text)
    try:
        shown = command("run", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    assert f"RecipeError {path}: is not a mapping of sections" in shown.stderr
    assert "next: see `tokmill recipe init`" in shown.stderr


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("raises_when_made", "failed (ValueError: no model here; line 2)"),
        ("makes_nothing", "returned a int that has no encode_batch, decode, token_id"),
    ],
)
def test_a_tokenizer_of_others_that_cannot_be_made_is_told(
    workspace: Workspace, factory: str, message: str
) -> None:
    text = "".join(line for line in workspace.text.splitlines(True) if "sha256" not in line)
    path = workspace.directory / "plugin.yaml"
    path.write_text(text.replace(PATH, f"plugin: hooks.py:{factory}"))
    try:
        shown = command("recipe", "check", path)
    finally:
        path.unlink()
    assert shown.exit_code == 1
    assert "line 18: tokenizer.plugin: " in shown.stderr
    assert message in shown.stderr


def test_a_step_that_is_not_there_is_told_and_the_finished_run_stays_finished(workspace: Workspace) -> None:
    recipe, before = workspace.directory / "recipe.yaml", contents(workspace.directory)
    shown = command("run", recipe, "--until", "tokns")
    assert shown.exit_code == 1
    steps = (
        "ingest, ingest/web, clean, clean/web, ingest/notes, clean/notes, dedup, split, tokenizer, tokens, "
        "mixture, build"
    )
    assert shown.stderr.splitlines() == [
        f"RecipeError {recipe}, --until: no step is called tokns",
        f"  next: one of: {steps}, build/rows, build/mega",
    ]
    assert contents(workspace.directory) == before
    for step in tokmill.plan(recipe).steps:
        assert command("plan", recipe, "--until", step).exit_code == 0


# -- every key


def explained(*arguments: str | Path) -> dict[str, tuple[Any, str]]:
    shown = command("recipe", "check", *arguments, "--explain", "--json")
    assert shown.exit_code == 0, shown.output
    return {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)["explained"]}


def test_every_key_is_explained_by_its_line_or_as_a_default(workspace: Workspace) -> None:
    found = explained(workspace.directory / "recipe.yaml")
    assert found["seed"] == (7, "line 2")
    assert found["sources[1].unit"] == ("paragraph", "line 11")
    assert found["sources[0].unit"] == ("document", "default")
    assert found["split.valid_fraction"] == ("0.1", "line 16")
    assert found["pack.tail"] == ("drop", "default")
    assert found["builds[1].format"] == ("megatron", "line 25")
    assert found["web: chars.min"] == ("chars >= 5, or too_short", "line 13")


def test_how_a_source_is_cleaned_is_explained_by_source_domain_and_pack(workspace: Workspace) -> None:
    path = workspace.directory / "explained.yaml"
    text = workspace.text.replace(WEB, WEB + "\n    clean: {redact: [email]}")
    packs = "domains:\n  prose:\n    filters: [{pack: gopher-quality, set: {min_words: 30}}]\nfilters:"
    path.write_text(text.replace("filters:", packs))
    try:
        found = explained(path)
    finally:
        path.unlink()
    assert found["web: redact"] == (["email"], "sources[0].clean, line 8")
    assert found["notes: redact"] == ([], "default")
    assert found["notes: filters"][1] == "domains.prose, line 15"
    assert found["notes: gopher-quality.min_words"][0].startswith("non_symbol_words >= 30")
    assert found["notes: gopher-quality.min_words"][1] == "line 15"
    assert found["notes: gopher-quality.max_words"][1] == "pack gopher-quality"
    assert "web: gopher-quality.min_words" not in found


def test_what_is_explained_is_a_line_for_each_key(workspace: Workspace) -> None:
    shown = command("recipe", "check", workspace.directory / "recipe.yaml", "--explain")
    lines = shown.stdout.splitlines()
    assert any(line.split() == ["seed", "7", "line", "2"] for line in lines)
    assert lines[-1].startswith("✓ ")
