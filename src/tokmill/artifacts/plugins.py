"""Other people's code: a name in a Python file beside the recipe, or an entry point of an installed package.

    hooks.py:shouting    the file's path is relative to the recipe    digest: sha256 of the file;
                                                                      where it imports files beside it
                                                                      or has INPUTS, of all their sha256
    my-measure           [project.entry-points."tokmill.measures"]    digest: distribution, version,
                         my-measure = "my_package:shouting"           hashes of its RECORD

    kind         what it is                                                      named in a recipe by
    readers      (path, **options) -> dicts, the records of a file               sources[].reader
    measures     (columns) -> a number for each document                         filters[].measure
    transforms   (columns) -> a text for each document                           transforms
    formats      a tokmill.formats.Format                                        builds[].format
    tokenizers   (**options) -> vocab_size, encode_batch, decode, token_id       tokenizer.plugin
    scores       a tokmill.scores.ScoreKind                                      scores[].plugin

    driver   find_plugin(kind, name, base) -> Plugin(kind, name, digest)         part of the step: other code,
                                                                                 other result
    worker   plugin.call(…)                                                      other code than that
                                                                                 is refused

What it answers is checked at the door, and what goes wrong there is told as theirs. A hook's file runs in
processes that were shown it: by a recipe, by a task, or by whoever opens a build (`show_hooks`). No file is
run because it lies beside data.

    # hooks.py
    import lists                         lists.py beside it: found, and part of the digest
    INPUTS = ["model.bin"]               files that it reads, relative to it, written out: part of the digest
    def shouting(columns):               columns["text"] is a list of str, and an Arrow column to pyarrow
        return [text.count("!") for text in columns["text"]]
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import csv
import difflib
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from tokmill.errors import InputChanged, InputError, RecipeError, TokmillError

Kind = Literal["readers", "measures", "transforms", "formats", "tokenizers", "scores"]

Record = TypeVar("Record")

_RECORDS = ("formats", "scores")  # kinds whose plugins are records, not functions

HOOK = r"^[^:\n]+\.py:[A-Za-z_]\w*$"

# Documents, or records, that are asked for twice: what is drawn or counted differs within a few.
SAMPLE = 64

_shown: dict[str, Path] = {}  # hook files by their sha256
_asked: dict[Plugin, int] = {}  # how many documents each was asked for twice, in this process


class Plugin(msgspec.Struct, frozen=True):
    """Somebody's code, by the name that a recipe has for it and the digest of what it was then."""

    kind: Kind
    name: str
    digest: str

    @property
    def is_hook(self) -> bool:
        return is_hook(self.name)

    @property
    def noun(self) -> str:
        return self.kind.removesuffix("s")

    @property
    def is_shown(self) -> bool:
        return self.digest in _shown

    @property
    def path(self) -> Path:
        """Of a hook: the file that was shown to this process."""
        if not self.is_shown:
            raise InputError(
                f"the {self.noun} is code in a Python file, and needs the one with the sha256 {self.digest}",
                where=self.name,
                next="give that file as `hooks`",
            )
        return _shown[self.digest]

    def beside(self, base: Path) -> Path:
        """Of a hook: its file, where the recipe lies in `base`."""
        return base / Path(self.name.rpartition(":")[0]).expanduser()

    @property
    def where(self) -> str:
        if self.is_hook:
            return f"{self.path}:{self.name.rpartition(':')[2]}"
        return f"{self.name} ({_points(self.kind)[self.name].value})"

    def load(self) -> Any:
        """The very code that the step is known by."""
        if self.is_hook:
            found = getattr(_module(self.digest, self.path), self.name.rpartition(":")[2], None)
            if found is None:
                raise RecipeError(
                    f"there is no {self.noun} `{self.name.rpartition(':')[2]}`",
                    where=str(self.path),
                    next="check the name after the colon",
                )
        else:
            found = _installed(self.kind, self.name)
            if installed_digest(self.kind, self.name) != self.digest:
                raise InputChanged(
                    f"the {self.noun} of this machine is not the one that the step was planned with",
                    where=self.where,
                    next="install the same version of its package on every machine, and run again",
                )
        if self.kind not in _RECORDS and not callable(found):
            raise RecipeError(
                f"the {self.noun} is {_kind_of(found)}, not a function",
                where=self.where,
                next="name a function",
            )
        return found

    def load_record(self, of: type[Record]) -> Record:
        """Of kinds whose plugins are records."""
        record = self.load()
        if not isinstance(record, of):
            raise self.fault(
                f"is a {type(record).__name__}, not a {of.__module__}.{of.__name__}",
                "name the record, not its class or a function of it",
            )
        return record

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Whatever goes wrong within is told as theirs."""
        try:
            yield
        except TokmillError:
            raise
        except (Exception, SystemExit) as error:
            raise self.fault(f"failed ({_told(error, self)})", "fix the function, and run again") from error

    def call(self, *arguments: Any, **options: Any) -> Any:
        function = self.load()
        with self.blamed():
            return function(*arguments, **options)

    def ask(self, columns: Mapping[str, Any], check: Callable[[Any, int], Any], *others: Any) -> Any:
        """What it answers for the columns and the others, as `check` takes it for so many rows."""
        if rows := self.asked_twice(len(columns["text"])):
            some = {name: column.slice(0, rows) for name, column in columns.items()}
            first, second = (check(self.call(Columns(some), *others), rows).tolist() for _ in range(2))
            self.refuse_difference(first, second)
        return check(self.call(Columns(columns), *others), len(columns["text"]))

    def asked_twice(self, count: int) -> int:
        """How many of so many documents it is to be asked for twice: in a process SAMPLE, however few a call
        has."""
        asked = _asked.get(self, 0)
        _asked[self] = min(asked + count, SAMPLE)
        return _asked[self] - asked

    def refuse_difference(self, first: list[Any], second: list[Any]) -> None:
        """Between what it answered to one question, asked twice."""
        if first == second:
            return
        at = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        told = (
            f"{len(first)} answers, then {len(second)}"
            if at is None
            else f"for row {at} {_shortened(first[at])}, then {_shortened(second[at])}"
        )
        raise self.fault(
            f"answers differently when it is asked again: {told}",
            "let it depend on what it is given alone, not on chance, time or earlier calls",
        )

    def fault(self, what: str, next: str) -> InputError:
        return InputError(f"the {self.noun} {what}", where=self.where, next=next)


class Columns(Mapping[str, "Column"]):
    """What a measure and a transform are called with.
    A column becomes a list when it is asked for, and no other does."""

    def __init__(self, arrow: Mapping[str, Any]) -> None:
        self._arrow, self._lists = arrow, dict[str, Column]()

    def __getitem__(self, name: str) -> Column:
        if name not in self._arrow:
            raise KeyError(f"no column {name!r}; there are {', '.join(self._arrow)}")
        if name not in self._lists:
            self._lists[name] = Column(self._arrow[name])
        return self._lists[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrow)

    def __len__(self) -> int:
        return len(self._arrow)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of columns: it is called with all documents, loop over columns['text']"
        )


class Column(list[Any]):
    """Python values, str or None. For pyarrow.compute it is the Arrow column that it was made of,
    without a copy."""

    def __init__(self, arrow: Any) -> None:
        super().__init__(arrow.to_pylist())
        self.arrow = arrow

    def __arrow_array__(self, type: Any = None) -> Any:
        return self.arrow if type is None else self.arrow.cast(type)

    def __getattr__(self, name: str) -> Any:
        """What an Arrow column has and a list has not: `type`, `slice`, `to_numpy`."""
        if name.startswith("__") or name == "arrow":
            raise AttributeError(name)
        return getattr(self.arrow, name)


@functools.cache
def own_record(target: str) -> Any:
    """A record of ours, `module:NAME`, imported when it is first asked for."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def is_hook(name: str) -> bool:
    return re.match(HOOK, name) is not None


