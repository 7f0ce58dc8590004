"""Rows of equal length in one flat file, as training loops map them.

    input_ids.mmap      n_seqs x seq_len ids, little-endian, row after row, no header
    meta.json           what the bytes mean: seq_len, n_seqs, dtype, and where they come from
    index.jsonl.zst     which document every column of every row comes from, one line per row

        {"row":0,"docs":[{"doc_id":"a","source":"web","start":0,"end":512,"offset":0}, …]}

        start:end are columns of the row, offset is the document's own number of the first of these tokens.
        Columns that no document covers are padding.

`meta.json` is written last: rows without it do not exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError
from tokmill.formats.ids import cast_ids
from tokmill.storage.commit import Written, commit_bytes, open_commit
from tokmill.storage.zstd import ZstdCompressor, ZstdError, ZstdFile, frame_options

IDS_NAME, META_NAME = "input_ids.mmap", "meta.json"

_DTYPES = ("uint16", "int32")

# Rows of the index made and compressed at a time: about 4 MB of lines at three documents a row.
_INDEX_ROWS = 16_384


class RowSpans(NamedTuple):
    """Meetings of rows and documents, sorted by row and column: five int64 arrays of one length."""

    row: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    offset: NDArray[np.int64]


class DocumentSpan(msgspec.Struct):
    doc_id: str
    source: str
    start: int
    end: int
    offset: int


class IndexRow(msgspec.Struct):
    row: int
    docs: list[DocumentSpan]


class ArrowStrings(Protocol):
    """An Arrow column of strings, without importing Arrow: trainers read these files too."""

    def take(self, indices: Any) -> Any: ...


def write_memmap(
    directory: Path,
    rows: Iterable[NDArray[np.integer]],
    *,
    seq_len: int,
    dtype: str,
    meta: Mapping[str, object],
) -> dict[str, Written]:
    """Write the ids of `rows` (1-D or 2-D pieces of any size, whole rows in total) and what they mean."""
    assert dtype in _DTYPES, f"{dtype} is not a dtype of memmap rows"
    own = {"seq_len", "n_seqs", "dtype"}
    assert own.isdisjoint(meta), f"{sorted(own & set(meta))} are counted here, not given"
    ids_path, meta_path = directory / IDS_NAME, directory / META_NAME
    with open_commit(ids_path) as file:
        n_tokens = 0
        for piece in rows:
            if piece.size:
                file.write(cast_ids(piece, dtype, where=str(ids_path)))
                n_tokens += piece.size
        assert n_tokens % seq_len == 0, f"{ids_path}: {n_tokens} tokens are no whole rows of {seq_len}"
    whole = {**meta, "seq_len": seq_len, "n_seqs": n_tokens // seq_len, "dtype": dtype}
    encoded = msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"
    return {IDS_NAME: file.written, META_NAME: commit_bytes(meta_path, encoded)}


class MemmapRows:
    """A directory of rows, mapped read-only: `ids` of shape (n_seqs, seq_len), `meta` as it was written."""

    def __init__(self, directory: Path) -> None:
        ids_path, meta_path = Path(directory) / IDS_NAME, Path(directory) / META_NAME
        for path in (meta_path, ids_path):
            if not path.is_file():
                raise InputError(
                    "no such file", where=str(path), next="give the directory of a finished memmap build"
                )
        try:
            self.meta: dict[str, Any] = msgspec.json.decode(meta_path.read_bytes(), type=dict[str, Any])
            facts = msgspec.convert(self.meta, _Facts)
        except msgspec.MsgspecError as error:
            raise _corrupt(f"not the description of memmap rows ({error})", meta_path) from error
        if facts.dtype not in _DTYPES:
            raise _corrupt(f"dtype {facts.dtype!r} is not one of {', '.join(_DTYPES)}", meta_path)
        kind = np.dtype(facts.dtype).newbyteorder("<")
        shape = (facts.n_seqs, facts.seq_len)
        actual, expected = ids_path.stat().st_size, facts.n_seqs * facts.seq_len * kind.itemsize
        if actual != expected:
            raise _corrupt(
                f"{actual:,} bytes, but {META_NAME} describes {expected:,} "
                f"({facts.n_seqs:,} x {facts.seq_len:,} x {kind.itemsize})",
                ids_path,
            )
        self.ids: NDArray[np.integer]
        if expected:
            self.ids = np.memmap(ids_path, dtype=kind, mode="r", shape=shape)
        else:  # a map of nothing is refused
            self.ids = np.empty(shape, dtype=kind)
            self.ids.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ids)

    def __enter__(self) -> MemmapRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The map itself closes with its last view: rows taken from it stay valid."""
        self.ids = np.empty((0, self.ids.shape[1]), dtype=self.ids.dtype)


