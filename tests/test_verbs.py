"""Every verb is a function: the same name, arguments and defaults, and the same result."""

from __future__ import annotations

import enum
import inspect
import json
import keyword
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

import tokmill
from forked import run_forked
from made_fasttext import write_model
from mill import small_corpus
from mill import tokmill as typed
from test_plugins import HOOKS, TOYS, recipe, write_corpus
from tokmill.adhoc import reading
from tokmill.adhoc.from_files import clean
from tokmill.cli import main

REPOSITORY = Path(__file__).parents[1]

# Where arguments that several verbs share have their defaults.
SOURCES = (*(reading.reading_keys, reading.hub_source, reading.files_source, reading.either_source), clean)

# What sets how a result is shown, or the exit status, and is no argument of the function.
ONLY_SHOWN = {
    "review": {"format", "out", "fail_on"},  # Review has `fails`, and `render` its other forms
    "dedup": {"curve"},  # prints a table instead
    "recipe schema": {"markdown"},  # the same for reading
    "diff": {"all"},  # the result has every share
    "tokenizer coverage": {"by"},  # the result has every group
}
# What hears of the work while it goes on has no option: the command line draws it.
LISTENERS = {"progress", "on_bytes", "on_check", "tell"}
ONLY_PYTHON = {
    "review": {"limits", "checks"},
    "materialize sample": {
        "parallel"
    },  # the section of a recipe: pairs without keys, such as lines of two columns
}