def find_plugin(kind: Kind, name: str, base: Path, where: str, ours: Iterable[str] = ()) -> Plugin:
    """What a recipe names, loaded once to see that it can be. `ours`:
    other names that it could have meant."""
    if is_hook(name):
        path = Plugin(kind, name, "").beside(base)
        if not path.is_file():
            raise RecipeError(
                "no such file", where=f"{where}: {name}", next="the path of a hook is relative to the recipe"
            )
        plugin = Plugin(kind, name, show_hooks(path))
    elif name in _points(kind):
        plugin = Plugin(kind, name, installed_digest(kind, name))
    else:
        raise _unknown(kind, name, sorted({*ours, *_points(kind)}), where)
    plugin.load()
    return plugin


def show_hooks(path: Path, sha256: str | None = None) -> str:
    """This process may run the file. Its digest: that of what it is now,
    unless a task says what it must be."""
    digest = sha256 or hook_digest(path)
    _shown[digest] = path
    return digest


def installed(kind: Kind) -> list[str]:
    """Names of the entry points that there are."""
    return list(_points(kind))


def _unknown(kind: Kind, name: str, known: list[str], where: str) -> RecipeError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    some = f"one of {', '.join(known)}; " if 0 < len(known) <= 12 else ""
    return RecipeError(
        f"there is no {kind.removesuffix('s')} `{name}`",
        where=where,
        next=f"did you mean {' or '.join(f'`{one}`' for one in near)}?"
        if near
        else f"{some}install the package that has it, or name a function of a Python file beside the recipe",
    )


