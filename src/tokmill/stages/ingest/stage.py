"""Ingest: records of a source become document shards, as received, once.

    chunk of a file ─ read ─ documents ─ shards ─> documents-<chunk>-<part>.parquet
                        └ not used ──────────────> ledger-<chunk>.parquet

Cleaning follows in the same pass: while the shard is still in memory its clean task is performed too, and the
clean step later finds the receipt. A limit takes chunks in order until it is reached; a sample of fixed size
goes through `tokmill.stages.ingest.shards`. Chunks that guess where their first record begins are proved by
the ones before them (`tokmill.stages.ingest.seams`).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Manifest, Receipt, add_counts, fingerprint_of, sum_counts
from tokmill.artifacts.step import Conduct, Input, Made, Outcome, Stage, Step, Task, TaskFunction, TaskOptions
from tokmill.artifacts.tombstones import REASON
from tokmill.errors import InputChanged, InputError, TooManyBadRecords
from tokmill.kernels.characters import measure_text
from tokmill.schema import string_column
from tokmill.sources.hubfile import from_url
from tokmill.sources.readers import (
    Chunk,
    Chunks,
    check_presence,
    chunk_sizes,
    list_hub,
    most_records,
    read_documents,
)
from tokmill.sources.reading import Batch, Reading, count_presence
from tokmill.stages.ingest import picking
from tokmill.stages.ingest.options import (
    IngestOptions,
    IngestStep,
    LimitOptions,
    Part,
    ReadOptions,
    SampleOptions,
    as_fact,
    reading_task,
)
from tokmill.stages.ingest.seams import BROKEN, Seams, is_broken
from tokmill.stages.ingest.seams import as_fact as seam_fact
from tokmill.stages.ingest.shards import (
    Ledger,
    Room,
    corpus_digest,
    no_counts,
    refused,
    shown_file,
    write_documents,
)
from tokmill.stages.ingest.threads import PostOptions, gather_posts, perform_posts, read_threads
from tokmill.stages.sampling import below_fraction, draws
from tokmill.stages.takedown import (
    ForgetOptions,
    TombstoneOptions,
    conduct_forget,
    perform_forget,
    perform_tombstones,
    tell_unmet,
    tombstone_tasks,
)
from tokmill.stages.tokens.reading import CHARS_PER_TOKEN
from tokmill.storage.codecs import CUT_INSIDE
from tokmill.storage.location import (
    AnyPath,
    InputFile,
    Metered,
    file_sha256,
    local_path,
    marks_of_place,
    open_input,
)
from tokmill.storage.records import Span
from tokmill.storage.tables import load_table
from tokmill.storage.tree import FileList

# A file that cannot be cut (gzip), or into two parts (zstd), and is larger than this is not cleaned in the
# same pass: its shards come from one or two workers, and cleaning them apart puts the others to work.
# Compressed text is 3 to 5 times larger.
_FUSE_BELOW_BYTES = 16 << 20

# Chunks read at a time towards a limit: enough to keep cores busy, few enough to throw away.
_CHUNKS_TOWARDS_LIMIT = 8

# environment key of the manifest: size, mtime and sha256 of each input, and marks of its place,
# so that a file that was not touched is not hashed again
INPUT_STATS = "input_stats"

_REPAIR = "repair the input, or raise `max_bad_fraction` of this source if losing them is right"

NOT_SAMPLED = "not_sampled"  # reason of a drop
FIXED_SAMPLES = ("reservoir", "weighted", "shuffle_buffer")

Phase = Generator[list[Task], list[Receipt], list[Receipt]]


def conduct(step: IngestStep, upstream: Mapping[str, Artifact]) -> Conduct:
    options, files = step.options, step.extra.files
    if step.extra.before is not None:  # a takedown: from the shards as they are
        return (yield from conduct_forget(step, step.extra.before))
    if files is None:  # a rebuild was not foreseen
        assert step.extra.hub is not None, "files are unknown of a dataset alone"
        assert options.hub is not None, "likewise"
        files = list_hub(step.extra.hub, options.hub.revision)
    reading, room = options.reading, _room_after(options, upstream)
    is_needed = room is None or 0 not in room.values()
    if step.extra.missing is not None and is_needed:
        raise step.extra.missing
    if reading.format == "stackexchange" and step.extra.missing is None:
        chunks = None
        tasks = _Tasks((yield from gather_posts(step, files)))  # questions and answers find each other first
    else:
        chunks = Chunks(files, reading, options.shard_bytes)
        stride, most_bad = step.extra.stride, _most_bad(step, files)
        tasks = _Tasks(
            _task(step, number, chunk, most_bad)
            for number, chunk in enumerate(chunks)
            if number % stride == stride // 2
        )
    if not is_needed:
        receipts = yield []  # of a fallback
    elif options.sample is not None and options.sample.method in FIXED_SAMPLES:
        receipts = yield from _take_sample(step, options.sample, tasks, room)
    elif room is not None:
        receipts = yield from _take_until_full(tasks, room)
    else:
        receipts = yield from _take_all(tasks)
    check_unchanged(files)
    counts = sum_counts(receipts) if receipts else no_counts()
    if receipts:
        _check_ceiling(step, counts, receipts, is_fallback=bool(upstream))
    facts: Json = {"corpus_digest": corpus_digest(receipts)}
    if room is not None:
        facts["room"] = _left_of(room, options, [one for one in receipts if not picking.is_scan(one)])
    of, sizes = (len(chunks), chunk_sizes(chunks.cut)) if chunks is not None else (len(list(tasks)), [])
    facts["scanned"] = _scanned(receipts, counts["in"], of, sizes, sum(file.bytes for file in files))
    if room is None and options.sample is None and options.part is None:
        facts |= tell_unmet(step, receipts)
    if receipts:
        facts |= _presence(reading, files, receipts, is_complete=facts["scanned"]["is_complete"])
    return Outcome([*receipts, *(yield tombstone_tasks(step))], counts, facts)


def perform_ingest(task: Task[ReadOptions]) -> Made:
    options = task.options
    counts, dropped_by_hash = no_counts(), [0]
    ledger = Ledger(task, options.reading.source, options.file)
    room, facts = Room(task.options.room), _facts(task)
    documents = _documents(task, room, facts, ledger, dropped_by_hash)
    files, gone = write_documents(task, documents, counts, options.shard_bytes, options.reading.source)
    files += ledger.finish(counts, gone)
    if dropped_by_hash[0]:
        counts["dropped"][NOT_SAMPLED] = dropped_by_hash[0]
    counts["in"] = counts["kept"] + ledger.records + len(gone) + dropped_by_hash[0]
    return Made(files, counts, facts)


def perform_candidates(task: Task[ReadOptions]) -> Made:
    ledger = Ledger(task, task.options.reading.source, task.options.file)
    room, facts = Room(task.options.room), _facts(task)
    made = picking.perform_candidates(task, _documents(task, room, facts, ledger, [0]), ledger)
    return made._replace(facts=facts)


def _facts(task: Task[ReadOptions]) -> Json:
    """Where the documents of a task come from, and whether a limit ended it."""
    return {"file": shown_file(task), "span": as_fact(task.options.span), "is_full": False}


def _documents(task: Task[ReadOptions], room: Room, facts: Json, *gathered: Any) -> Iterator[Any]:
    """Those of `_read`. What is broken in a chunk that is read ahead is a fact:
    it may lie behind the end that a limit makes."""
    try:
        yield from _read(task, room, facts, *gathered)
    except InputError:
        if not task.options.is_ahead:
            raise
        facts[BROKEN] = True


def _read(
    task: Task[ReadOptions],
    room: Room,
    facts: Json,
    ledger: Ledger,
    dropped_by_hash: list[int],
) -> Iterator[Any]:
    """Yield the documents of a chunk that a hash sample and a limit leave; the others go into the ledger.
    What lies behind the end that a limit makes was never read, though its batch was."""
    sample = task.options.sample
    path = _open_input(task.inputs[0]) if task.inputs else Path()  # a partition of threads may be empty
    if task.options.entries is not None:
        path = FileList(local_path(path), task.options.entries)
    if room.is_bounded and task.options.reading.format == "records":
        path = Metered(path)  # reading may stop before the end
    for batch in _batches(task, path):
        if batch.seam is not None:
            facts["seam"] = seam_fact(batch.seam)
        documents, rows = batch.documents, np.arange(batch.documents.num_rows)
        if sample is not None and sample.method == "hash":
            assert sample.fraction is not None, "a recipe has it where it samples by hash"
            is_taken = below_fraction(documents.column("doc_id"), sample.fraction, sample.seed)
            documents, rows = documents.filter(pa.array(is_taken)), rows[is_taken]
        documents = room.take(documents)
        if room.is_full:
            batch = _until_full(batch, rows, documents.num_rows, room)
        ledger.add(batch.bad, batch.dropped)
        fault = _fault(task, batch, ledger)
        if fault is not None:
            if batch.seam is not None and _is_guess(task):
                facts["seam"] = seam_fact(batch.seam._replace(is_broken=True))
                return
            raise fault
        if batch.presence:
            facts["presence"] = add_counts(facts.get("presence", {}), count_presence(batch.presence))
        if task.options.part is not None:
            documents = _draw(documents, task, task.options.part, facts)
        dropped_by_hash[0] += batch.documents.num_rows - documents.num_rows
        yield documents
        if room.is_full:
            facts["is_full"] = True
            if isinstance(path, Metered):
                facts["bytes_read"] = path.bytes_read
            return


def _fault(task: Task[ReadOptions], batch: Batch, ledger: Ledger) -> InputError | None:
    """The error that ends the reading, if the bad records so far are one."""
    if batch.bad and task.options.on_bad_record == "fail":
        return refused(task.inputs[0].path, batch.bad[0])
    if task.most_bad is not None and ledger.bad.total() > task.most_bad:
        return TooManyBadRecords(
            f"{ledger.bad.total():,} records cannot be used ({_by_reason(ledger.bad)}) of those that were "
            "read so far; however many more there are, they are over the ceiling, and the rest was not read\n"
            + "\n".join(_example(record._asdict()) for record in ledger.examples),
            where=f"source {task.options.reading.source}",
            next=_REPAIR,
        )
    return None


def _until_full(batch: Batch, rows: Any, taken: int, room: Room) -> Batch:
    """As much of a batch as lies before the end that a limit makes: behind the last document that is taken
    if that filled it, else before the first that does not fit. `rows`: of those that the limit was asked for.
    Where no order is known all that is bad or left out stays."""
    end = int(rows[taken]) if taken < len(rows) and not room.is_used_up else int(rows[taken - 1]) + 1
    batch = batch._replace(documents=batch.documents.slice(0, end))
    if batch.before is None:
        return batch
    bad, dropped = batch.before[end - room.is_used_up].tolist()
    presence = {label: has[: end + dropped] for label, has in batch.presence.items()}
    return batch._replace(bad=batch.bad[:bad], dropped=batch.dropped[:dropped], presence=presence)


def _draw(documents: Any, task: Task[ReadOptions], part: Part, facts: Json) -> Any:
    """Of what a sample by hash and a limit leave, each by its place: copies are not drawn together.
    `facts` learn of how many."""
    read = facts.get("read", {"docs": 0})
    places = pa.array(np.arange(documents.num_rows) + read["docs"]).cast(pa.string())
    column = string_column(documents.column("text"))
    sizes = {"docs": documents.num_rows, "bytes": int(column.offsets[-1] - column.offsets[0])}
    if "chars" in (task.options.room or {}):
        sizes["chars"] = int(measure_text(column.data, column.offsets).chars.sum())
    facts["read"] = add_counts(read, sizes)
    where = sha256(f"{part.seed} {task.options.reading.source} {task.key}".encode()).digest()[:8]
    drawn = draws(pa.table({"place": places}), int.from_bytes(where, "little"), by=("place",))
    return documents.filter(pa.array(drawn < np.uint64(min(int(part.drawn * 2**64), 2**64 - 1))))


def _smaller(sample: SampleOptions, share: Decimal) -> SampleOptions:
    k, buffer = (max(int(size * share), 1) for size in (sample.k, sample.buffer))
    return msgspec.structs.replace(sample, k=k, buffer=buffer)


def _is_guess(task: Task[ReadOptions]) -> bool:
    """Where the first record begins was not told to a part that is not the first: what it reads may be none
    of the records of the file."""
    return task.options.begins is None and task.options.span is not None and bool(task.options.span.start)


def _batches(task: Task[ReadOptions], path: AnyPath) -> Iterator[Batch]:
    options = task.options
    if options.span is None:  # of posts that were gathered before
        return read_threads(task)
    return read_documents(path, options.file, options.span, options.reading, options.begins)


def _open_input(file: Input) -> AnyPath:
    is_of_hub = file.path.startswith("hf://")
    return from_url(file.path, file.rows) if is_of_hub else open_input(file.path, file.rows)


class DigestOptions(TaskOptions, frozen=True):
    """Nothing but the bytes decides."""


def digest_task(directory: Path, file: InputFile) -> Task[DigestOptions]:
    """The SHA-256 of an object, by a node: one version of it is asked once."""
    version = fingerprint_of([str(file.path), file.bytes])
    return Task(
        function="ingest.digest",
        key=f"digest-{version[:24]}",
        options=DigestOptions(),
        inputs=[Input("file", str(file.path), version, file.bytes)],
        directory=str(directory),
    )


def perform_digest(task: Task[DigestOptions]) -> Made:
    return Made([], {}, {"sha256": file_sha256(_open_input(task.inputs[0]))})


def _most_bad(step: IngestStep, files: list[InputFile]) -> int | None:
    """How many bad records a source may have if it holds as many records as its bytes can hold: one more, and
    it is over its ceiling whatever the rest is. None: not known."""
    records = most_records(files, step.options.reading)
    return None if records is None else int(records * step.extra.max_bad_fraction)


def _task(step: IngestStep, number: int, chunk: Chunk, most_bad: int | None) -> Task[ReadOptions]:
    file, span = chunk
    # of a dataset that is known from its manifest alone, the digest of a file that was taken down is not
    digest = step.files.get(file.name, REASON)
    source = Input("file", str(file.path), digest, file.bytes)
    is_cut = span != Span() and not file.name.endswith(CUT_INSIDE)
    is_fused = file.bytes <= _FUSE_BELOW_BYTES or is_cut
    own = {"entries": file.path.entries} if isinstance(file.path, FileList) else {}
    task = reading_task(step, number, [source], is_fused=is_fused, file=file.name, span=span, **own)
    return msgspec.structs.replace(task, most_bad=most_bad)


def _room_after(options: IngestOptions, upstream: Mapping[str, Artifact]) -> dict[str, int] | None:
    """The bounds of this source; as a fallback, also what the source before it left."""
    limit, sample = options.limit or LimitOptions(), options.sample
    bounds = {
        "docs": [limit.docs, sample.k if sample is not None and sample.method == "head" else None],
        "chars": [limit.chars, limit.tokens and CHARS_PER_TOKEN * limit.tokens],
        "bytes": [limit.megabytes and limit.megabytes * 1_000_000],
    }
    for artifact in upstream.values():
        for name, left in artifact.manifest.facts["room"].items():
            bounds[name].append(left)
    given = {name: [bound for bound in found if bound is not None] for name, found in bounds.items()}
    room = {name: min(found) for name, found in given.items() if found}
    return room or None


class _Tasks:
    """Tasks that are made when they are asked for: those of files that nobody needs never are."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._coming = iter(tasks)
        self._made: list[Task] = []

    def take(self, start: int, count: int) -> list[Task]:
        self._made += itertools.islice(self._coming, max(start + count - len(self._made), 0))
        return self._made[start : start + count]

    def __iter__(self) -> Iterator[Task]:
        number = 0
        while task := self.take(number, 1):
            yield task[0]
            number += 1


