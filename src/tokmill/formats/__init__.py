"""What a format is, and which there are.

    Format   name · recognizes · open_store · check          a directory of one split, read
             write · shapes · dtypes · is_sharded            what a recipe may ask for, and how it is written
             checksums · list_splits · hub_files · needs     what only some have

All that the rest knows of a format hangs off its record, which stands at the end of the format's own file.
Adding one touches that file and one line below. A format of somebody else's (`tokmill.artifacts.plugins`) is
named in recipes, built, loaded and verified like ours: the record of an installed package in every process
that can import it, one in a Python file beside a recipe (`hooks.py:MDS`) in every process that is shown the
file.

Trainers read builds with NumPy alone. So a format's file imports NumPy, msgspec and our own storage at its
top, nothing heavier: its writer is handed the tokens (`Tokens`) and need not know what made them, and what
one format alone needs (Arrow) is imported in the function that uses it. Records are loaded by name when they
are asked for: a recipe that is only read, and `import tokmill.loader`, load none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from tokmill.artifacts.packages import installed, installed_digest
from tokmill.artifacts.plugins import Plugin, find_plugin, is_hook, own_record
from tokmill.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokmill.artifacts.manifest import FileEntry
    from tokmill.formats.description import FilePart
    from tokmill.formats.ids import Sequences
    from tokmill.formats.stores import Store

# In the order in which a directory is asked what it is.
_OURS = {
    "token_cache": "tokmill.formats.token_cache:TOKEN_CACHE",
    "memmap": "tokmill.formats.memmap:MEMMAP",
    "megatron": "tokmill.formats.megatron:MEGATRON",
    "parquet": "tokmill.formats.parquet:PARQUET",
    "npy": "tokmill.formats.npy:NPY",
    "nanogpt": "tokmill.formats.nanogpt:NANOGPT",
    "llmc": "tokmill.formats.llmc:LLMC",
    "olmo": "tokmill.formats.olmo:OLMO",
    "nanotron": "tokmill.formats.nanotron:NANOTRON",
    "mds": "tokmill.formats.mds:MDS",
    "litdata": "tokmill.formats.litdata:LITDATA",
    "arrow": "tokmill.formats.arrow:ARROW",
    "levanter": "tokmill.formats.levanter:LEVANTER",
}
# Asked last, and no name for a recipe: shards of others, which nothing describes.
_BARE = "tokmill.formats.npy:BARE"

Shape = Literal["rows", "documents"]
Columns = Literal["ids", "huggingface", "huggingface_documents"]  # beside the ids: see formats/parquet.py


class Tokens(Protocol):
    """The tokens of one split, as a writer gets them. Iterators may be asked for again and again."""

    @property
    def split(self) -> str: ...
    @property
    def rows(self) -> int:
        """Rows of equal length, or documents."""

    @property
    def split_rows(self) -> int:
        """Of the whole split, of which these may be a stretch (`Parts.write`)."""

    @property
    def seq_len(self) -> int:
        """0: documents, each as long as it is."""

    @property
    def dtype(self) -> str:
        """One of the format's own."""

    @property
    def rows_per_shard(self) -> int: ...
    @property
    def columns(self) -> Columns:
        """One of the format's own. What is not "ids" needs the positions of `read_sequences`."""

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """file, sha256, vocab_size, eos_id, and what else is known of it."""

    @property
    def experiment_id(self) -> str: ...
    def describe(self) -> dict[str, Any]:
        """For a description beside the ids: layout, tokenizer, padding, counts, and when it was made; in the
        rest of a run `is_in_order`, which loaders heed."""

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        """(n, seq_len) each, in arrays that are used again: be done with one before asking for the next."""

    def read_ids(self) -> Iterator[NDArray[np.integer]]:
        """All ids in their order, some at a time, in arrays that are used again."""

    def read_sequences(self) -> Iterator[Sequences]:
        """Rows, or documents with their names; some at a time."""

    @property
    def has_loss(self) -> bool:
        """Has the build a token that is not learned? Then `read_loss`, and `loss` of sequences, say which."""

    def read_loss(self) -> Iterator[NDArray[np.integer]]:
        """Of the rows of `read_rows`: 1 where a token is learned, 0 elsewhere and at padding; uint8."""

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        """Tokens of all documents, some at a time."""


