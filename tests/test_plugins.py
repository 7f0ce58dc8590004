"""Readers, measures, transforms, formats and tokenizers of somebody else:
installed, or in a file beside the recipe."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill
from mill import tokmill as command
from tokmill import Source
from tokmill.artifacts import hooks, packages, plugins
from tokmill.errors import InputError, RecipeError, TokmillError
from tokmill.loader import open_curriculum, open_dataset
from tokmill.sources.readers import READERS
from tokmill.sources.reading import Reader, Reading, Record, Taken, gather, whole_file
from tokmill.storage.location import InputFile
from tokmill.storage.records import Span
from written import load_manifest, load_table

TOYS = Path(__file__).with_name("toys.py").read_text()
FOOTER = "\n-- \nsent from the mill"
NAMES = {
    "readers": ("box", "read_box"),
    "measures": ("exclamations", "exclamations"),
    "transforms": ("without-footer", "without_footer"),
    "formats": ("lines", "LINES"),
    "tokenizers": ("letters", "Letters"),
}
INSTALLED = {kind: name for kind, (name, _) in NAMES.items()}
HOOKS = {kind: f"hooks.py:{attribute}" for kind, (_, attribute) in NAMES.items()}


def texts() -> dict[str, str]:
    """Every third has a footer; d7 is a footer alone, d9 shouts."""
    found = {f"d{n}": f"Document {n} of the mill says {n * n}." + FOOTER * (n % 3 == 0) for n in range(40)}
    return {**found, "d7": FOOTER, "d9": "Grain! Flour! Bread! More! Now!"}


def write_corpus(directory: Path, **sections: Any) -> Path:
    """Two files that only the reader knows, and a recipe."""
    directory.mkdir(parents=True, exist_ok=True)
    items = list(texts().items())
    for number, part in enumerate((items[:25], items[25:])):
        boxed = "@@\n".join(f"{doc_id}\n\n{text}" for doc_id, text in part)
        (directory / f"mail-{number}.box").write_text(boxed)
    (directory / "hooks.py").write_text(TOYS)
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe(HOOKS, **sections)))
    return path


def recipe(names: dict[str, str], **sections: Any) -> dict[str, Any]:
    whole = {
        "name": "toys",
        "sources": [
            {
                "name": "mail",
                "files": "*.box",
                "reader": names["readers"],
                "options": {"separator": "@@"},
                "fields": {"id": "name", "text": "body", "meta": ["number"]},
            }
        ],
        "transforms": [names["transforms"]],
        "filters": [{"measure": names["measures"], "max": 3}],
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"plugin": names["tokenizers"], "options": {"end": "<stop>"}, "eos": "<stop>"},
        "pack": {"length": 32},
        "builds": [
            {"name": "theirs", "format": names["formats"]},
            {"name": "ours", "format": "memmap"},
        ],
    }
    return {key: value for key, value in {**whole, **sections}.items() if value is not None}


# --- a package in a fresh environment, and a file beside the recipe ---

DRIVER = """
import json, sys
from pathlib import Path
import tokmill
from tokmill.loader import open_dataset