def open_memmap(directory: Path) -> MemmapRows:
    return MemmapRows(directory)


class _Facts(msgspec.Struct):
    seq_len: Annotated[int, msgspec.Meta(ge=1)]
    n_seqs: Annotated[int, msgspec.Meta(ge=0)]
    dtype: str


def write_row_index(
    path: Path,
    spans: RowSpans | Iterable[RowSpans],
    doc_ids: Sequence[str] | ArrowStrings,
    sources: Sequence[str] | ArrowStrings,
) -> Written:
    """One line per row. Spans may come in pieces of whole rows; names are looked up by document number."""
    pieces = (spans,) if isinstance(spans, RowSpans) else spans
    compressor = ZstdCompressor(options=frame_options())
    encoder = msgspec.json.Encoder()
    with open_commit(path) as file:
        for piece in pieces:
            for block in _whole_rows(piece):
                file.write(compressor.compress(encoder.encode_lines(_index_rows(block, doc_ids, sources))))
        file.write(compressor.flush())
    return file.written


def read_row_index(path: Path) -> Iterator[IndexRow]:
    decoder = msgspec.json.Decoder(IndexRow)
    number = 0
    try:
        with ZstdFile(path) as lines:
            for line in lines:
                number += 1
                yield decoder.decode(line)
    except (ZstdError, EOFError) as error:
        raise _corrupt(
            f"the compressed stream is cut or damaged after line {number} ({error})", path
        ) from error
    except msgspec.MsgspecError as error:
        raise _corrupt(f"line {number} is not a row of the index ({error})", path) from error
    except FileNotFoundError:
        raise InputError(
            "no such file", where=str(path), next="give the index.jsonl.zst of a memmap build"
        ) from None


def find_row(path: Path, row: int) -> IndexRow:
    """The line of one row. Those before it are decompressed, not parsed."""
    try:
        with ZstdFile(path) as lines:
            line = next(itertools.islice(lines, row, None), b"")
    except (ZstdError, EOFError) as error:
        raise _corrupt(
            f"the compressed stream is cut or damaged before line {row} ({error})", path
        ) from error
    try:
        found = msgspec.json.decode(line, type=IndexRow)
    except msgspec.MsgspecError as error:
        raise _corrupt(f"line {row} is not a row of the index ({error})", path) from error
    if found.row != row:
        raise _corrupt(f"line {row} is of row {found.row}", path)
    return found


def _whole_rows(spans: RowSpans) -> Iterator[RowSpans]:
    if not len(spans.row):
        return
    first, last = int(spans.row[0]), int(spans.row[-1])
    cuts = np.searchsorted(spans.row, np.arange(first, last + _INDEX_ROWS + 1, _INDEX_ROWS), "left")
    for begin, stop in itertools.pairwise(cuts.tolist()):
        yield RowSpans(*(column[begin:stop] for column in spans))


def _index_rows(
    spans: RowSpans, doc_ids: Sequence[str] | ArrowStrings, sources: Sequence[str] | ArrowStrings
) -> list[IndexRow]:
    docs = list(
        map(
            DocumentSpan,
            _names(doc_ids, spans.document),
            _names(sources, spans.document),
            spans.start.tolist(),
            spans.end.tolist(),
            spans.offset.tolist(),
        )
    )
    begins = np.flatnonzero(np.diff(spans.row, prepend=-1))
    stops = np.append(begins[1:], len(spans.row))
    return [
        IndexRow(row, docs[begin:stop])
        for row, begin, stop in zip(spans.row[begins].tolist(), begins.tolist(), stops.tolist(), strict=True)
    ]


def _names(strings: Sequence[str] | ArrowStrings, numbers: NDArray[np.int64]) -> list[str]:
    if hasattr(strings, "take"):
        return cast("list[str]", strings.take(numbers).to_pylist())
    return [strings[number] for number in numbers.tolist()]


def _corrupt(what: str, path: Path) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or build it again: it is cut or damaged"
    )
