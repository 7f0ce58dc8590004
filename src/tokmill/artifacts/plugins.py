"""Other people's code: a name in a Python file beside the recipe, or an entry point of an installed package.

    hooks.py:shouting    the file's path is relative to the recipe      digest: sha256 of the file
    my-measure           [project.entry-points."tokmill.measures"]      digest: distribution, version, hashes of its RECORD
                         my-measure = "my_package:shouting"

    kind         what it is                                                      named in a recipe by
    readers      (path, **options) -> dicts, the records of a file               sources[].reader
    measures     (columns) -> a number for each document                         filters[].measure
    transforms   (columns) -> a text for each document                           transforms
    formats      a tokmill.formats.Format                                        builds[].format
    tokenizers   (**options) -> vocab_size, encode_batch, decode, token_id       tokenizer.plugin

    driver   find_plugin(kind, name, base) -> Plugin(kind, name, digest)         part of the step: other code, other result
    worker   plugin.call(…)                                                      other code than that is refused

What it answers is checked at the door, and what goes wrong there is told as theirs. A hook's file runs in processes that
were shown it: by a recipe, by a task, or by whoever opens a build (`show_hooks`). No file is run because it lies beside data.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import functools
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokmill.errors import InputChanged, InputError, RecipeError, TokmillError

Kind = Literal["readers", "measures", "transforms", "formats", "tokenizers"]

HOOK = r"^[^:\n]+\.py:[A-Za-z_]\w*$"

# Documents, or records, that are asked for twice: what is drawn or counted differs within a few.
SAMPLE = 64

_shown: dict[str, Path] = {}  # hook files by their sha256
_asked: set[Plugin] = set()  # those that a sample was asked of twice, in this process


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
        if self.kind != "formats" and not callable(found):
            raise RecipeError(
                f"the {self.noun} is {_kind_of(found)}, not a function",
                where=self.where,
                next="name a function",
            )
        return found

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

    def ask(self, columns: Mapping[str, Any], check: Callable[[Any, int], Any]) -> Any:
        """What it answers for the columns, as `check` takes it for so many rows."""
        if self.is_first_call():
            some = {name: column.slice(0, SAMPLE) for name, column in columns.items()}
            rows = len(some["text"])
            first, second = (check(self.call(some), rows).tolist() for _ in range(2))
            self.refuse_difference(first, second)
        return check(self.call(columns), len(columns["text"]))

    def is_first_call(self) -> bool:
        """In this process: once for each."""
        is_first = self not in _asked
        _asked.add(self)
        return is_first

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


def is_hook(name: str) -> bool:
    return re.match(HOOK, name) is not None


def find_plugin(kind: Kind, name: str, base: Path, where: str, ours: Iterable[str] = ()) -> Plugin:
    """What a recipe names, loaded once to see that it can be. `ours`: other names that it could have meant."""
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
    """This process may run the file. Its sha256: that of its bytes, unless a task says what they must be."""
    digest = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
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


@functools.lru_cache(maxsize=64)
def _module(sha256: str, path: Path) -> types.ModuleType:
    code = path.read_bytes()
    if hashlib.sha256(code).hexdigest() != sha256:
        raise InputChanged("the hook changed while it was in use", where=str(path), next="run again")
    module = types.ModuleType(f"tokmill_hook_{sha256[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickles look their module up
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise RecipeError(
            f"the hook cannot be loaded ({_says(error, str(path))})", where=str(path), next="fix the file"
        ) from error
    return module


def _told(error: BaseException, plugin: Plugin) -> str:
    if plugin.is_hook:
        return _says(error, str(plugin.path))
    module = sys.modules.get(_points(plugin.kind)[plugin.name].module)
    return _says(error, getattr(module, "__file__", None) or "")


def _says(error: BaseException, file: str) -> str:
    """What it says of itself, and the last line of the file that it passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    says = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{says}; line {lines[-1]}" if lines else says


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {_shortened(value)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# --- installed packages ---


@functools.cache
def _points(kind: Kind) -> dict[str, Any]:
    import importlib.metadata

    points = importlib.metadata.entry_points(group=f"tokmill.{kind}")
    return {point.name: point for point in sorted(points, key=lambda point: (point.name, point.value))}


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