@dataclass(frozen=True)
class Parts:
    """How a format of several files is written, each by itself: tasks share a split.

    cut        rows and tokens of each file, from lengths alone; None: they do not hold whole rows
    write      files first, first + 1, … of these tokens, whose first row is the first of a file
    describe   what speaks of all files, written last; all entries, in order
    """

    cut: Callable[[Tokens], Iterable[tuple[int, int]] | None]
    write: Callable[[Path, Tokens, int], list[FilePart]]
    describe: Callable[[Path, Tokens, Sequence[FilePart]], list[FileEntry]]

    def write_all(self, directory: Path, tokens: Tokens) -> list[FileEntry]:
        return self.describe(directory, tokens, self.write(directory, tokens, 0))


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

    # Its files for random access: (directory, split), the split where `list_splits` tells of several.
    # Opens without reading the ids, and refuses what is cut.
    open_store: Callable[[Path, str | None], Store]

    # Reads all of a split as its reader would; a TokmillError says what is wrong, and in which file.
    check: Callable[[Path], None]

    # Writes a split into the directory, which need not be there, through `storage.disk`; the description
    # comes last. Paths are relative to the directory. The same tokens give the same bytes, or the same
    # `content_sha256`. None: the format is only read.
    write: Callable[[Path, Tokens], list[FileEntry]] | None = None

    # Of a format in several files: the steps that `write` is made of (`Parts.write_all`).
    parts: Parts | None = None

    shapes: tuple[Shape, ...] = ("rows", "documents")  # what it can hold: `layout: indexed` gives documents
    dtypes: tuple[str, ...] = ("int32",)  # of ids
    # The dtype that its trainer takes ids to have where it goes by the number of ids in the vocabulary.
    read_as: Callable[[int], str] | None = None
    columns: tuple[Columns, ...] = ("ids",)  # what it can write of a sequence
    has_loss: bool = False  # has a place for a mask of what is learned
    is_sharded: bool = False  # takes `rows_per_shard`

    # Of a directory that holds several splits, their names.
    list_splits: Callable[[Path], list[str]] = _no_splits

    checksums: Checksums | None = None
    hub_files: str | None = None  # glob of what `datasets.load_dataset` reads as it is
    needs: tuple[str, ...] = ()  # packages beyond NumPy and msgspec, to write and to read


def find_format(name: str, plugin: Plugin | None = None) -> Format:
    """The record of this name, and what it needs is there. `plugin`:
    what a build says of it, if it is none of ours."""
    if name in _OURS:
        return require_packages(own_record(_OURS[name]))
    if plugin is None and name in installed("formats"):
        plugin = Plugin("formats", name, installed_digest("formats", name))
    if plugin is None:
        raise InputError(
            f"there is no format {name!r}",
            where="format",
            next=f"one of {', '.join(format_names())}; a package may bring others",
        )
    return require_packages(plugin.load_record(Format))


def resolve_format(name: str, base: Path, where: str) -> tuple[Format, Plugin | None]:
    """The same of a recipe that lies in `base`; and the plugin, if it is none of ours."""
    plugin = None if name in _OURS else find_plugin("formats", name, base, where, _OURS)
    return find_format(name, plugin), plugin


def plugin_of(config: Mapping[str, Any]) -> Plugin | None:
    """Whose format a build has, as its manifest says; None: it is one of ours."""
    return msgspec.convert(config["plugin"], Plugin) if "plugin" in config else None


def format_of(config: Mapping[str, Any]) -> Format:
    """To read a build: by the package that is installed now, or by the very file that it was written with."""
    plugin = plugin_of(config)
    return find_format(config["format"], plugin if plugin and plugin.is_hook else None)


def require_packages(format: Format) -> Format:
    for package in format.needs:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"the format {format.name} needs {package}", where="format", next=f"pip install {package}"
            )
    return format


def known_format(name: str) -> Format | None:
    """The record of this name, unless it lies beside a recipe or nowhere."""
    return find_format(name) if name in _OURS or name in installed("formats") else None


def is_format(name: str) -> bool:
    """May a recipe ask for it? Others' packages are looked for only where it is none of ours."""
    return name in _OURS or is_hook(name) or name in installed("formats")


def format_names(shape: Shape | None = None) -> list[str]:
    """Of those that a recipe may ask for, or that hold rows, or documents."""
    names = sorted({*installed("formats"), *_OURS})
    return names if shape is None else [name for name in names if shape in find_format(name).shapes]


def all_formats() -> Iterator[Format]:
    """Those that can be read too, one by one as they are loaded."""
    yield from map(own_record, _OURS.values())
    yield from (find_format(name) for name in installed("formats") if name not in _OURS)
    yield own_record(_BARE)


def recognize(directory: Path) -> Format | None:
    """The format of a directory."""
    return next((one for one in all_formats() if one.recognizes(directory)), None)