# --- hooks ---


class _Hook(NamedTuple):
    """A hook as it lies on disk: the Python files by the name that they are imported by, its own first,
    and the digest."""

    modules: dict[str, bytes]
    digest: str


def hook_digest(path: Path) -> str:
    return _read_hook(path).digest


def hook_files(path: Path) -> list[Path]:
    """All that its digest is of: the file, those beside it that it imports, and what they declare."""
    found: list[Path] = []
    for name in _read_hook(path).modules:
        file = path.with_name(f"{name}.py")
        found.append(file)
        with contextlib.suppress(SyntaxError, ValueError):
            found += _declared_inputs(ast.parse(file.read_bytes()), file)
    return list(dict.fromkeys(found))


def _read_hook(path: Path) -> _Hook:
    """Imports and INPUTS are read from the text: nothing is run to know what it needs."""
    modules = {path.stem: path.read_bytes()}
    hashes: dict[str, str] = {}
    unread = [path.stem]
    while unread:
        file = path.with_name(f"{unread.pop()}.py")
        code = modules[file.stem]
        hashes[file.name] = hashlib.sha256(code).hexdigest()
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            continue  # told with its line when it is loaded
        for name in _imported(tree) - modules.keys() - sys.stdlib_module_names:
            if path.with_name(f"{name}.py").is_file():
                modules[name] = path.with_name(f"{name}.py").read_bytes()
                unread.append(name)
        for item in _declared_inputs(tree, file):
            status = item.stat()
            name = Path(os.path.relpath(item, path.parent)).as_posix()
            hashes[name] = _input_sha256(item, status.st_size, status.st_mtime_ns)
    if len(hashes) == 1:
        return _Hook(modules, *hashes.values())
    return _Hook(modules, hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest())