def main(recipe, hooks, *engines):
    told = {"digests": {}}
    ways = {"one": {"workers": 1}, "three": {"workers": 3}, "ray": {"workers": 2, "engine": "ray"}}
    for name, options in ways.items():
        if name not in engines:
            continue
        out = tokmill.run(recipe, Path(recipe).parent / name, **options).out
        verified = tokmill.verify(out)
        assert verified.problems == [], verified.problems
        told["digests"][name] = verified.digest
    dataset = open_dataset(out / "build" / "theirs", hooks=hooks or None)
    told["rows"] = [example["ids"].tolist() for example in dataset]
    print(json.dumps(told))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def build_wheel(directory: Path, code: str = TOYS, version: str = "1.0") -> Path:
    """As any build backend makes it."""
    info = f"toys-{version}.dist-info"
    points = "".join(f"[tokmill.{kind}]\n{name} = their_toys:{a}\n" for kind, (name, a) in NAMES.items())
    files = {
        "their_toys.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: toys\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        for name, text in files.items()
    }
    record = [f"{name},sha256={digests[name]},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    path = directory / f"toys-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


class Environment:
    """A fresh one, that sees the packages of this one and has others besides."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, symlinks=True)  # with a pip of its own it takes 5 CPU seconds
        self.python = directory / "bin/python"
        (site,) = (directory / "lib").glob("python*/site-packages")
        (site / "ours.pth").write_text("\n".join(path for path in sys.path if path) + "\n")

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        how = ["install", "-q", "--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run([*pip, *how, str(wheel)], capture_output=True, check=True)

    def run(self, *arguments: str | Path) -> str:
        ran = subprocess.run([self.python, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment") / "env")


def ways() -> list[Any]:
    """Where they are, and what runs the tasks."""
    both = ["installed", "hooks"]
    here = [pytest.param((place, "one", "three"), id=place) for place in both]
    return here + [
        pytest.param((place, "one", "ray"), id=f"{place}-ray", marks=pytest.mark.slow_faults)
        for place in both
    ]


@pytest.fixture(scope="module", params=ways())
def told(
    request: pytest.FixtureRequest, environment: Environment, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    place, *engines = request.param
    if "ray" in engines:
        pytest.importorskip("ray")
    directory = tmp_path_factory.mktemp(place)
    path, hooks = write_corpus(directory), str(directory / "hooks.py")
    if place == "installed":
        environment.install(build_wheel(directory))
        path.write_text(json.dumps(recipe(INSTALLED)))
        Path(hooks).unlink()
        hooks = ""
    (directory / "driver.py").write_text(DRIVER)
    printed = environment.run(directory / "driver.py", path, hooks, *engines)
    return {**json.loads(printed.splitlines()[-1]), "directory": directory, "engines": engines}


def test_all_five_give_one_digest_for_one_and_three_workers_and_on_ray(told: dict[str, Any]) -> None:
    assert set(told["digests"]) == set(told["engines"])
    assert len(told["engines"]) == 2
    assert len(set(told["digests"].values())) == 1


def test_the_loader_reads_what_the_writer_wrote_and_it_is_the_documents(told: dict[str, Any]) -> None:
    """Encoded, joined and cut here once more, with nothing of the mill."""
    stream: list[int] = []
    for doc_id, text in texts().items():
        if doc_id not in ("d7", "d9"):
            stream += [*text.removesuffix(FOOTER).encode(), 256]
    held_out = np.fromfile(told["directory"] / "one/build/ours/valid/input_ids.mmap", "<i4").tolist()
    train = np.fromfile(told["directory"] / "one/build/ours/train/input_ids.mmap", "<i4").reshape(-1, 32)
    assert told["rows"] == train.tolist()
    built, expected = documents(train.ravel().tolist()) | documents(held_out), documents(stream)
    assert built <= expected
    assert len(expected - built) <= 2, "at most the one that the end of each split cuts"


def documents(ids: list[int]) -> set[bytes]:
    """Whole ones: what follows the last end is cut."""
    parts, part = set(), []
    for id in ids:
        if id == 256:
            parts.add(bytes(part))
            part = []
        else:
            part.append(id)
    return parts


def test_why_tells_of_the_transform_with_the_bytes_before_and_after(told: dict[str, Any]) -> None:
    found = json.loads(command("why", told["directory"] / "one", "d3", "--json").stdout)
    (decision,) = found["documents"][0]["clean"]["decisions"]
    size = len(texts()["d3"].encode())
    assert decision["verdict"] == "edit"
    assert decision["reason"] in ("without-footer", "without_footer")
    assert (decision["value"], decision["threshold"]) == (size, size - len(FOOTER))
    assert f"{size}" in command("why", told["directory"] / "one", "d3").stdout


def test_the_ledger_has_every_document_that_was_edited_or_dropped(told: dict[str, Any]) -> None:
    manifest = load_manifest(told["directory"] / "one/clean/mail")
    rows = [
        row
        for entry in manifest.entries("ledger")
        for row in load_table(told["directory"] / "one/clean/mail" / entry.path).to_pylist()
    ]
    edited = {row["doc_id"] for row in rows if row["verdict"] == "edit"}
    assert edited == {doc_id for doc_id, text in texts().items() if text.endswith(FOOTER)} - {"d7"}
    dropped = {row["doc_id"]: row["reason"] for row in rows if row["verdict"] == "drop"}
    assert dropped == {"d7": "empty", "d9": "exclamations_too_high"}


# --- one file beside the recipe ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokmill.run(write_corpus(tmp_path_factory.mktemp("finished")), workers=1).out


def test_records_of_a_reader_are_fields_metas_and_quarantine_like_any_others(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    with (tmp_path / "mail-1.box").open("a") as file:
        file.write("@@\nno text")
    sections = {"max_bad_fraction": "0.1", "where": {"number": "14"}}
    source = {**recipe(HOOKS)["sources"][0], **sections}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(HOOKS, sources=[source])))
    out = tokmill.run(tmp_path / "recipe.yaml", workers=1, until="ingest").out
    counts = load_manifest(out / "ingest/mail").counts
    assert (counts["in"], counts["kept"], counts["dropped"]) == (41, 2, {"other_number": 38})
    assert counts["quarantined"] == {"missing_field": 1}
    entries = load_manifest(out / "ingest/mail").entries("documents")
    rows = [row for entry in entries for row in load_table(out / "ingest/mail" / entry.path).to_pylist()]
    assert [(row["doc_id"], row["meta"]) for row in rows] == [
        ("d14", '{"number":14}'),
        ("d39", '{"number":14}'),
    ]


def test_a_sample_a_limit_and_a_template_are_of_the_reader_s_records(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    keys = {"fields": {"id": "name"}, "template": "{name}: {body}", "limit": {"docs": 3}}
    source = {**recipe(HOOKS)["sources"][0], **keys}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(HOOKS, sources=[source])))
    out = tokmill.run(tmp_path / "recipe.yaml", workers=1, until="ingest").out
    (entry,) = load_manifest(out / "ingest/mail").entries("documents")
    told = load_table(out / "ingest/mail" / entry.path).column("text").to_pylist()
    assert told == [f"{doc_id}: {text}" for doc_id, text in list(texts().items())[:3]]


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ('"number": number}', '"number": number + 1}', {"ingest/mail"}),
        ('"!"', '"."', {"clean/mail"}),
        ("self.vocab_size, self.end = 257, end", "self.vocab_size, self.end = 300, end", {"tokenizer"}),
        (" rows of {tokens.seq_len}", " rows of  {tokens.seq_len}", {"build/theirs"}),
    ],
)
def test_other_code_is_another_fingerprint_and_its_steps_are_done_again(
    before: str, after: str, steps: set[str], tmp_path: Path
) -> None:
    """All five are in one file here, whose digest is that of each;
    what they give then is what decides for the rest."""
    path = write_corpus(tmp_path)
    out = tokmill.run(path, workers=1).out
    plugged = {"ingest/mail", "clean/mail", "tokenizer", "build/theirs"}
    prints = {step: load_manifest(out / step).fingerprint for step in plugged}
    identities = {step: load_manifest(out / step).identity for step in plugged}
    assert tokmill.run(path, workers=1).ran == []
    assert before in TOYS
    (tmp_path / "hooks.py").write_text(TOYS.replace(before, after))
    assert plugged <= set(tokmill.run(path, workers=1).ran)
    assert all(load_manifest(out / step).fingerprint != prints[step] for step in plugged)
    others = {step for step in plugged if load_manifest(out / step).identity != identities[step]}
    assert steps <= others


def test_a_hook_that_changes_while_the_run_works_is_not_run(tmp_path: Path) -> None:
    path = write_corpus(tmp_path)
    whole = "def shown(columns):\n    return columns['text']\n"
    (tmp_path / "late.py").write_text(whole)
    plugin = plugins.find_plugin("transforms", "late.py:shown", path.parent, "transforms")
    hooks.load_hook.cache_clear()  # another process
    (tmp_path / "late.py").write_text(whole + "# other\n")
    with pytest.raises(InputError, match="the hook changed while it was in use"):
        plugin.load()


# --- contracts ---

BROKEN = {
    "readers": [
        ("return 7", "the reader returned a int for"),
        ("return {}", "the reader returned a dict for"),
        ("yield 'text'", "the reader gave a record that is a str, not a dict (record 0 of"),
        ("yield {'body': object()}", "the reader gave a record that cannot be written as JSON"),
        ("yield 1 / 0", "the reader failed (ZeroDivisionError: division by zero; line 3)"),
        ("yield {'body': str(next(count))}",
         "the reader answers differently when it is asked again: for row 0"),
    ],
    "measures": [
        ("return 7", "the measure returned int64 of shape (); "),
        ("return ['a'] * len(a[0]['text'])", "the measure returned <U1 of shape"),
        ("return [1]", "the measure returned int64 of shape (1,); 25 numbers"),
        ("raise SystemExit", "the measure failed (SystemExit; line 3)"),
        ("return [next(count) for _ in a[0]['text']]",
         "the measure answers differently when it is asked again: for row 0 0"),
        ("return [next(count) if ' 30 ' in text else 0 for text in a[0]['text']]",
         "the measure answers differently when it is asked again: for row 5 0"),
    ],
    "transforms": [
        ("return 7", "the transform failed (TypeError"),
        ("return a[0]['text'][1:]", "the transform returned 24 of large_string, 0 of them null; 25 texts"),
        ("return [None] * len(a[0]['text'])", "the transform returned 25 of null, 25 of them null; 25 texts"),
        ("return [b'a'] * len(a[0]['text'])", "the transform returned 25 of binary, 0 of them null"),
        ("return a[0]['texts']", "the transform failed (KeyError: \"no column 'texts'; there are text, "),
        ("return [str(next(count)) for _ in a[0]['text']]",
         "the transform answers differently when it is asked again"),
    ],
    "tokenizers": [
        ("return 7", "the tokenizer returned a int that has no encode_batch, decode, token_id"),
        ("return Toy(vocab_size='many')", "the tokenizer returned a Toy that has the vocab_size 'many'"),
        ("return Toy(vocab_size=100, token_id=lambda token: 9)",
         "the tokenizer gave the id 116; vocab_size is 100"),
        ("return Toy(encode_batch=lambda texts: [])", " to 0 sequences"),
        ("return Toy(encode_batch=lambda texts: ['a' for _ in texts])",
         "the tokenizer encoded a text to <U1 of shape ()"),
        ("return Toy(encode_batch=lambda texts: [[next(count)] for _ in texts])",
         "answers differently when it is asked"),
        ("return Toy(encode_batch=lambda texts: [[next(count) if ' ' in text else 5] for text in texts])",
         "answers differently when it is asked"),
        ("return Toy(encode_batch=lambda texts: 1 / 0)",
         "the tokenizer failed (ZeroDivisionError: division by zero; line 3)"),
        ("return Toy(specials=None)", "the tokenizer failed (TypeError: 'NoneType' object is not iterable"),
        ("return Toy(specials={'<a>': 999})", "the tokenizer has the special token '<a>' with the id 999"),
        ("return Toy(specials={'<a>': -1})", "the tokenizer has the special token '<a>' with the id -1"),
        ("return Toy(specials={'': 5})", "the tokenizer has the special token '' with the id 5"),
        ("return Toy(specials=['<a>'])", "the tokenizer failed (ValueError"),
        ("return Toy(token_id=lambda token: 'end')", "the tokenizer gave 'end' for the token '<stop>'"),
    ],
}  # fmt: skip
BREAKING = """import itertools; from types import SimpleNamespace; count = itertools.count()
def broken(*a, **options):
    {}
class Toy(SimpleNamespace):
    vocab_size = 257
    def encode_batch(self, texts): return [list(text.encode()) for text in texts]
    def decode(self, ids): return ""
    def token_id(self, token): return 256
"""


@pytest.mark.parametrize(
    ("kind", "body", "what"), [(kind, *case) for kind, cases in BROKEN.items() for case in cases]
)
def test_what_breaks_its_contract_is_named_with_what_it_returned(
    kind: str, body: str, what: str, tmp_path: Path
) -> None:
    write_corpus(tmp_path)
    (tmp_path / "broken.py").write_text(BREAKING.format(body) + f"# {kind}\n")
    names = {**HOOKS, kind: "broken.py:broken"}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(names)))
    with pytest.raises(TokmillError) as caught:
        tokmill.run(tmp_path / "recipe.yaml", workers=1)
    assert what in caught.value.what
    assert caught.value.where.endswith(f"{tmp_path / 'broken.py'}:broken")
    assert caught.value.next


SCORER = """import itertools, msgspec, numpy as np
from tokmill.scores import ScoreKind
count = itertools.count()
class Options(msgspec.Struct, frozen=True): pass
class Scorer:
    def score(self, texts):
        n = len(texts.offsets) - 1
        {}
def open_scorer(options, paths):
    {}
    return Scorer()
KIND = ScoreKind("{}", Options, open_scorer, files=())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Installs a kind of scores, as an installer does it; its name."""
    known = (packages.entry_points, packages.load_entry_point, packages.installed_digest)

    def install(score: str, opening: str) -> str:
        name = f"scorer_{hashlib.sha256((score + opening).encode()).hexdigest()[:8]}"
        info = tmp_path / f"site/{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (tmp_path / f"site/{name}.py").write_text(SCORER.format(score, opening, name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tokmill.scores]\n{name} = {name}:KIND\n")
        monkeypatch.syspath_prepend(tmp_path / "site")
        for cached in known:
            cached.cache_clear()
        return name

    yield install
    for cached in known:
        cached.cache_clear()


SCORED = {"measure": "score.mine", "min": 0.5, "reason": "low"}


@pytest.mark.parametrize(
    ("score", "opening", "what"),
    [
        ("raise KeyError('embedding')", "pass", "the score failed (KeyError: 'embedding'; line 8)"),
        ("return np.zeros(n)", "raise OSError('no model')", "the score failed (OSError: no model; line 10)"),
        ("return np.array([next(count) for _ in range(n)]) / 1e9", "pass",
         "the score answers differently when it is asked again: for row 0 0.0, then 2."),
        ("return np.zeros(n + 1)", "pass", "the score answered float64 of shape (26,) for 25 texts"),
        ("return ['a'] * n", "pass", "the score answered <U1 of shape (25,) for 25 texts"),
        ("return np.full(n, np.nan)", "pass", "or no finite number"),
    ],
)  # fmt: skip
def test_a_scorer_of_a_package_is_held_to_what_it_must_answer(
    score: str, opening: str, what: str, package: Callable[[str, str], str], tmp_path: Path
) -> None:
    write_corpus(tmp_path)
    name = package(score, opening)
    sections = {"scores": [{"name": "mine", "plugin": name}], "filters": [SCORED]}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(HOOKS, **sections)))
    with pytest.raises(TokmillError) as caught:
        tokmill.run(tmp_path / "recipe.yaml", workers=1, until="clean")
    assert what in caught.value.what
    assert caught.value.where.endswith(f"{name} ({name}:KIND)")
    assert caught.value.next


def test_a_scorer_may_answer_a_list(package: Callable[[str, str], str], tmp_path: Path) -> None:
    write_corpus(tmp_path)
    name = package("return [0.25] + [0.75] * (n - 1)", "pass")
    sections = {"scores": [{"name": "mine", "plugin": name}], "filters": [SCORED], "transforms": []}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(HOOKS, **sections)))
    out = tokmill.run(tmp_path / "recipe.yaml", workers=1, until="clean").out
    assert load_manifest(out / "clean/mail").counts["dropped"] == {"low": 2}, "the first of each of two files"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("return None", "the format wrote train and returned None"),
        ("(directory / NAME).write_text('1 2\\n1 rows of 2\\n'); return []",
         "wrote 37 rows of train, and its reader finds 1"),
        ("return [replace(entry, sha256='0' * 64)]",
         "says that it wrote ids.txt, and no such file has the sha256 0000"),
        ("return [replace(entry, path='other')]", "says that it wrote other, and no such file"),
        ("raise OSError('no disk')", "the format failed (OSError: no disk; line "),
    ],
)  # fmt: skip
def test_a_writer_is_held_to_what_it_says(change: str, what: str, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    last = 'return [file_entry(NAME, "lines", file.written, rows=tokens.rows)]'
    assert last in TOYS
    lines = "from msgspec.structs import replace\n" + TOYS
    lines = lines.replace(last, f"entry = {last.removeprefix('return [').removesuffix(']')}\n    {change}")
    (tmp_path / "hooks.py").write_text(lines)
    with pytest.raises(InputError) as caught:
        tokmill.run(tmp_path / "recipe.yaml", workers=1)
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path / 'hooks.py'}:LINES"


@pytest.mark.parametrize(("target", "rows"), [({"blocks": 12}, 12), ({"tokens": 500}, None)])
def test_a_mixture_of_padded_rows_knows_a_format_beside_the_recipe(
    target: dict[str, int], rows: int | None, tmp_path: Path
) -> None:
    builds = [{"name": "theirs", "format": HOOKS["formats"]}]
    pack = {"layout": "pad", "length": 32}
    path = write_corpus(tmp_path, builds=builds, pack=pack, mixture={**target, "held_out": "whole"})
    out = tokmill.run(path, workers=1).out
    *lines, _ = (out / "build" / "theirs" / "train" / "ids.txt").read_text().splitlines()
    assert len(lines) == rows if rows is not None else lines


@pytest.mark.parametrize(
    ("names", "sections", "what", "next"),
    [
        ({"readers": "boxx"}, {}, "there is no reader `boxx`", "a Python file beside the recipe"),
        ({"measures": "zzz"}, {}, "there is no measure `zzz`", "a Python file beside the recipe"),
        (
            {"measures": "digit_shares"},
            {},
            "there is no measure `digit_shares`",
            "did you mean `digit_share`",
        ),
        (
            {"transforms": "none-such"},
            {},
            "there is no transform `none-such`",
            "a Python file beside the recipe",
        ),
        ({"tokenizers": "letter"}, {}, "there is no tokenizer `letter`", "a Python file beside the recipe"),
        ({"readers": "hook.py:read_box"}, {}, "no such file", "relative to the recipe"),
        ({"readers": "hooks.py:read_boxes"}, {}, "there is no reader `read_boxes`", "after the colon"),
        ({"formats": "hooks.py:NAME"}, {}, "the format is a str, not a tokmill.formats.Format", "the record"),
        ({"transforms": "hooks.py:NAME"}, {}, "the transform is str 'ids.txt', not a function", "a function"),
        ({}, {"pack": {"layout": "indexed"}}, "is made of rows", "choose another layout"),
        (
            {},
            {"builds": [{"name": "a", "format": HOOKS["formats"], "dtype": "uint16"}]},
            "is always int32",
            "format",
        ),
    ],
)
def test_a_name_that_is_not_there_is_told_by_the_check_of_a_recipe_and_before_anything_is_read(
    names: dict[str, str], sections: dict[str, Any], what: str, next: str, tmp_path: Path
) -> None:
    write_corpus(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe({**HOOKS, **names}, **sections)))
    with pytest.raises(TokmillError) as caught:
        tokmill.run(path, workers=1)
    assert what in caught.value.what
    assert next in str(caught.value)
    assert not (tmp_path / "out/toys/ingest").exists()
    if not sections:
        assert what in command("recipe", "check", path).stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("sources", [{"name": "a", "files": "a", "options": {"a": 1}}], "are for a `reader`"),
        (
            "sources",
            [{"name": "a", "reader": "b", "corpus": {"manifest": "c"}}],
            "cannot be used with `corpus`",
        ),
        ("sources", [{"name": "a", "reader": "b", "files": "c", "warc": {}}], "cannot be used with `warc`"),
        ("sources", [{"name": "a", "reader": "warc", "files": "c"}], "`warc` is a section of its own"),
        ("tokenizer", {"path": "a", "plugin": "b", "eos": "c"}, "needs either `path`"),
        ("tokenizer", {"path": "a", "options": {"b": 1}, "eos": "c"}, "`options` belongs to `plugin`"),
        ("tokenizer", {"plugin": "a", "encoding": "b", "eos": "c"}, "`encoding` belongs to `path`"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(key: str, value: Any, what: str) -> None:
    with pytest.raises(RecipeError, match=what):
        tokmill.load_recipe(json.dumps(recipe(HOOKS, **{key: value})) + "\n")


def test_a_recipe_that_says_hook_means_a_measure(tmp_path: Path) -> None:
    filters = [{"hook": "hooks.py:exclamations", "max": 3}]
    (rule,) = tokmill.load_recipe(json.dumps(recipe(HOOKS, filters=filters)) + "\n").filters
    assert rule.measure == "hooks.py:exclamations"


# --- whoever opens a build ---


def in_another_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_build_needs_the_very_file_that_wrote_it_and_says_so(finished: Path, tmp_path: Path) -> None:
    build, hooks = finished / "build/theirs", finished.parent.parent / "hooks.py"
    opening = "from tokmill.loader import open_dataset; print(len(open_dataset({!r}{})))"
    sha256 = hashlib.sha256(TOYS.encode()).hexdigest()
    refused = in_another_process(opening.format(str(build), ""))
    assert f"needs the one with the sha256 {sha256}" in refused.stderr
    (tmp_path / "other.py").write_text(TOYS + "# other\n")
    other = in_another_process(opening.format(str(build), f", hooks={str(tmp_path / 'other.py')!r}"))
    assert f"needs the one with the sha256 {sha256}" in other.stderr
    opened = in_another_process(opening.format(str(build), f", hooks={str(hooks)!r}"))
    rows = np.fromfile(finished / "build/ours/train/input_ids.mmap", "<i4").reshape(-1, 32)
    assert opened.stdout == f"{len(rows)}\n", opened.stderr


def test_nothing_beside_a_run_is_run_to_verify_it(finished: Path) -> None:
    told = (
        "import sys, tokmill; print(tokmill.verify({!r}).problems, [n for n in sys.modules if 'hook_' in n])"
    )
    assert in_another_process(told.format(str(finished))).stdout == "[] []\n"


def test_a_build_is_checked_and_peeked_into_with_the_file(finished: Path) -> None:
    hooks = finished.parent.parent / "hooks.py"
    checked = command("check", finished / "build/theirs", "--hooks", hooks, "--steps", "0")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    peeked = command("peek", finished / "build/theirs", "--hooks", hooks, "--json")
    assert json.loads(peeked.stdout)["pieces"][0]["text"].startswith("Document 1 of the mill")


def test_builds_are_compared_with_the_file(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    build, hooks = finished / "build/theirs", finished.parent.parent / "hooks.py"
    quick = ("--size", "0.2M", "--tokens", "512", "--seeds", "1", "--held-out-bytes", "50", "--device", "cpu")
    words = ("ablate", build, build, *quick, "--out", tmp_path / "ablation")
    refused = command(*words)
    assert "give that file as `hooks`" in refused.stderr
    done = command(*words, "--hooks", hooks, "--json", env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert {one["difference"] for one in json.loads(done.stdout)["differences"]} == {0.0}


def test_stages_are_opened_with_the_file_and_their_index(tmp_path: Path) -> None:
    stages = [{"name": name, "steps": steps} for name, steps in (("one", 2), ("two", 1))]
    mixture = {"weights": {"default": 1}, "batch_tokens": 128, "held_out": "whole", "stages": stages}
    out = tokmill.run(write_corpus(tmp_path, mixture=mixture), workers=1).out
    opening = "from tokmill.loader import open_curriculum; print(len(open_curriculum({!r}, {})))"
    refused = in_another_process(opening.format(str(out), "'theirs'"))
    assert "needs the one with the sha256" in refused.stderr
    hooks = f"'theirs', hooks={str(tmp_path / 'hooks.py')!r}"
    assert in_another_process(opening.format(str(out), hooks)).stdout == "3\n"
    listed = "from tokmill.loader import list_splits; print(list_splits({!r}, hooks={!r}))"
    asked = listed.format(str(out / "build/theirs-one"), str(tmp_path / "hooks.py"))
    assert in_another_process(asked).stdout.startswith("['train'"), in_another_process(asked).stderr
    by_index = open_curriculum(out, "ours", boundaries="index")
    assert all(batches.datasets[0].index is not None for batches in by_index.stages)
    with pytest.raises(TokmillError, match="the tokenizer"):
        open_curriculum(out, "ours", tokenizer_sha256="0" * 64)


def test_a_dataset_goes_to_another_process_with_its_file(finished: Path) -> None:
    dataset = open_dataset(finished / "build/theirs", hooks=finished.parent.parent / "hooks.py")
    (finished.parent / "dataset.pickle").write_bytes(pickle.dumps(dataset))
    code = f"import pickle; print(len(pickle.load(open({str(finished.parent / 'dataset.pickle')!r}, 'rb'))))"
    assert in_another_process(code).stdout == f"{len(dataset)}\n"


def test_tokens_are_traced_to_the_characters_of_their_document(finished: Path) -> None:
    code = (
        "from pathlib import Path; from tokmill.artifacts.plugins import show_hooks; from "
        "tokmill.tokenizers.load import *\nshow_hooks(Path({!r})); "
        "print(load_tokenizer(Path({!r})).boundaries('a mill').bounds.tolist())"
    )
    hooks, file = finished.parent.parent / "hooks.py", finished / "tokenizer/tokenizer.plugin.json"
    assert in_another_process(code.format(str(hooks), str(file))).stdout == "[0, 1, 2, 3, 4, 5, 6]\n"


def test_documents_are_forgotten_with_the_code_of_the_recipe_and_not_without(tmp_path: Path) -> None:
    out = tokmill.run(write_corpus(tmp_path), workers=1).out
    (tmp_path / "gone.txt").write_text("d4\n")
    moved = out.rename(tmp_path / "moved")
    refused = command("forget", moved, "--doc-ids", tmp_path / "gone.txt")
    assert "hooks.py" in refused.stderr
    done = command("forget", moved, "--doc-ids", tmp_path / "gone.txt", "--base", tmp_path)
    assert done.returncode == 0, done.stderr
    ids = np.fromfile(moved / "build/ours/train/input_ids.mmap", "<i4").tolist()
    assert not any(b"Document 4 of" in text for text in documents(ids))
    *rows, _ = (moved / "build/theirs/train/ids.txt").read_text().splitlines()
    assert [int(id) for row in rows for id in row.split()] == ids


# --- installed packages ---


def digest_in(environment: Environment) -> str:
    code = (
        "from tokmill.artifacts.packages import installed_digest; print(installed_digest('measures', "
        "'exclamations'))"
    )
    return environment.run("-c", code)


def test_another_version_or_other_code_of_a_package_is_another_digest(
    environment: Environment, tmp_path: Path
) -> None:
    digests = []
    for code, version in ((TOYS, "1.0"), (TOYS, "1.1"), (TOYS + "# other\n", "1.0"), (TOYS, "1.0")):
        environment.install(build_wheel(tmp_path, code, version))
        digests.append(digest_in(environment))
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_a_package_that_is_used_where_it_is_written_has_the_digest_of_its_files(
    environment: Environment, tmp_path: Path
) -> None:
    """As an editable install leaves it: the RECORD lists a .pth file and nothing that runs."""
    environment.install(build_wheel(tmp_path))
    (site,) = environment.python.parents[1].glob("lib/python*/site-packages")
    (site / "their_toys.py").unlink()
    (site / "their_toys.pth").write_text(f"{tmp_path}\n")
    record = site / "toys-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("their_toys.py,sha256", "their_toys.pth,sha256"))
    digests = []
    for code in (TOYS, TOYS + "# other\n", TOYS):
        (tmp_path / "their_toys.py").write_text(code)
        digests.append(digest_in(environment))
    (site / "their_toys.pth").unlink()
    assert digests[0] == digests[2] != digests[1]


def test_a_worker_with_another_version_refuses_the_step(environment: Environment, tmp_path: Path) -> None:
    environment.install(build_wheel(tmp_path))
    code = (
        "from tokmill.artifacts.plugins import Plugin\n"
        "try:\n    Plugin('measures', 'exclamations', '0' * 64).load()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "try:\n    Plugin('measures', 'none-such', '0' * 64).load()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    first, second = (
        line for line in environment.run("-c", code).splitlines() if "Error" in line or "Input" in line
    )
    assert first.startswith(
        "InputChanged exclamations (their_toys:exclamations): the measure of this machine is not"
    )
    assert "the measure `none-such` is not installed here" in second


# --- one of ours ---


def test_a_reader_of_ours_is_its_file_and_a_line_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(source: Source, files: list[InputFile]) -> dict[str, Any]:
        return {"word": source.options["word"]}

    def read(path: Path, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
        text = path.read_text() + reading.options["word"]
        yield from gather([Record(text, "one", None, {})])

    monkeypatch.setitem(READERS, "whole", Reader(resolve, whole_file, read))
    (tmp_path / "a.any").write_text("all of it, ")
    sources = [{"name": "mail", "files": "a.any", "reader": "whole", "options": {"word": "and more"}}]
    sections = {**recipe(HOOKS, sources=sources, tokenizer=None, builds=None, transforms=[], filters=[])}
    monkeypatch.chdir(tmp_path)
    out = tokmill.run(sections, tmp_path / "out", workers=1, until="ingest").out
    (entry,) = load_manifest(out / "ingest/mail").entries("documents")
    assert load_table(out / "ingest/mail" / entry.path).column("text").to_pylist() == ["all of it, and more"]
