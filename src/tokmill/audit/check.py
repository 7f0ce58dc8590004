"""Is a build ready to be trained on? Opened as a trainer opens it, and tried.

    files         sizes (or sha256) · facts of split and manifest agree
    ids           every one within the vocabulary
    ends          every document ends in EOS, and none has EOS inside, but for conversations and where
                  `tokenizer.control` has it
    sizes         rows and tokens are as many as the manifest counts
    members       documents are those that the run or the listing puts into the split, with the tokens of
                  their texts
    batch         shapes and dtypes · targets are the next tokens · masks compared with slow, obvious ones
    overfit       a small model learns one batch by heart, loss to about nothing: in NumPy, or with `train`
                  the decoder of `tokmill ablate`

A split that is in order passes all of them; what fails says what was found and where.

    peek          row 17   |--- doc a, its end ---|--- doc b ---|--- doc c, its beginning ---|= padding =|

One row as the text that it stands for. Its documents are those of index.jsonl.zst; where there is none, EOS
ends them. The tokenizer is the build's own, found beside it, or given; either way its sha256 must be the
recorded one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cells import Markup, cell, passage, short_repr
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import show_hooks
from tokmill.artifacts.upstream import is_chat
from tokmill.audit.membership import check_members, find_tokenizer
from tokmill.audit.opened import open_run
from tokmill.errors import InputError, TokmillError
from tokmill.formats import find_format
from tokmill.formats.index import DocumentSpan, find_row
from tokmill.loader.batches import Batches
from tokmill.loader.collating import collate
from tokmill.loader.dataset import (
    INDEX_NAME,
    Dataset,
    Verify,
    first_row,
    list_splits,
    open_dataset,
    path_in_split,
)
from tokmill.loader.naming import IGNORE_INDEX, Batch
from tokmill.loader.tiny import lowest_loss, overfit
from tokmill.stages.tokens.beside import run_of

STEPS = 300

# Loss above what no model can go below: a batch of 8 x 64 random ids comes there in 150 steps,
# a broken one never.
_LEARNT = 0.05

_BATCH, _LENGTH = 8, 64
_BLOCK_TOKENS = 1 << 22


@dataclasses.dataclass(frozen=True)
class Finding:
    split: str
    check: str
    ok: bool
    detail: str


@short_repr
@dataclasses.dataclass(frozen=True)
class Checked:
    directory: Path
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **dataclasses.asdict(self), "directory": str(self.directory)}


def check(
    build: str | Path,
    *,
    verify: Verify = "sizes",
    steps: int = STEPS,
    train: bool = False,
    manifest: str | Path | None = None,
    tokenizer: str | Path | None = None,
    hooks: str | Path | None = None,
    on_check: Callable[[str, str], None] | None = None,
) -> Checked:
    """Every split of a build, or the one split at `build`. With 0 steps no model is trained. With `train` the
    model is the decoder of `tokmill.ablate`, in PyTorch, where that is installed; else it is one in NumPy.

    `manifest` and `tokenizer` are what the build was made from, where they do not lie beside it; `hooks` is
    the Python file that its format or tokenizer is in, if it is in one; `on_check(split, check)` is told what
    comes next.
    """
    if hooks is not None:
        show_hooks(Path(hooks))
    root = Path(build)
    members = functools.partial(check_members, listing=manifest, tokenizer=tokenizer)
    splits: list[str | None] = [*list_splits(root)] if root.is_dir() else []
    findings: list[Finding] = []
    for split in splits or [None]:
        findings += _check_split(
            root, split, verify, steps, members, on_check or (lambda split, check: None), train=train
        )
    return Checked(root, findings)


def _check_split(
    root: Path,
    split: str | None,
    verify: Verify,
    steps: int,
    check_members: Callable[[Dataset], tuple[bool, str]],
    on_check: Callable[[str, str], None],
    *,
    train: bool,
) -> Iterator[Finding]:
    name = split or root.name
    on_check(name, "files")
    try:
        dataset = open_dataset(root, split, verify=verify)
    except TokmillError as error:
        advice = f"; {error.next}" if error.next else ""
        yield Finding(name, "files", False, f"{error.where}: {error.what}{advice}")
        return
    facts = dataset.facts
    said = f"{dataset.store.format}, {len(dataset):,} examples, {facts.dtype}"
    unknown = [fact for fact in ("tokenizer_sha256", "eos_id", "vocab_size") if getattr(facts, fact) is None]
    if unknown:
        said += f"; nothing says {', '.join(unknown)}"
    yield Finding(name, "files", True, said)
    checks: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
        ("ids", lambda: check_ids(dataset)),
        ("ends", lambda: check_ends(dataset)),
        ("sizes", lambda: check_sizes(dataset)),
        ("members", lambda: check_members(dataset)),
    ]
    if len(dataset):
        checks.append(("batch", lambda: check_batch(dataset)))
        if steps:
            checks.append(("overfit", lambda: check_overfit(dataset, steps, train=train)))
    for check, act in checks:
        on_check(name, check)
        try:
            ok, detail = act()
        except TokmillError as error:
            ok, detail = False, f"{error.where}: {error.what}"
        yield Finding(name, check, ok, detail)


def check_ids(dataset: Dataset) -> tuple[bool, str]:
    """Every id that a trainer will look up is in the vocabulary."""
    vocab_size = dataset.facts.vocab_size
    lowest, highest, count = 0, -1, 0
    for _, block in _blocks(dataset):
        ids = np.concatenate(block)
        count += len(ids)
        if len(ids):
            lowest, highest = min(lowest, int(ids.min())), max(highest, int(ids.max()))
    limit = np.iinfo(np.int32).max if vocab_size is None else vocab_size - 1
    ok = lowest >= 0 and highest <= limit
    bound = "no known vocabulary" if vocab_size is None else f"a vocabulary of {vocab_size:,}"
    return ok, f"{count:,} ids, from {lowest:,} to {highest:,}, of {bound}"


def check_ends(dataset: Dataset) -> tuple[bool, str]:
    eos = dataset.facts.eos_id
    if eos is None:
        return True, "not looked at: nothing says what documents end in"
    if dataset.facts.seq_len is not None:
        return _check_row_ends(dataset, eos)
    ended = inside = 0
    for _, block in _blocks(dataset):
        for ids in block:
            ended += int(len(ids) > 0 and ids[-1] == eos)
            inside += int((ids[:-1] == eos).sum())
    missing = len(dataset) - ended
    ok = not (inside and _is_mark(dataset, eos)) and (missing == 0 or dataset.facts.layout == "pad")
    told = f"{ended:,} of {len(dataset):,} examples end in {eos}, {inside:,} times it stands inside one"
    bos = _bos_of(dataset)
    if bos is None:
        return ok, told
    begun, misplaced = _count_begins(dataset, bos)
    return ok and not (misplaced and _is_mark(dataset, bos)) and begun == len(dataset), (
        f"{told}; {begun:,} begin with {bos}, {misplaced:,} times it stands elsewhere"
    )


def _recorded(dataset: Dataset) -> Json:
    return dataset.manifest.facts.get("tokenizer", {}) if dataset.manifest is not None else {}


def _bos_of(dataset: Dataset) -> int | None:
    found = _recorded(dataset).get("bos_id", dataset.store.meta.get("bos_id"))
    return found if isinstance(found, int) else None


def _is_mark(dataset: Dataset, id: int) -> bool:
    """Does the id stand at the beginning or end of documents alone? Within them stand what
    `tokenizer.control` names, and in conversations what their template writes."""
    return id not in _recorded(dataset).get("controls", {}).values() and not has_conversations(dataset)


def has_conversations(dataset: Dataset) -> bool:
    """By the mask of what is learned, or by the run around the build; without either there are none."""
    if dataset.store.loss is not None:
        return True
    manifest = dataset.manifest
    if manifest is not None:
        with contextlib.suppress(TokmillError):  # away from its run
            return any(
                is_chat(ingest)
                for name, ingest in open_run(run_of(dataset)).items()
                if name.removeprefix("ingest/") in manifest.facts.get("domain_of", {})
                and manifest.inputs.get(f"step {name}") == ingest.manifest.identity
            )
    return False


def _count_begins(dataset: Dataset, bos: int) -> tuple[int, int]:
    begun = times = 0
    for _, block in _blocks(dataset):
        begun += sum(int(len(ids) > 0 and ids[0] == bos) for ids in block)
        times += sum(int((ids == bos).sum()) for ids in block)
    return begun, times - begun


def _check_row_ends(dataset: Dataset, eos: int) -> tuple[bool, str]:
    """Against the index, where there is one: EOS stands in the last column of documents, and nowhere else
    where it is no more than a mark."""
    if not (dataset.directory / INDEX_NAME).is_file():
        found = sum(int((ids == eos).sum()) for _, block in _blocks(dataset) for ids in block)
        return found > 0 or not len(
            dataset
        ), f"{found:,} documents end in {eos}; there is no index to compare"
    indexed = open_dataset(dataset.directory, boundaries="index")
    index = indexed.index
    assert index is not None, "it was asked for"
    bos = _bos_of(dataset)
    wrong = ends = inside = begun = 0
    for rows, block in _blocks(indexed):
        for row, ids in zip(rows, block, strict=True):
            places = np.flatnonzero(ids == eos)
            lasts = np.append(index.starts_of(row)[1:] - 1, len(ids) - 1)
            inner = len(np.setdiff1d(places, lasts, assume_unique=True))
            ends, inside = ends + len(places) - inner, inside + inner
            # only the last document of a row may go on in another row, or have been cut
            cut = len(np.setdiff1d(lasts[:-1], places, assume_unique=True))
            cut += int(0 < len(ids) < (dataset.facts.seq_len or 0) and ids[-1] != eos)
            wrong += cut
            if bos is not None:  # a row may begin with, or hold, the rest of a document
                begun += len(np.setdiff1d(np.flatnonzero(ids == bos), index.starts_of(row)))
    for id, count in ((eos, inside), (bos, begun)):
        wrong += count if id is not None and count and _is_mark(dataset, id) else 0
    return wrong == 0, (
        f"{ends:,} documents end in {eos}, {inside:,} times it stands inside one; {wrong:,} ends are not "
        "where the index says"
    )


def check_sizes(dataset: Dataset) -> tuple[bool, str]:
    """As many rows as the manifest counts."""
    manifest = dataset.manifest
    if manifest is None:
        told = "there is no manifest to compare"
        if dataset.store.split and (checksums := find_format(dataset.store.format).checksums):
            told = f"as {checksums.file} has them"
        return True, f"{len(dataset):,} examples; {told}"
    mine = [e for e in manifest.files if path_in_split(dataset.directory, e.path) is not None]
    rows = next((entry.rows for entry in mine if entry.table == "index"), None)
    if rows is None:
        rows = max((entry.rows for entry in mine), default=0)
    return rows == len(dataset), f"{len(dataset):,} examples, {rows:,} in the manifest"


def check_batch(dataset: Dataset) -> tuple[bool, str]:
    """One batch of every kind of mask, compared with what the words mean, place by place."""
    faults = []
    has_eos = dataset.facts.eos_id is not None
    masks = ["tokens", "keys", "causal", *(["documents"] if has_eos else [])]
    for mask in masks:
        examples = [_cropped(dataset[row]) for row in _some_rows(dataset)]
        options: Any = {"mask": mask, "eos_id": dataset.facts.eos_id}
        if mask == "documents":
            options["targets"] = "documents"
        batch = collate(examples, _pad_id(dataset), _LENGTH, **options)
        faults += [f"{mask}: {fault}" for fault in batch_faults(examples, batch, mask, dataset.facts.eos_id)]
    batches = Batches(dataset, min(_BATCH, len(dataset)))
    first = next(iter(batches))
    shape, kind = first["tokens"].shape, first["tokens"].dtype
    if first["targets"].shape != shape or first["attn_mask"].shape != shape:
        faults.append(f"shapes {shape}, {first['targets'].shape}, {first['attn_mask'].shape}")
    if (kind, first["targets"].dtype, first["attn_mask"].dtype) != (np.int32, np.int32, np.bool_):
        faults.append(f"dtypes {kind}, {first['targets'].dtype}, {first['attn_mask'].dtype}")
    detail = f"tokens {shape} {kind}, targets, attn_mask; masks {', '.join(masks)}"
    return not faults, "; ".join(faults[:3]) if faults else detail


def batch_faults(
    examples: list[dict[str, Any]], batch: Batch, mask: str, eos_id: int | None
) -> Iterator[str]:
    """Place by place, by the plainest of loops."""
    tokens, targets, allowed = batch["tokens"], batch["targets"], batch["attn_mask"]
    rows, width = tokens.shape
    for row in range(rows):
        ids = examples[row]["ids"].tolist()
        document = np.cumsum([0, *(id == eos_id for id in ids)])[:-1].tolist() if ids else []
        if tokens[row, : len(ids)].tolist() != ids:
            yield f"row {row}: tokens are not the example's"
        for column in range(width):
            following = ids[column + 1] if column + 1 < len(ids) else IGNORE_INDEX
            if mask == "documents" and column + 1 < len(ids) and document[column] != document[column + 1]:
                following = IGNORE_INDEX
            if targets[row, column] != following:
                yield f"row {row}, column {column}: target {targets[row, column]}, not {following}"
            if mask in ("tokens", "keys"):
                seen = allowed[row, column] if mask == "tokens" else allowed[row, 0, column]
                if seen != (column < len(ids)):
                    yield f"row {row}, column {column}: the mask is wrong about padding"
                continue
            for key in range(width):
                may = key <= column and column < len(ids)
                if may and mask == "documents":
                    may = document[key] == document[column]
                if column >= len(ids):
                    may = key == column
                if allowed[row, column, key] != may:
                    yield f"row {row}: {column} {'must' if may else 'must not'} see {key}"


def check_overfit(dataset: Dataset, steps: int, *, train: bool = False) -> tuple[bool, str]:
    examples = [_cropped(dataset[row]) for row in _some_rows(dataset)]
    batch = collate(examples, _pad_id(dataset), mask="causal")
    if not (batch["targets"] >= 0).any():
        return True, "not tried: no example has two tokens"
    floor = lowest_loss(batch["tokens"], batch["targets"], batch["attn_mask"])
    first = loss = float("nan")
    taken = 0
    learn, model = _learner(train)
    for loss in learn(batch["tokens"], batch["targets"], batch["attn_mask"], steps=steps):
        first = loss if taken == 0 else first
        taken += 1
        if loss < floor + _LEARNT:
            break
    shape = " x ".join(map(str, batch["tokens"].shape))
    detail = f"one batch of {shape}: loss {first:.2f} to {loss:.3f} in {taken} steps of AdamW{model}"
    if floor > 0.001:
        detail += f" ({floor:.3f} is the lowest there can be)"
    return loss < floor + _LEARNT, detail


def _learner(train: bool) -> tuple[Callable[..., Iterator[float]], str]:
    """What learns a batch by heart, and what there is to say of it."""
    if not train:
        return overfit, ""
    try:
        from tokmill.proxy.overfitting import overfit as overfit_decoder
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return overfit, " by a model in NumPy: PyTorch is not installed"
    return overfit_decoder, " by a decoder in PyTorch"


def _blocks(dataset: Dataset) -> Iterator[tuple[range, list[NDArray[np.integer]]]]:
    """All examples in order, some million tokens at a time."""
    step = max(_BLOCK_TOKENS // (dataset.facts.seq_len or 1024), 1)
    for start in range(0, len(dataset), step):
        rows = range(start, min(start + step, len(dataset)))
        yield rows, [dataset[row]["ids"] for row in rows]


def _some_rows(dataset: Dataset) -> list[int]:
    """Through the whole split, evenly."""
    count = min(_BATCH, len(dataset))
    return [number * len(dataset) // count for number in range(count)]


def _cropped(example: dict[str, Any]) -> dict[str, Any]:
    return {"ids": example["ids"][:_LENGTH]}


def _pad_id(dataset: Dataset) -> int:
    return next(id for id in (dataset.facts.pad_id, dataset.facts.eos_id, 0) if id is not None)


# --- one row ---


@dataclasses.dataclass(frozen=True)
class Piece:
    """A document in a row, or as much of it as is there."""

    start: int
    end: int
    text: str
    doc_id: str | None
    source: str | None
    offset: int | None  # the document's own number of the first token here
    is_ended: bool


@short_repr
@dataclasses.dataclass(frozen=True)
class Peeked:
    split: str
    row: int
    rows: int
    length: int
    padding: int
    pieces: list[Piece]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the row document by document, as a trainer gets it."""
        parts = []
        for piece in self.pieces:
            whose = f"{piece.doc_id} of {piece.source}" if piece.doc_id else "a document"
            said = f"columns {piece.start:,} to {piece.end:,}" + (", ended" if piece.is_ended else "")
            parts.append(Markup(cell(whose, said, [passage(piece.text)])))
        said = f"{self.split} · {self.length:,} columns · {self.padding:,} of padding"
        return cell(f"row {self.row:,} of {self.rows:,}", said, parts)