def _imported(tree: ast.Module) -> set[str]:
    """Modules without a dot, wherever in the file it imports them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def _declared_inputs(tree: ast.Module, file: Path) -> list[Path]:
    """Files, and those in folders."""
    found: list[Path] = []
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="INPUTS")], value=value)
                | ast.AnnAssign(target=ast.Name(id="INPUTS"), value=value)
            ):
                where = f"{file}, line {node.lineno}"
            case _:
                continue
        try:
            names = msgspec.convert(ast.literal_eval(value or ""), list[str])
        except (ValueError, TypeError):
            raise RecipeError(
                "INPUTS of a hook is a list of paths, written out",
                where=where,
                next='write INPUTS = ["model.bin"]; nothing is run to read it',
            ) from None
        for path in (file.parent / name for name in names):
            if not path.exists():
                raise RecipeError(
                    f"the hook declares the input {os.path.relpath(path, file.parent)}, and there is no such "
                    "file",
                    where=where,
                    next="put it there; the path is relative to the Python file",
                )
            found += sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]
    return found


@functools.lru_cache(maxsize=1024)
def _input_sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Once for all sources that a hook judges: a model may have gigabytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=64)
def _module(digest: str, path: Path) -> types.ModuleType:
    hook = _read_hook(path)
    if hook.digest != digest:
        raise InputChanged(
            "the hook changed while it was in use, or a file that it imports or declares",
            where=str(path),
            next="run again",
        )
    loaded: dict[str, types.ModuleType] = {}

    def load(name: str) -> types.ModuleType:
        if name not in loaded:
            file = str(path.with_name(f"{name}.py"))
            # with the digest: files of two recipes may share a name;
            # dataclasses and pickles look their module up
            module = types.ModuleType("_".join(["tokmill_hook", digest[:16], *([name] if loaded else [])]))
            loaded[name] = sys.modules[module.__name__] = module
            import_beside = {**vars(builtins), "__import__": load_or_import}
            module.__dict__.update(__file__=file, __builtins__=import_beside)
            try:
                exec(compile(hook.modules[name], file, "exec"), module.__dict__)
            except BaseException:
                del loaded[name], sys.modules[module.__name__]
                raise
        return loaded[name]

    def load_or_import(name: str, *scope: Any, **more: Any) -> types.ModuleType:
        """`import` as the files of this hook have it: of the standard library, beside them, installed."""
        is_beside = name in hook.modules and name not in sys.stdlib_module_names
        return load(name) if is_beside else __import__(name, *scope, **more)

    try:
        return load(path.stem)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"the hook cannot be loaded ({_says(error, path, path.parent.glob('*.py'))})",
            where=str(path),
            next="fix the file",
        ) from error


def _told(error: BaseException, plugin: Plugin) -> str:
    if plugin.is_hook:
        return _says(error, plugin.path, plugin.path.parent.glob("*.py"))
    module = sys.modules.get(_points(plugin.kind)[plugin.name].module)
    return _says(error, Path(getattr(module, "__file__", None) or ""))


def _says(error: BaseException, file: Path, beside: Iterable[Path] = ()) -> str:
    """What it says of itself, and the last line of the file, or of those beside it, that it passed."""
    files = {str(path): f" of {path.name}" for path in beside} | {str(file): ""}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    says = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{says}; line {frames[-1].lineno}{files[frames[-1].filename]}" if frames else says


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {_shortened(value)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- installed packages ---

# Ours, through the same door: they see more than texts, need an extra, and know their digest.
_OURS = {"measures": {"parse_error_share": "tokmill.clean.parsing:PARSE_ERRORS"}}


@functools.cache
def _points(kind: Kind) -> dict[str, Any]:
    import importlib.metadata

    points = importlib.metadata.entry_points(group=f"tokmill.{kind}")
    found = {point.name: point for point in sorted(points, key=lambda point: (point.name, point.value))}
    ours = _OURS.get(kind, {}).items()
    return found | {name: importlib.metadata.EntryPoint(name, value, "") for name, value in ours}


@functools.cache
def _installed(kind: Kind, name: str) -> Any:
    if name not in _points(kind):
        raise InputError(
            f"the {kind.removesuffix('s')} `{name}` is not installed here",
            where=f"entry points of tokmill.{kind}",
            next="install the package that has it, in the version that the step was planned with",
        )
    try:
        return _points(kind)[name].load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the {kind.removesuffix('s')} at {_points(kind)[name].value} cannot be loaded ({error})",
            where=f"entry points of tokmill.{kind}",
            next="install the package that has it anew, or remove it",
        ) from error


@functools.cache
def installed_digest(kind: Kind, name: str) -> str:
    """Of the distribution's own files, as its RECORD has them: the same for any installer, on any machine."""
    point = _points(kind)[name]
    if name in _OURS.get(kind, ()):
        return str(point.load().digest())
    top = point.module.partition(".")[0]
    rows = csv.reader((point.dist.read_text("RECORD") or "").splitlines()) if point.dist else ()
    hashes = {row[0]: row[1] for row in rows if len(row) > 1 and row[1]}
    files = {
        path: sha256
        for path, sha256 in hashes.items()
        if ".dist-info/" not in path
        and not path.startswith(("../", "/"))
        and not path.startswith("__editable__")
    }
    if not any(path.split("/")[0] in (top, f"{top}.py") for path in files):
        files = _files_of(top)  # installed in place: what is listed is not what runs
    whose = (point.dist.name, point.dist.version) if point.dist else ("", "")
    return hashlib.sha256(json.dumps([*whose, sorted(files.items())]).encode()).hexdigest()


def _files_of(module: str) -> dict[str, str]:
    spec = importlib.util.find_spec(module)
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    found = [(path.relative_to(place).as_posix(), path) for place in places for path in place.rglob("*.py")]
    if not found and spec and spec.origin:
        found = [(Path(spec.origin).name, Path(spec.origin))]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found}
