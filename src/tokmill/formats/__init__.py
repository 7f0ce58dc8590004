"""What a format is, and which there are.

    Format   name · recognizes · open_store · check          a directory of one split, read
             write · shapes · dtypes · is_sharded            what a recipe may ask for, and how it is written
             checksums · list_splits · hub_files · needs     what only some have

All that the rest knows of a format hangs off its record, which stands at the end of the format's own file. Adding one
touches that file and one line below. A package of somebody else's has the same line in its pyproject.toml, and its formats
are then named in recipes, built, loaded and verified like ours, in every process that can import it:

    [project.entry-points."tokmill.formats"]
    mds = "my_package.mds:MDS"

Trainers read builds with NumPy alone. So a format's file imports NumPy, msgspec and our own storage at its top, nothing
heavier: its writer is handed the tokens (`Tokens`) and need not know what made them, and what one format alone needs
(Arrow) is imported in the function that uses it. Records are loaded by name when they are asked for: a recipe that is
only read, and `import tokmill.loader`, load none of them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tokmill.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokmill.artifacts.manifest import FileEntry
    from tokmill.formats.ids import Sequences, Store

ENTRY_POINTS = "tokmill.formats"

# In the order in which a directory is asked what it is.
_OURS = {
    "token_cache": "tokmill.formats.token_cache:TOKEN_CACHE",
    "memmap": "tokmill.formats.memmap:MEMMAP",
    "megatron": "tokmill.formats.megatron:MEGATRON",
    "parquet": "tokmill.formats.parquet:PARQUET",
    "npy": "tokmill.formats.npy:NPY",
}
# Asked last, and no name for a recipe: shards of others, which nothing describes.
_BARE = "tokmill.formats.npy:BARE"

Shape = Literal["rows", "documents"]


class Tokens(Protocol):
    """The tokens of one split, as a writer gets them. Iterators may be asked for again and again."""

    @property
    def split(self) -> str: ...
    @property
    def rows(self) -> int:
        """Rows of equal length, or documents."""

    @property
    def seq_len(self) -> int:
        """0: documents, each as long as it is."""

    @property
    def dtype(self) -> str:
        """One of the format's own."""

    @property
    def rows_per_shard(self) -> int: ...
    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """file, sha256, vocab_size, eos_id, and what else is known of it."""

    @property
    def experiment_id(self) -> str: ...
    def describe(self) -> dict[str, Any]:
        """For a description beside the ids: layout, tokenizer, padding, counts, and when it was made."""

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        """(n, seq_len) each, in one array that is used again: be done with one before asking for the next."""

    def read_sequences(self) -> Iterator[Sequences]:
        """Rows, or documents with their names; some at a time."""

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        """Tokens of all documents, some at a time."""


class ListedFile(NamedTuple):
    path: str  # relative to the directory
    rows: int
    sha256: str


class Checksums(NamedTuple):
    """How a directory proves itself where no manifest.json speaks for it."""

    file: str  # lists the others; written last
    kind: str  # what people call such a directory: "token caches"
    parts: str  # the directory below in which nothing but listed files belongs
    read: Callable[[Path], list[ListedFile]]


def _no_splits(directory: Path) -> list[str]:
    return []


@dataclass(frozen=True)
class Format:
    name: str

    # Is this a directory of the format? Looks at names, and at the description at most.
    recognizes: Callable[[Path], bool]

    # Its files for random access: (directory, split), the split where `list_splits` tells of several. Opens without
    # reading the ids, and refuses what is cut.
    open_store: Callable[[Path, str | None], Store]

    # Reads all of a split as its reader would; a TokmillError says what is wrong, and in which file.
    check: Callable[[Path], None]

    # Writes a split into the directory, which need not be there, through `storage.disk`; the description comes last.
    # Paths are relative to the directory. The same tokens give the same bytes, or the same `content_sha256`. None:
    # the format is only read.
    write: Callable[[Path, Tokens], list[FileEntry]] | None = None

    shapes: tuple[Shape, ...] = ("rows", "documents")  # what it can hold: `layout: indexed` gives documents
    dtypes: tuple[str, ...] = ("int32",)  # of ids
    is_sharded: bool = False  # takes `rows_per_shard`

    # Of a directory that holds several splits, their names.
    list_splits: Callable[[Path], list[str]] = _no_splits

    checksums: Checksums | None = None
    hub_files: str | None = None  # glob of what `datasets.load_dataset` reads as it is
    needs: tuple[str, ...] = ()  # packages beyond NumPy and msgspec, to write and to read


def find_format(name: str) -> Format:
    """The record of this name, and what it needs is there."""
    target = _OURS.get(name) or _others().get(name)
    if target is None:
        raise InputError(
            f"there is no format {name!r}",
            where="format",
            next=f"one of {', '.join(format_names())}; a package may bring others",
        )
    return require_packages(_load(target))


def require_packages(format: Format) -> Format:
    for package in format.needs:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"the format {format.name} needs {package}", where="format", next=f"pip install {package}"
            )
    return format


def is_format(name: str) -> bool:
    """May a recipe ask for it? Others' packages are looked for only where it is none of ours."""
    return name in _OURS or name in _others()


def format_names(shape: Shape | None = None) -> list[str]:
    """Of those that a recipe may ask for, or that hold rows, or documents."""
    names = sorted({**_others(), **_OURS})
    return names if shape is None else [name for name in names if shape in find_format(name).shapes]


def all_formats() -> Iterator[Format]:
    """Those that can be read too, one by one as they are loaded."""
    yield from map(_load, _OURS.values())
    yield from (_load(target) for name, target in _others().items() if name not in _OURS)
    yield _load(_BARE)


def recognize(directory: Path) -> Format | None:
    """The format of a directory."""
    return next((one for one in all_formats() if one.recognizes(directory)), None)


@functools.cache
def _others() -> dict[str, str]:
    import importlib.metadata

    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in sorted(points, key=lambda point: point.name)}


@functools.cache
def _load(target: str) -> Format:
    module, _, attribute = target.partition(":")
    try:
        record = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _unusable(target, f"cannot be loaded ({error})") from error
    if not isinstance(record, Format):
        raise _unusable(target, "is not a tokmill.formats.Format")
    return record


def _unusable(target: str, what: str) -> InputError:
    return InputError(
        f"the format at {target} {what}",
        where=f"entry points of {ENTRY_POINTS}",
        next="install the package that has it anew, or remove it",
    )