def _chunks_towards(room: dict[str, int], left: dict[str, int], read: int) -> int:
    """As many as will probably fill what is left, going by those that were read;
    the first is read by itself."""
    if not read:
        return 1
    needed = min(-(-left[name] * read // max(room[name] - left[name], 1)) for name in room)
    return min(needed, _CHUNKS_TOWARDS_LIMIT)


def _take_all(tasks: _Tasks) -> Phase:
    everything = list(tasks)
    return (yield from Seams().follow_all(everything, (yield everything)))


def _take_until_full(tasks: _Tasks, room: dict[str, int]) -> Phase:
    """Chunks in order. Each is read up to the whole room; the one that overfills it again, up to what is
    left, and so is one that was broken when it was read ahead."""
    receipts: list[Receipt] = []
    left, seams = dict(room), Seams()
    while group := tasks.take(len(receipts), _chunks_towards(room, left, len(receipts))):
        group = [_with_room(task, room, is_ahead=bool(receipts)) for task in group]
        for task, receipt in zip(group, (yield group), strict=True):
            task, receipt = yield from seams.follow(task, receipt)
            if is_broken(receipt):  # its turn has come: what is wrong before the end of the limit is an error
                task = _with_room(task, left)
                (receipt,) = yield [task]
                task, receipt = yield from seams.follow(task, receipt)
            taken = _taken(receipt)
            if any(taken[name] > left[name] for name in left):
                (receipt,) = yield [_with_room(task, left)]
                return [*receipts, receipt]
            receipts.append(receipt)
            left = {name: bound - taken[name] for name, bound in left.items()}
            if receipt.facts["is_full"] or 0 in left.values():
                return receipts
    return receipts


def _take_sample(
    step: IngestStep, sample: SampleOptions, tasks: _Tasks, room: dict[str, int] | None
) -> Phase:
    bound = picking.stream_bound(sample)
    if (part := step.options.part) is not None:  # the candidates were drawn: the sample of them is smaller
        sample = _smaller(sample, part.share)
        room = room and {name: max(int(size * part.share), 1) for name, size in room.items()}
    scans = _Tasks(picking.candidate_task(task, sample) for task in tasks)
    if bound is None:
        candidates = yield from _take_all(scans)
    else:
        candidates = yield from _take_until_full(scans, bound)
    (selection,) = yield [picking.select_task(step, candidates, sample)]
    picks = [
        picking.pick_task(task, number, receipt, selection)
        for number, (task, receipt) in enumerate(zip(tasks.take(0, len(candidates)), candidates, strict=True))
    ]
    if room is None:
        picked = yield picks
    else:
        picked = yield from _take_until_full(_Tasks(picks), room)
    scanned = [picking.ledger_receipt(receipt) for receipt in candidates]
    total = add_counts(sum_counts(scanned), sum_counts(picked))
    # What was scanned came in once; the picks are those same documents again.
    not_sampled = total["scanned"] - total["kept"] - total["dropped"].get(REASON, 0)
    last = scanned[-1]
    dropped = {**last.counts["dropped"], **({NOT_SAMPLED: not_sampled} if not_sampled else {})}
    scanned[-1] = msgspec.structs.replace(last, counts={**last.counts, "dropped": dropped})
    return [*scanned, *(_without_in(receipt) for receipt in picked)]


def _with_room(task: Task, room: dict[str, int], *, is_ahead: bool = False) -> Task:
    told: Json = {"room": room}
    if isinstance(task.options, ReadOptions):
        told["is_ahead"] = is_ahead
    return msgspec.structs.replace(task, options=msgspec.structs.replace(task.options, **told))


def _without_in(receipt: Receipt) -> Receipt:
    return msgspec.structs.replace(receipt, counts={**receipt.counts, "in": 0})


def _taken(receipt: Receipt) -> dict[str, int]:
    """With what was forgotten, and in an estimate what was not drawn: a limit is not filled up with others
    in their place."""
    counts = receipt.counts
    taken = {"docs": counts["kept"], "chars": counts["text_chars"], "bytes": counts["text_bytes"]}
    return receipt.facts.get("read") or add_counts(taken, counts.get("forgotten", {}))


def _left_of(room: dict[str, int], options: IngestOptions, receipts: list[Receipt]) -> dict[str, int]:
    """For the source that is read if this one has too little."""
    if any(receipt.facts.get("is_full") for receipt in receipts):
        return dict.fromkeys(room, 0)
    taken: Json = {}
    for receipt in receipts:
        taken = add_counts(taken, _taken(receipt))
    is_picked = options.sample is not None and options.sample.method in FIXED_SAMPLES
    share = options.part.share if options.part is not None and is_picked else 1
    return {name: max(left - int(taken.get(name, 0) / share), 0) for name, left in room.items()}


def _scanned(receipts: list[Receipt], records: int, of: int, sizes: list[int], total_bytes: int) -> Json:
    """How much of the source was looked at: a head of 0.1 % is not passed off as a sample of the whole."""
    looked = [receipt for receipt in receipts if picking.is_scan(receipt)] or receipts
    is_complete = len(looked) == of and not any(receipt.facts.get("is_full") for receipt in looked)
    size = total_bytes
    if not is_complete and sizes:
        size = sum(
            min(receipt.facts.get("bytes_read", whole), whole)
            for receipt, whole in zip(looked, sizes, strict=False)
        )
    return {
        "records": records,
        "bytes": size,
        "of_bytes": total_bytes,
        "fraction": round(size / total_bytes, 6) if total_bytes else 1.0,
        "chunks": len(looked),
        "of": of,
        "is_complete": is_complete,
    }


def _presence(
    reading: Reading, files: list[InputFile], receipts: list[Receipt], *, is_complete: bool
) -> Json:
    """As facts: how many records have what the recipe names."""
    total: Json = {}
    for receipt in receipts:
        total = add_counts(total, receipt.facts.get("presence", {}))
    presence = check_presence(reading, files, total, is_complete=is_complete)
    filters = {
        name.removeprefix("where."): have > 0 for name, have in presence.items() if name.startswith("where.")
    }
    return ({"presence": presence} if presence else {}) | ({"where_applied": filters} if filters else {})


def check_unchanged(files: list[InputFile]) -> None:
    for file in files:
        if isinstance(file.path, FileList):
            file.path.check()
        if not isinstance(file.path, Path):
            # a pinned commit, or an object read under the etag it had: another one is an error there
            continue
        stat = file.path.stat() if file.path.exists() else None
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (file.bytes, file.modified_ns):
            raise InputChanged(
                "the file changed while it was being read",
                where=str(file.path),
                next="run again when nothing writes to the input any more",
            )


def _check_ceiling(step: IngestStep, counts: Json, receipts: list[Receipt], *, is_fallback: bool) -> None:
    quarantined = sum(counts["quarantined"].values())
    if quarantined * 10**9 > counts["in"] * int(step.extra.max_bad_fraction * 10**9):
        raise TooManyBadRecords(
            f"{quarantined:,} of {counts['in']:,} records cannot be used "
            f"({_by_reason(counts['quarantined'])}); "
            f"the ceiling is {step.extra.max_bad_fraction:%}\n{_examples(step, receipts)}",
            where=f"source {step.options.reading.source}",
            next=_REPAIR,
        )
    is_empty = not any(_taken(receipt)["docs"] for receipt in receipts)
    if is_empty and any(receipt.facts.get("is_full") for receipt in receipts):
        if is_fallback:  # for what another source left, which may be less than a document
            return
        raise InputError(
            "its first document is larger than its `limit`",
            where=f"source {step.options.reading.source}",
            next="raise `limit` of this source",
        )
    if not counts["in"]:
        raise InputError(
            "the files hold no record at all",
            where=f"source {step.options.reading.source}",
            next="check that they are the files you meant",
        )


def _examples(step: Step, receipts: list[Receipt]) -> str:
    ledgers = [entry for receipt in receipts for entry in receipt.files if entry.table == "ledger"]
    rows = load_table(step.directory / ledgers[0].path).slice(0, 3).to_pylist() if ledgers else []
    return "\n".join(map(_example, rows))


def _example(row: Json) -> str:
    return f"  {row['file']} at {row['offset']:,}: {row['reason']} ({row['detail']})"


def _by_reason(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in sorted(counts.items()))


def _environment(step: IngestStep, receipts: Sequence[Receipt]) -> Json:
    """Of each input that is a file; those of the hub have a commit."""
    if step.extra.hub is not None:
        return {}
    if step.extra.before is not None:  # a takedown has read none
        stats = step.extra.before.environment.get(INPUT_STATS, {})
    else:
        stats = {
            file.name: [file.bytes, file.modified_ns, step.files[file.name], *marks_of_place(file.path)]
            for file in step.extra.files or ()
        }
    # a file that was taken down is hashed by every run: no name of it stays, and no hash
    return {INPUT_STATS: {name: told for name, told in stats.items() if name not in step.extra.hidden}}


def _hand_on(manifest: Manifest, taker: str) -> Json:
    """What a limit left, for the source that fills it up; and the domain, where no document tells it."""
    room = {"room": manifest.facts["room"]} if taker == "ingest" else {}
    is_empty = taker in ("mixture", "build") and not manifest.counts["kept"]
    return {**room, **({"domain": manifest.config["reading"]["domain"]} if is_empty else {})}


STAGE = Stage(
    "ingest",
    IngestOptions,
    conduct,
    {
        "ingest": TaskFunction(ReadOptions, perform_ingest),
        "ingest.digest": TaskFunction(DigestOptions, perform_digest),
        "ingest.forget": TaskFunction(ForgetOptions, perform_forget),
        "ingest.tombstones": TaskFunction(TombstoneOptions, perform_tombstones),
        "posts": TaskFunction(PostOptions, perform_posts),
        "sample.candidates": TaskFunction(ReadOptions, perform_candidates),
        **picking.TASKS,
    },
    _environment,
    hand_on=_hand_on,
)

# Files that a score learns from: read as a source is, and no part of the corpus. Its tasks are those above.
EXAMPLES = Stage("examples", IngestOptions, conduct, {}, _environment)