def walk(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


VERBS = dict(walk())


def name_of(verb: str) -> str:
    return f"{verb}_" if keyword.iskeyword(verb) else re.sub("[ -]", "_", verb)


def function_of(verb: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(tokmill, name_of(verb))
    return found


def arguments_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Default and type of each; those of `**reading` are where their defaults are."""
    hints, found = typing.get_type_hints(function), {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = (parameter.default, hints.get(name))
            continue
        (kind,) = typing.get_args(hints[name])
        defaults = {}
        for source in SOURCES:
            for own, given in inspect.signature(source).parameters.items():
                if given.default is not given.empty:
                    defaults[own] = given.default
        found |= {own: (defaults[own], hint) for own, hint in typing.get_type_hints(kind).items()}
    return found


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    return {p.name: p for p in command.params if p.expose_value and p.name and p.name != "as_json"}


def default_of(param: click.Parameter, command: click.Command) -> Any:
    """As a command without it would have it: text and number are one, and so are nothing and none."""
    if param.required:
        return inspect.Parameter.empty
    value, _ = param.handle_parse_result(click.Context(command), {}, [])
    return spelled(None if isinstance(value, enum.Enum) else value)  # newer clicks have a mark for nothing


def spelled(value: Any) -> Any:
    if value is inspect.Parameter.empty or isinstance(value, bool):
        return value
    return "" if value is None or value == () else str(value)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_and_its_function_have_the_same_arguments_and_defaults(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKMILL_WORKERS", raising=False)
    command, arguments = VERBS[verb], arguments_of(function_of(verb))
    options = options_of(command)
    assert set(options) - set(arguments) == ONLY_SHOWN.get(verb, set())
    assert set(arguments) - set(options) - LISTENERS == ONLY_PYTHON.get(verb, set())
    for name in set(options) & set(arguments):
        default, hint = arguments[name]
        assert spelled(default) == default_of(options[name], command), name
        words = [word for one in (hint, *typing.get_args(hint)) for word in typing.get_args(one)]
        if isinstance(options[name].type, click.Choice) and typing.Literal in map(
            typing.get_origin, (hint, *typing.get_args(hint))
        ):
            literal = {word for word in words if isinstance(word, str)}
            assert literal == set(options[name].type.choices), name


def test_dir_shows_every_verb_and_an_option_has_the_name_that_is_typed() -> None:
    names = {name_of(verb) for verb in VERBS}
    assert names <= set(dir(tokmill))
    assert set(tokmill.__all__) <= set(dir(tokmill))
    for verb, command in VERBS.items():
        for name, param in options_of(command).items():
            if isinstance(param, click.Option):
                assert f"--{name.replace('_', '-')}" in param.opts, (verb, name)


def test_no_room_has_the_name_of_a_function() -> None:
    """Python would put the package in its place, as soon as anything of it is loaded."""
    rooms = {path.parent.name for path in Path(tokmill.__file__).parent.glob("*/__init__.py")}
    assert rooms & set(dir(tokmill)) == set()


# -- the same result -------------------------------------------------------------------------------

TOKENIZER = "out/tokenizer/tokenizer.json"
TEXTS = {"patterns": ["problems.jsonl"], "text": "question"}

# What each is called with, in a directory that `place` made.
CALLS: dict[str, dict[str, Any]] = {
    "recipe check": {"recipe": "recipe.yaml"},
    "recipe schema": {},
    "help": {"topic": ["dedup.near.threshold"]},
    "recipe init": {"path": "started.yaml", "files": "mine/*.jsonl", "name": "mine"},
    "recipe import": {"file": "listed.yaml", "path": "imported.yaml"},
    "run": {"recipe": "recipe.yaml", "out": "ran", "until": "clean", "workers": 1},
    "plan": {"recipe": "recipe.yaml", "out": "out"},
    "continue": {
        "builds": ["out/build/rows"],
        "step": 3,
        "batch_size": 2,
        "weights": ["1"],
        "recipe": "recipe.yaml",
        "set": ["mixture={}"],
        "out": "rest",
        "workers": 1,
    },
    "status": {"directory": "out"},
    "forget": {"directory": "out", "doc_ids": "ids.txt", "batch_size": 2, "dry_run": True},
    "doctor": {},
    "verify": {"directory": "out"},
    "check": {"build": "out/build/rows", "steps": 0},
    "report": {"directory": "out", "out": "page", "cards": True},
    "review": {"target": "out", "model_params": 1000, "no_verify": True},
    "why": {"directory": "out", "reason": "all"},
    "trace": {"directory": "out/build/rows", "row": 1, "column": 3},
    "peek": {"build": "out/build/rows", "row": -1, "split": "valid"},
    "seen": {"builds": ["out/build/rows"], "step": 3, "batch_size": 2, "weights": ["1"], "batch": 1},
    "clusters": {"directory": "out", "count": 2, "diff": True},
    "documents": {"directory": "out", "where": ["chars:..300"], "columns": "doc_id,chars", "sort": "-chars"},
    "whatif": {"directory": "out", "set": ["chars.min=200"], "examples": 3},
    "layouts": {"target": "out", "length": 64},
    "diff": {"a": "out", "b": "out", "fail_on": ["tokens", "shares=0.1"]},
    "ingest files": {**TEXTS, "out": "ingested", "limit": ["docs=20"], "workers": 1},
    "sample": {**TEXTS, "out": "some.jsonl", "k": 5, "seed": 3, "workers": 1},
    "normalize": {**TEXTS, "out": "normal", "unicode": "NFKC", "redact": ["email"], "workers": 1},
    "filter": {**TEXTS, "out": "kept.txt", "rule": ["chars>=120"], "separator": "\n\n", "workers": 1},
    "dedup": {
        "files": ["problems.jsonl"],
        "text": "question",
        "out": "unique",
        "threshold": 0.6,
        "workers": 1,
    },
    "encode": {
        "manifest": "mini/manifest.jsonl",
        "tokenizer": TOKENIZER,
        "out": "cache",
        "unicode": "NFC",
        "workers": 1,
    },
    "shard": {"mixture": "mixture.yaml", "tokenizer": TOKENIZER, "length": 32, "workers": 1},
    "build": {
        "format": "memmap",
        "manifest": "mixture.yaml",
        "out": "built",
        "tokenizer": TOKENIZER,
        "length": 32,
        "layout": "document",
        "blocks": 4,
        "flat": True,
        "workers": 1,
    },
    "export": {"directory": "out", "out": "exported", "format": "webdataset", "measures": True, "workers": 1},
    "index": {
        "directory": "out",
        "out": "indexed",
        "splits": ["train"],
        "ids": True,
        "name": "first",
        "threshold": "0.9",
        "ngram": 4,
        "workers": 1,
    },
    "score apply": {
        "files": ["problems.jsonl"],
        "out": "scores.jsonl",
        "fasttext": "edu.bin",
        "label": "good",
        "prepare": "dclm",
        "lower": True,
        "window_words": 20,
        "aggregate": "max",
        "text": "question",
        "workers": 1,
    },
    "score train": {
        "positive": ["problems.jsonl"],
        "negative": ["others.jsonl"],
        "out": "good.model",
        "text": "question",
        "words": 1,
        "min_chars": 3,
        "max_chars": 4,
        "epochs": 2,
        "rate": 1.5,
        "min_docs": 1,
        "max_docs": 40,
        "valid_fraction": 0.2,
        "seed": 3,
    },
    "score eval": {
        "model": "trained.model",
        "positive": ["problems.jsonl"],
        "negative": ["others.jsonl"],
        "text": "question",
        "label": "positive",
    },
    "score compare": {"directory": "out", "first": "chars", "second": "chars", "examples": 2},
    "materialize files": {**TEXTS, "out": "corpora", "name": "org/some", "workers": 1},
    "materialize sample": {**TEXTS, "out": "drawn", "k": 10, "seed": 1, "splits": "train=8,valid=2"},
    "select": {"manifest": "snapshot.json", "shards": 1, "root": "root", "out": "selected.json"},
    "tokenizer train": {
        "manifest": "mixture.yaml",
        "out": "tok",
        "vocab_size": 300,
        "model": "byte_bpe",
        "workers": 1,
    },
    "tokenizer check": {"model": TOKENIZER},
    "tokenizer coverage": {"model": TOKENIZER, "files": ["problems.jsonl"], "text": "question"},
    "tokenizer guard": {
        "base": TOKENIZER,
        "new": TOKENIZER,
        "files": ["problems.jsonl"],
        "text": "question",
        "by": "source",
    },
}
ELSEWHERE = {
    "ablate": "needs PyTorch: tests/proxy/test_ablate.py",
    "gc": "tests/pipeline/test_previous.py",
    "demo": "takes half a minute: tests/cli/test_demo.py",
    "explore": "answers until it is stopped: tests/explorer",
    "fetch": "needs an object store: tests/storage/test_objects_runs.py",
    "ingest hub": "needs a hub: tests/hub",
    "materialize hub": "needs a hub: tests/hub",
    "hub configs": "needs a hub: tests/hub",
}
# Of the moment, and not of the result; a copy of a run has files where its cache had links.
MOMENTARY = {"seconds", "created_at", "environment", "seal", "last_sign_seconds", "machine", "cache_bytes"}
WRITING = {
    *(
        "recipe init",
        "recipe import",
        "run",
        "continue",
        "report",
        "ingest files",
        "sample",
        "normalize",
        "filter",
        "dedup",
    ),
    *(
        "encode",
        "export",
        "index",
        "score apply",
        "score train",
        "shard",
        "build",
        "materialize files",
        "materialize sample",
        "select",
        "tokenizer train",
    ),
}


def test_every_verb_is_called_here_or_elsewhere() -> None:
    assert set(CALLS) | set(ELSEWHERE) == set(VERBS)
    assert not set(CALLS) & set(ELSEWHERE)


def words_of(verb: str, arguments: Mapping[str, Any]) -> list[str]:
    """The arguments as options of the same names."""
    params, options, positional = options_of(VERBS[verb]), [], []
    for name, value in arguments.items():
        values = list(value) if isinstance(value, list) else [value]
        if isinstance(params[name], click.Argument):
            positional += values
        elif value is True:
            options.append(f"--{name.replace('_', '-')}")
        else:
            options += [f"--{name.replace('_', '-')}={one}" for one in values]
    order = [p.name for p in VERBS[verb].params if isinstance(p, click.Argument)]
    given = [name for name in arguments if isinstance(params[name], click.Argument)]
    assert given == [name for name in order if name in given], "in their order"
    return [*verb.split(), *map(str, positional), *map(str, options)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same twice: texts, a recipe and its run, a mixture, a sample, a snapshot, ids,
    a list of datasets."""
    first = tmp_path_factory.mktemp("verbs") / "python"
    near = {"exact": True, "near": {"threshold": 0.5}}
    tokmill.run(small_corpus(first, dedup=near), first / "out", workers=1)
    write_model(first / "edu.bin")
    others = [json.dumps({"id": f"other-{number}", "question": f"Buy {number} now!"}) for number in range(30)]
    (first / "others.jsonl").write_text("\n".join(others) + "\n")
    tokmill.score_train(
        positive=first / "problems.jsonl",
        negative=first / "others.jsonl",
        out=first / "trained.model",
        text="question",
    )
    texts: Any = {"patterns": str(first / "problems.jsonl"), "text": "question"}
    tokmill.materialize_sample(**texts, out=first / "mini", k=20, seed=1, splits={"train": 16, "valid": 4})
    snapshot = tokmill.materialize_files(**texts, out=first / "root", workers=1)
    shutil.copyfile(snapshot.path, first / "snapshot.json")
    (first / "mixture.yaml").write_text(
        "datasets: [{name: own, files: problems.jsonl, text_field: question, weight: 1}]\n"
    )
    (first / "listed.yaml").write_text("datasets: [{path: org/name, weight: 0.5, colour: red}]\n")
    (first / "ids.txt").write_text("problem-00003\nnobody\n")
    second = shutil.copytree(first, first.with_name("command"))
    return {"python": first, "command": second}


def plain(value: Any, place: Path) -> Any:
    """Without what is of the moment and of the place."""
    if isinstance(value, dict):
        return {key: plain(one, place) for key, one in value.items() if key not in MOMENTARY}
    if isinstance(value, list | tuple):
        return [plain(one, place) for one in value]
    return value.replace(str(place), "PLACE") if isinstance(value, str) else value


def states(place: Path) -> dict[str, int]:
    """Every file, and when it was written."""
    files = [path for path in place.rglob("*") if path.is_file()]
    return {path.relative_to(place).as_posix(): path.stat().st_mtime_ns for path in files}


def content(place: Path, name: str) -> Any:
    """JSON without what is of the moment, a run or a build by its digest, others by their bytes."""
    path = place / name
    if path.name == "journal.json" or path.suffix in (".html", ".md"):
        return None  # with times
    if path.suffix != ".json":
        return path.read_bytes()
    found = json.loads(path.read_bytes())
    if found.get("kind") in ("run", "build", "texts"):
        return tokmill.verify(path.parent).digest
    return plain(found, place)


@pytest.mark.parametrize("verb", CALLS)
def test_python_and_the_command_line_give_the_same_result_and_the_same_files(
    verb: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {place: states(place) for place in places.values()}
    monkeypatch.chdir(places["python"])
    result = function_of(verb)(**CALLS[verb])
    environment = {**os.environ, "TOKMILL_WORKERS": "1"}
    done = run_forked([*words_of(verb, CALLS[verb]), "--json"], environment, places["command"])
    assert done.returncode == 0, done.stderr + done.stdout
    assert isinstance(result, dict) or len(repr(result)) < 2_000, "as_json has the rest"
    told = result if isinstance(result, dict) else result.as_json()
    in_python = json.loads(json.dumps({"ok": True, **told}))
    shown = {"ok": True, **json.loads(done.stdout)}
    assert plain(in_python, places["python"]) == plain(shown, places["command"])
    written = [
        {name: content(place, name) for name, at in states(place).items() if before[place].get(name) != at}
        for place in places.values()
    ]
    assert written[0] == written[1]
    assert bool(written[0]) == (verb in WRITING)


# -- code that lies beside data --------------------------------------------------------------------

# Verbs that ELSEWHERE tries, in an archive; the others of it take no run of this machine.
IN_AN_ARCHIVE: dict[str, dict[str, Any]] = {
    **CALLS,
    "forget": {"directory": "out", "doc_id": ["d3"], "workers": 1},
    "gc": {"directory": "out", "delete": True},
    "ablate": {"targets": ["out/build/rows", "out/build/rows"], "out": "ablated", "size": "0.2M"},
}
TAKE_NO_RUN = {"demo", "fetch", "ingest hub", "materialize hub", "hub configs"}


@pytest.fixture(scope="module")
def archive(places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """evil/hooks.py, and evil/out/out that was made with every kind of code in it; a user works in evil/out,
    with a recipe and files of their own."""
    evil = tmp_path_factory.mktemp("archive") / "evil"
    names = {kind: f"./{name}" for kind, name in HOOKS.items()}
    builds = [{"name": "rows", "format": names["formats"]}]
    made = write_corpus(evil)
    made.write_text(json.dumps(recipe(names, name="out", builds=builds)))
    (evil / "hooks.py").write_text(
        f"from pathlib import Path as _Path\n_Path(__file__).with_name('executed').touch()\n{TOYS}"
    )
    done = typed("run", made, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert (evil / "executed").exists()
    (evil / "executed").unlink()
    shutil.copytree(
        places["command"], evil / "out", ignore=shutil.ignore_patterns("out*"), dirs_exist_ok=True
    )
    return evil


@pytest.mark.parametrize("verb", sorted(set(VERBS) - TAKE_NO_RUN))
def test_no_verb_runs_code_that_lies_beside_data(
    verb: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = shutil.copytree(archive, tmp_path / "evil")
    monkeypatch.chdir(evil / "out")
    if verb == "explore":
        with tokmill.explore("out"):
            pass
    else:
        if verb == "ablate":
            pytest.importorskip("torch")
        tokenizer = {TOKENIZER: "out/tokenizer/tokenizer.plugin.json"}
        arguments = {
            name: tokenizer.get(value, value) if isinstance(value, str) else value
            for name, value in IN_AN_ARCHIVE[verb].items()
        }
        tried = run_forked(words_of(verb, arguments), {**os.environ, "TOKMILL_WORKERS": "1"}, evil / "out")
        assert tried.returncode != 2, tried.stderr  # a misspelled command would prove nothing
    assert not (evil / "executed").exists()


def test_a_takedown_names_the_code_that_it_would_run_and_runs_it_where_the_user_says_so(
    archive: Path, tmp_path: Path
) -> None:
    evil = shutil.copytree(archive, tmp_path / "evil")
    before = states(evil)
    refused = typed("forget", evil / "out/out", "--doc-id", "d3")
    assert refused.returncode == 1
    told = " ".join(refused.stderr.split())
    assert "the hook ./hooks.py:without_footer of clean/mail would have to be run again" in told
    assert "--base DIRECTORY" in told
    assert {name: at for name, at in states(evil).items() if not name.endswith(".lock")} == before
    done = typed("forget", evil / "out/out", "--doc-id", "d3", "--base", evil)
    assert done.returncode == 0, done.stderr
    assert (evil / "executed").exists()
    assert tokmill.verify(evil / "out/out").problems == []


# -- a new one -------------------------------------------------------------------------------------


def test_a_verb_is_two_files_as_the_guide_shows_it(places: dict[str, Path], tmp_path: Path) -> None:
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    section = guide[guide.index("## Add a verb") : guide.index("## Tests we want")]
    files = re.findall(r"```python\n# src/(\S+)\n(.*?)```", section, re.DOTALL)
    assert len(files) == 2
    source = tmp_path / "src"
    shutil.copytree(
        REPOSITORY / "src/tokmill", source / "tokmill", ignore=shutil.ignore_patterns("__pycache__")
    )
    for path, text in files:
        (source / path).write_text(text)
    code = (
        "import json, sys, tokmill; assert tokmill.__file__.startswith(sys.argv[1]); assert 'sizes' in "
        "dir(tokmill)\nprint(json.dumps(tokmill.sizes(sys.argv[2]).as_json()))"
    )
    out = str(places["python"] / "out")

    def said(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "120"}
        done = subprocess.run(
            [sys.executable, "-c", *words], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    start = "from tokmill.cli import main; main()"
    in_python = json.loads(said(code, str(source), out))
    shown = json.loads(said(start, "sizes", out, "--json"))
    assert shown == {"ok": True, **in_python}
    files_of_clean = [path for path in Path(out, "clean/problems").iterdir() if path.name != "manifest.json"]
    assert shown["bytes"]["clean/problems"] == sum(path.stat().st_size for path in files_of_clean)
    assert re.search(
        r"Look at a run:.*\n  sizes +Say how large every step is\.\n.*Single",
        said(start, "--help"),
        re.DOTALL,
    )
