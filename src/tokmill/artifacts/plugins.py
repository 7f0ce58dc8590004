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
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokmill.artifacts.hooks import hook_digest, load_hook, told_of
from tokmill.artifacts.packages import Kind, entry_points, installed_digest, load_entry_point
from tokmill.errors import InputChanged, InputError, RecipeError, TokmillError

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
        return f"{self.name} ({entry_points(self.kind)[self.name].value})"

    def load(self) -> Any:
        """The very code that the step is known by."""
        if self.is_hook:
            found = getattr(load_hook(self.digest, self.path), self.name.rpartition(":")[2], None)
            if found is None:
                raise RecipeError(
                    f"there is no {self.noun} `{self.name.rpartition(':')[2]}`",
                    where=str(self.path),
                    next="check the name after the colon",
                )
        else:
            found = load_entry_point(self.kind, self.name)
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
    elif name in entry_points(kind):
        plugin = Plugin(kind, name, installed_digest(kind, name))
    else:
        raise _unknown(kind, name, sorted({*ours, *entry_points(kind)}), where)
    plugin.load()
    return plugin


def show_hooks(path: Path, sha256: str | None = None) -> str:
    """This process may run the file. Its digest: that of what it is now,
    unless a task says what it must be."""
    digest = sha256 or hook_digest(path)
    _shown[digest] = path
    return digest


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


def _told(error: BaseException, plugin: Plugin) -> str:
    if plugin.is_hook:
        return told_of(error, plugin.path, plugin.path.parent.glob("*.py"))
    module = sys.modules.get(entry_points(plugin.kind)[plugin.name].module)
    return told_of(error, Path(getattr(module, "__file__", None) or ""))


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {_shortened(value)}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
