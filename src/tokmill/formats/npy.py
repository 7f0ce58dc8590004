"""Rows of equal length in NumPy's own files, of a fixed number of rows each.

    <name>/shard_00000.npy …    int32, (rows, seq_len); every shard but the last has rows_per_shard rows
    <name>/loss_mask_00000.npy …    uint8, the same rows, 1 where the id is learned; only where some are not
    <name>/meta.json            seq_len, n_seqs, rows_per_shard, n_shards, dtype, and where they come from;
                                "loss_mask": "loss_mask_*.npy", where there is one

.npy    offset      bytes  what
        0               8  "\\x93NUMPY", version 1, 0
        8               2  length of what follows up to the data, uint16: with the 10 bytes before, 64 or 128
        10                 {'descr': '<i4', 'fortran_order': False, 'shape': (4096, 2048), } spaces \\n
                           ids, little-endian, row after row

`meta.json` is written last and goes first: shards of a build without it do not exist. A shard that an
earlier, longer build left behind is removed before that, so `np.load` over the sorted names is the whole
build too.

Shards that others made have nothing beside them:
a folder of them is read by their headers alone (`BARE`), in the order of the numbers in their names.

OLMo-core reads raw ids under the same suffix, and takes the header for tokens: `olmo` is for it, not this.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, RECEIPTS, STALE_MANIFEST, FileEntry, file_entry
from tokmill.errors import CorruptFile, InputError
from tokmill.formats import Format, Parts, Tokens
from tokmill.formats.description import (
    META_NAME,
    FilePart,
    corrupt,
    load_meta,
    meta_entry,
    remove_stale,
    write_meta,
)
from tokmill.formats.ids import Pieces, npy_header
from tokmill.formats.stores import RowStore, mask_store
from tokmill.storage.disk import Written, map_array, open_commit, remove_file, told_as_unreadable

_PLACES = "places.npy"  # beside the shards of our builds, and none of them
_MASKS = "loss_mask_*.npy"  # likewise
_NUMBERS = re.compile(r"(\d+)")

# 64 MB at 2,048 tokens a row.
ROWS_PER_SHARD = 8192


def shard_name(number: int) -> str:
    return f"shard_{number:05d}.npy"


def mask_name(number: int) -> str:
    return f"loss_mask_{number:05d}.npy"


def write_npy(
    directory: Path,
    rows: Iterable[NDArray[np.integer]],
    *,
    n_seqs: int,
    seq_len: int,
    rows_per_shard: int = ROWS_PER_SHARD,
    meta: Mapping[str, object],
    loss: Iterable[NDArray[np.integer]] | None = None,
) -> dict[str, Written]:
    """Write the ids of `rows` (1-D or 2-D pieces of any size, `n_seqs` rows in total) and what they mean;
    with what is learned of them, where `loss` says it."""
    directory = Path(directory)
    written = _write_shards(directory, rows, loss, range(n_seqs), seq_len, rows_per_shard)
    facts = {**meta, "seq_len": seq_len, "n_seqs": n_seqs, "rows_per_shard": rows_per_shard}
    written[META_NAME] = _describe_shards(directory, facts, written, has_loss=loss is not None)
    return written


def _write_shards(
    directory: Path,
    rows: Iterable[NDArray[np.integer]],
    loss: Iterable[NDArray[np.integer]] | None,
    numbers: range,
    seq_len: int,
    rows_per_shard: int,
) -> dict[str, Written]:
    """Of rows of these numbers, the first of which begins a shard."""
    assert rows_per_shard >= 1, "a shard holds a row at least"
    assert numbers.start % rows_per_shard == 0, f"row {numbers.start} is inside of a shard"
    remove_file(directory / META_NAME)
    written = {}
    streams = [(shard_name, "int32", "<i4", rows)]
    streams += [(mask_name, "uint8", "|u1", loss)] if loss is not None else []
    for name, dtype, kind, arrays in streams:
        ids = Pieces(arrays, dtype, str(directory))
        for first in numbers[::rows_per_shard]:
            number, count = first // rows_per_shard, min(rows_per_shard, numbers.stop - first)
            with open_commit(directory / name(number)) as file:
                file.write(npy_header((count, seq_len), kind))
                for piece in ids.take(count * seq_len):
                    file.write(piece)
            written[name(number)] = file.written
        assert ids.is_empty(), f"{directory}: more ids came than {len(numbers)} rows of {seq_len}"
    return written


def _describe_shards(
    directory: Path, facts: Mapping[str, object], written: Collection[str], *, has_loss: bool
) -> Written:
    own = {"n_shards", "dtype", "loss_mask"}
    assert own.isdisjoint(facts), f"{sorted(own & set(facts))} are counted here, not given"
    for pattern in ("shard_*.npy", _MASKS):
        remove_stale(directory, pattern, written)
    whole = {
        **facts,
        "n_shards": sum(not _is_mask(name) for name in written),
        "dtype": "int32",
        **({"loss_mask": _MASKS} if has_loss else {}),
    }
    return write_meta(directory / META_NAME, whole)


def _is_mask(name: str) -> bool:
    return name.startswith("loss_")


class NpyRows:
    """A directory of shards, mapped read-only as they are asked for; `meta` as it was written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.meta, self._facts = load_meta(self._directory, "npy", "npy shards", _Facts)
        if self._facts.n_shards != -(-self._facts.n_seqs // self._facts.rows_per_shard):
            what = f"{self._facts.n_shards} shards cannot hold {self._facts.n_seqs:,} rows"
            raise corrupt(what, self._directory / META_NAME)

    def __len__(self) -> int:
        return self._facts.n_seqs

    @property
    def seq_len(self) -> int:
        return self._facts.seq_len

    @property
    def n_shards(self) -> int:
        return self._facts.n_shards

    def rows(self) -> list[int]:
        """Of each shard."""
        each = self._facts.rows_per_shard
        return [min(each, len(self) - number * each) for number in range(self.n_shards)]

    @property
    def has_loss(self) -> bool:
        return self._facts.loss_mask is not None

    def shard(self, number: int) -> NDArray[np.integer]:
        """The rows of one shard: a map, read when touched."""
        return self._mapped(shard_name(number), number, np.dtype("<i4"))

    def mask(self, number: int) -> NDArray[np.integer]:
        """What is learned of them."""
        return self._mapped(mask_name(number), number, np.dtype("|u1"))

    def _mapped(self, name: str, number: int, kind: np.dtype[np.integer]) -> NDArray[np.integer]:
        path = self._directory / name
        if not path.is_file():
            raise CorruptFile(
                f"no such file, and {META_NAME} tells of {self.n_shards} shards",
                where=str(path),
                next="copy the directory again",
            )
        rows = min(self._facts.rows_per_shard, len(self) - number * self._facts.rows_per_shard)
        header = npy_header((rows, self.seq_len), kind.str)
        with told_as_unreadable(path), path.open("rb") as file:
            actual = file.read(len(header))
        if actual != header:
            raise corrupt(f"does not begin as {rows:,} rows of {self.seq_len:,} {kind.name} do", path)
        size, expected = path.stat().st_size, len(header) + kind.itemsize * rows * self.seq_len
        if size != expected:
            raise corrupt(f"{size:,} bytes, but its header describes {expected:,}", path)
        return map_array(path, kind, offset=len(header), shape=(rows, self.seq_len))


def list_bare(directory: Path) -> list[Path]:
    """Shards by the numbers in their names: the tenth comes after the second."""
    beside = {_PLACES, *(path.name for path in directory.glob(_MASKS))}
    found = (path for path in directory.glob("*.npy") if path.name not in beside and path.is_file())
    return sorted(found, key=lambda path: [int(p) if p.isdecimal() else p for p in _NUMBERS.split(path.name)])


class _Header(NamedTuple):
    dtype: np.dtype[np.integer]
    shape: tuple[int, int]
    offset: int

    @property
    def bytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize


def _read_header(path: Path) -> _Header:
    """NumPy reads it; what is not rows of integers is refused, and nothing is unpickled."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = read(file)
            offset, size = file.tell(), file.seek(0, 2)
    except (OSError, ValueError, EOFError) as error:
        raise CorruptFile(
            f"is not a NumPy file ({str(error).splitlines()[0]})",
            where=str(path),
            next="copy the file again: it is cut or damaged. Raw ids under such a name, for OLMo-core, are a "
            "build of the format olmo: give its directory, with meta.json",
        ) from error
    if dtype.kind not in "iu" or len(shape) != 2 or is_fortran or not shape[1]:
        order = ", column after column" if is_fortran else ""
        raise InputError(
            f"holds {dtype} of shape {shape}{order}: not rows of ids",
            where=str(path),
            next="give shards of integers, (rows, length), row after row",
        )
    header = _Header(dtype, shape, offset)
    if size != offset + header.bytes:
        raise corrupt(f"{size:,} bytes, but its header describes {offset + header.bytes:,}", path)
    return header


class _Facts(msgspec.Struct):
    seq_len: Annotated[int, msgspec.Meta(ge=1)]
    n_seqs: Annotated[int, msgspec.Meta(ge=0)]
    rows_per_shard: Annotated[int, msgspec.Meta(ge=1)]
    n_shards: Annotated[int, msgspec.Meta(ge=0)]
    loss_mask: str | None = None


def _cut(tokens: Tokens) -> Iterator[tuple[int, int]]:
    for first in range(0, tokens.rows, tokens.rows_per_shard):
        count = min(tokens.rows_per_shard, tokens.rows - first)
        yield count, count * tokens.seq_len


def _write(directory: Path, tokens: Tokens, first: int) -> list[FilePart]:
    begin = first * tokens.rows_per_shard
    loss = tokens.read_loss() if tokens.has_loss else None
    numbers = range(begin, begin + tokens.rows)
    written = _write_shards(
        directory, tokens.read_rows(), loss, numbers, tokens.seq_len, tokens.rows_per_shard
    )
    counts = list(_cut(tokens))
    # of a mask: its rows are those of the shard, and counted there
    counts += [(0, 0)] * (len(written) - len(counts))
    return [
        FilePart(file_entry(name, "loss" if _is_mask(name) else "shard", one, rows=0), *count)
        for (name, one), count in zip(written.items(), counts, strict=True)
    ]


def _describe(directory: Path, tokens: Tokens, parts: Sequence[FilePart]) -> list[FileEntry]:
    entries = sorted((part.entry for part in parts), key=lambda entry: _is_mask(entry.path))
    facts = {
        **tokens.describe(),
        "seq_len": tokens.seq_len,
        "n_seqs": tokens.rows,
        "rows_per_shard": tokens.rows_per_shard,
    }
    names = [entry.path for entry in entries]
    return [
        *entries,
        meta_entry(directory, _describe_shards(directory, facts, names, has_loss=tokens.has_loss)),
    ]


_PARTS = Parts(_cut, _write, _describe)


def _open_store(directory: Path, split: str | None) -> RowStore:
    shards = NpyRows(directory)
    rows, seq_len = shards.rows(), shards.seq_len
    files = [
        (directory / shard_name(number), len(npy_header((count, seq_len))) + 4 * count * seq_len)
        for number, count in enumerate(rows)
    ]
    if shards.has_loss:
        files += [
            (directory / mask_name(number), len(npy_header((count, seq_len), "|u1")) + count * seq_len)
            for number, count in enumerate(rows)
        ]
    return RowStore(
        "npy",
        shards.meta,
        rows,
        shards.shard,
        seq_len=seq_len,
        dtype="int32",
        files=files,
        loss=mask_store("npy", rows, shards.mask, seq_len) if shards.has_loss else None,
    )


def _recognizes(directory: Path) -> bool:
    """Of no rows at all there is no shard: the description tells."""
    meta = directory / META_NAME
    return meta.is_file() and ((directory / shard_name(0)).is_file() or b'"n_shards"' in meta.read_bytes())


def _check(directory: Path) -> None:
    rows = NpyRows(directory)
    for number in range(rows.n_shards):
        rows.shard(number)
        if rows.has_loss:
            rows.mask(number)


NPY = Format(
    name="npy",
    recognizes=_recognizes,
    open_store=_open_store,
    check=_check,
    write=_PARTS.write_all,
    parts=_PARTS,
    shapes=("rows",),
    is_sharded=True,
    has_loss=True,
)


def _is_bare(directory: Path) -> bool:
    """`.npy` files, and nothing of ours beside them:
    a build that is being written is not finished, and not bare."""
    unfinished = (RECEIPTS, ".work")
    ours = [directory / name for name in (META_NAME, MANIFEST, STALE_MANIFEST, *unfinished)]
    if any(path.exists() for path in [*ours, *(directory.parent / name for name in unfinished)]):
        return False
    return bool(list_bare(directory))


def _open_bare(directory: Path, split: str | None = None) -> RowStore:
    """`.npy` files of rows, and nothing that describes them: what their headers say must agree."""
    headers = {path: _read_header(path) for path in list_bare(directory)}
    if not headers:
        raise InputError("holds no .npy file", where=str(directory), next="give a folder of shards")
    paths = list(headers)
    dtype, (_, seq_len) = headers[paths[0]].dtype, headers[paths[0]].shape
    for path, header in headers.items():
        if (header.dtype, header.shape[1]) != (dtype, seq_len):
            raise CorruptFile(
                f"rows of {header.shape[1]:,} {header.dtype}, but those of {paths[0].name} are of "
                f"{seq_len:,} {dtype}",
                where=str(path),
                next="put shards that belong together into a folder of their own",
            )

    def load(number: int) -> NDArray[np.integer]:
        header = headers[paths[number]]
        return map_array(paths[number], dtype, offset=header.offset, shape=header.shape)

    return RowStore(
        "npy",
        {},
        [header.shape[0] for header in headers.values()],
        load,
        seq_len=seq_len,
        dtype=str(dtype),
        files=[(path, header.offset + header.bytes) for path, header in headers.items()],
    )


def _check_bare(directory: Path) -> None:
    _open_bare(directory)


BARE = Format(name="bare", recognizes=_is_bare, open_store=_open_bare, check=_check_bare, shapes=("rows",))
