"""What messages tell people to type exists, wherever the message can be met.

every next= of the tree ─┬─ what can be typed stands between backticks,
                         │  and is a command, option, key, value or extra
                         └─ for each command that reaches the module: fitted to it,
                            it names no option it lacks
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tokmill import read_verbs
from tokmill.adhoc.mixtures import MixtureFile
from tokmill.cli import main
from tokmill.cli.console import TYPED, fit_advice
from tokmill.recipe import Recipe
from tokmill.recipe.keys import key_paths, names_keys
from tokmill.reviews.review import CHECKS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tokmill"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNKNOWN = "X"  # in the place of what is only known when the message is made


class Advice(NamedTuple):
    module: str
    line: int
    text: str
    function: str = ""  # of the module, or class, that gives it


# -- collecting ------------------------------------------------------------------------------------


@functools.cache
def modules() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".") for path in paths]
    return {
        name.removesuffix(".__init__"): ast.parse(path.read_text())
        for name, path in zip(names, paths, strict=True)
    }


@functools.cache
def every_advice() -> list[Advice]:
    found = [Advice("tokmill.reviews.review", 0, check.advice) for check in CHECKS]
    for module, tree in modules().items():
        for part in tree.body:
            for node in ast.walk(part):
                for keyword in node.keywords if isinstance(node, ast.Call) else ():
                    if keyword.arg == "next":
                        texts, own = set(spellings(keyword.value, tree)), getattr(part, "name", "")
                        found += [Advice(module, node.lineno, text, own) for text in sorted(texts)]
    return found


def spellings(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Every text that it can be, with X for what is not written here."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            parts = [next(iter(spellings(value, tree)), UNKNOWN) for value in values]
            yield "".join(parts)
            for value in values:
                if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Name | ast.Call):
                    yield from spellings(value.value, tree)
        case ast.FormattedValue():
            yield UNKNOWN
        case ast.BinOp(left=left, right=right):
            for first in spellings(left, tree):
                for second in spellings(right, tree):
                    yield first + second
        case ast.IfExp(body=body, orelse=orelse):
            yield from spellings(body, tree)
            yield from spellings(orelse, tree)
        case ast.Name(id=name):
            for other in ast.walk(tree):
                if isinstance(other, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == name for target in other.targets
                ):
                    yield from spellings(other.value, tree)
        case ast.Call(func=ast.Name(id=name)):
            for other in ast.walk(tree):
                if isinstance(other, ast.FunctionDef) and other.name == name:
                    for inner in ast.walk(other):
                        if isinstance(inner, ast.Return) and inner.value is not None:
                            yield from spellings(inner.value, tree)


# -- what exists -----------------------------------------------------------------------------------


@functools.cache
def commands() -> dict[str, click.Command]:
    """By name, those of groups as "tokenizer train"."""
    found: dict[str, click.Command] = {}
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": sub for inner, sub in command.commands.items()}
    return found


def options_of(command: click.Command) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}


@functools.cache
def parameters() -> frozenset[str]:
    """Of functions and classes that people call from Python."""
    import tokmill
    import tokmill.loader

    faces = [getattr(tokmill, name) for name in tokmill.__all__]
    faces += [getattr(tokmill.loader, name) for name in tokmill.loader.__all__]
    faces += [importlib.import_module("tokmill.loader.collating").collate]
    functions = [face for face in faces if inspect.isfunction(face) or inspect.isclass(face)]
    return frozenset(name for face in functions for name in inspect.signature(face).parameters)


@functools.cache
def values() -> frozenset[str]:
    """Of keys that have some to choose from."""
    schemas = [Recipe.model_json_schema(), MixtureFile.model_json_schema()]

    def walk(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (str(value) for value in part.get("enum", []))
            if "const" in part:
                yield str(part["const"])
            for inner in part.values():
                yield from walk(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from walk(inner)

    return frozenset(value for schema in schemas for value in walk(schema))


# Typed, and neither ours nor a key: programs of others, and what stands for itself.
OTHERS = re.compile(
    r"(xz -6|zstd -19|jq -c '\.KEY\[\]' FILE|iconv -f UTF-16 -t UTF-8( FILE)?|"
    r"pip install .*|dask worker ADDRESS|ray status|ray\.shutdown\(\)|ray start --num-cpus N|uninstall "
    r"gigatoken|squeue --me|which sbatch|SLURM_CONF"
    r"|HF_TOKEN|HF_ENDPOINT|HF_HUB_OFFLINE|\*-0000\[0-3\]\.jsonl\.zst|\*|translation\.en|en|eng|Latn|eng_Latn|chars"
    r"|hooks\.py:\w+|LicenseRef-NAME|X\.tar\.gz|datasets|domains|weight|sources|TMPDIR|X|configs|ray "
    r"start|digit_share<=0\.3|gopher-quality\.min_words=30|docs=1000"
    r"|\{\"source\": \"NAME\", \"doc_id\": \"ID\"\})"
)


def fault_of(typed: str) -> str | None:
    """What is wrong with something that people are told to type."""
    if typed.startswith("tokmill "):
        words = typed.split()[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in commands() else words[0]
        if name not in commands():
            return f"there is no command {name}"
        lacking = {word.partition("=")[0] for word in words if word.startswith("--")} - options_of(
            commands()[name]
        )
        return f"{name} has no {lacking}" if lacking else None
    if typed.startswith("--"):
        known = set().union(*(options_of(command) for command in commands().values()))
        return None if typed.split()[0].partition("=")[0] in known else f"no command has {typed}"
    if names_keys(typed.replace("…", UNKNOWN)) or typed in values() or OTHERS.fullmatch(typed):
        return None
    called = re.fullmatch(r"(\w+)(=.*)?", typed)
    if called and called[1] in parameters():
        return None
    return "neither a command, an option, a key of recipes, one of its values, nor a parameter"


# -- the tests -------------------------------------------------------------------------------------


def test_there_is_advice_to_check() -> None:
    assert len(every_advice()) > 300
    assert {"tokmill.stages.clean", "tokmill.packing.mixture", "tokmill.storage.lease"} <= {
        advice.module for advice in every_advice()
    }


def test_everything_that_advice_tells_to_type_exists() -> None:
    faults = [
        f"{advice.module}:{advice.line}: `{typed}`: {fault}"
        for advice in every_advice()
        for typed in TYPED.findall(advice.text)
        if (fault := fault_of(typed)) is not None
    ]
    assert not faults, "\n".join(faults)


def test_what_can_be_typed_stands_between_backticks() -> None:
    last_names = {path[-1] for path in key_paths()}
    faults = []
    for advice in every_advice():
        prose = TYPED.sub("", advice.text)
        prose = re.sub(
            r"\be\.g\.|[\w*-]+(\.\w+)*\.(json|jsonl|md|yaml|zst|model|bin|idx)\b|\.to_pylist\(\)", "", prose
        )
        bare = re.findall(r"(?<![\w/])--[a-z][\w-]*|\btokmill [a-z]+\b(?= --|$)|\b[a-z]+_[a-z_]+\b", prose)
        bare += [key for key in re.findall(r"(?:set|with|or|and) ([a-z_]+): ", prose) if key in last_names]
        bare += re.findall(r"\b(?:[a-z_]+\.)+[a-z_]+\b", prose)
        faults += [f"{advice.module}:{advice.line}: {word} in: {advice.text}" for word in bare]
    assert not faults, "\n".join(faults)


def test_extras_and_pages_that_advice_names_are_there() -> None:
    faults = []
    for advice in every_advice():
        for extra in re.findall(r"tokmill\[(\w+)\]", advice.text):
            if extra != UNKNOWN and extra not in PROJECT["optional-dependencies"]:
                faults.append(f"{advice.module}:{advice.line}: extra {extra}")
        for page in re.findall(r"docs/[\w/-]+\.md", advice.text):
            if not (ROOT / page).is_file():
                faults.append(f"{advice.module}:{advice.line}: {page}")
    assert not faults, "\n".join(faults)


@functools.cache
def reached_from(module: str) -> frozenset[str]:
    """Every module that it imports, and they import, wherever the import stands."""
    seen = {"tokmill"}  # the public face, which loads what is asked for
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        for node in ast.walk(modules()[name]):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return frozenset(seen)


@functools.cache
def functions() -> dict[str, str]:
    """The modules of the functions of verbs, by their names."""
    return {name: home for verb, row in read_verbs().items() for name, home in row.functions(verb).items()}


# Modules with the functions of verbs, which share some of what they check: by function.
BY_FUNCTION = {*functions().values(), "tokmill.adhoc.reading"}


def used_by(verb: str) -> set[tuple[str, str]]:
    """The functions of such modules that its function calls, and those that they call."""
    seen: set[tuple[str, str]] = set()
    waiting = [(functions()[verb], verb)]
    while waiting:
        module, name = waiting.pop()
        if (module, name) in seen or module not in BY_FUNCTION:
            continue
        seen.add((module, name))
        tree = modules()[module]
        imported = {
            alias.name: node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for part in tree.body:
            if getattr(part, "name", None) == name:
                named = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
                waiting += [(imported.get(other, module), other) for other in sorted(named)]
    return seen


@pytest.mark.parametrize("name", sorted(commands()))
def test_advice_names_no_option_that_the_command_which_meets_it_lacks(name: str) -> None:
    command, verb = commands()[name], f"{name}_" if iskeyword(name) else name.replace(" ", "_")
    if isinstance(command, click.Group):
        return
    used = used_by(verb)
    reached = frozenset[str]().union(*(reached_from(module) for module, _ in used)) - BY_FUNCTION
    faults = []
    for advice in every_advice():
        if advice.module not in reached and (advice.module, advice.function) not in used:
            continue
        for typed in TYPED.findall(fit_advice(advice.text, command)):
            if typed.startswith("--") and typed.split()[0].partition("=")[0] not in options_of(command):
                faults.append(f"{advice.module}:{advice.line}: {typed} in: {advice.text}")
    assert not faults, "\n".join(faults)
    assert len(reached) > 3