def peek(
    build: str | Path,
    row: int = 0,
    *,
    split: str | None = None,
    tokenizer: str | Path | None = None,
    hooks: str | Path | None = None,
) -> Peeked:
    """The text of one row, document by document; -1 is the last row."""
    dataset = open_dataset(build, split, hooks=hooks)
    if not -len(dataset) <= row < len(dataset):
        there_are = f"rows are 0 to {len(dataset) - 1:,}; a negative one counts from the end"
        raise InputError(
            f"there is no row {row:,}",
            where=str(dataset.directory),
            next=there_are if len(dataset) else "the build holds no row: `tokmill why RUN --reason all`",
        )
    row %= len(dataset)
    example = dataset[row]
    spans = row_spans(dataset, row, example)
    loaded = find_tokenizer(dataset, tokenizer)
    ids, eos = example["ids"], dataset.facts.eos_id
    pieces = [
        Piece(
            span.start,
            span.end,
            loaded.decode(np.asarray(ids[span.start : span.end], np.int64)),
            span.doc_id or None,
            span.source or None,
            span.offset if span.doc_id else None,
            bool(span.end > span.start and ids[span.end - 1] == eos),
        )
        for span in spans
    ]
    length = spans[-1].end if spans else 0
    padding = (dataset.facts.seq_len or length) - length
    return Peeked(dataset.split, row, len(dataset), length, padding, pieces)


def row_spans(dataset: Dataset, row: int, example: dict[str, Any]) -> list[DocumentSpan]:
    index = dataset.directory / INDEX_NAME
    if index.is_file():
        return find_row(index, row + (first_row(dataset.store) or 0)).docs
    ids = example["ids"]
    name = str(example.get("doc_id") or "")
    if dataset.facts.seq_len is None or dataset.facts.eos_id is None:
        return [DocumentSpan(name, "", 0, len(ids), 0)] if len(ids) else []
    ends = np.flatnonzero(ids == dataset.facts.eos_id) + 1
    bounds = sorted({0, *ends.tolist(), len(ids)})
    return [DocumentSpan("", "", start, end, 0) for start, end in itertools.pairwise(bounds)]
