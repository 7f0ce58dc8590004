"""What a run wrote, counted again from its files. Nothing of tokmill is imported here.

    documents · marks · edits · ledgers · labels · lengths    of every document: what became of it
    counts of manifests, report.json, why, …                  what the run says of them

`discrepancies` are lines of text, each beginning with the figure that is wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recount import read_ids, read_index
from written import MegatronFile, ZstdFile, read_token_cache

Json = dict[str, Any]
SPLITS = ("train", "valid", "test")


@dataclass
class Doc:
    source: str
    shard: str  # source/key
    row: int
    doc_id: str
    received: str
    text: str  # as it is encoded: cleaned, and cut by dedup
    license: str | None = None
    gone: tuple[str, str] | None = None  # stage and reason
    split: str | None = None
    ids: Any = None  # of its tokens


def _number(path: Path) -> str:
    """00003-000.r1 of documents-00003-000.r1.parquet."""
    return path.stem.partition("-")[2]


def _place(number: str) -> int:
    """3 of 00003.r1."""
    return int(number.split(".")[0])


def _rows(path: Path | None) -> list[Json]:
    return [] if path is None else pq.read_table(path).to_pylist()


@dataclass
class Run:
    directory: Path
    sources: dict[str, bool]  # of the recipe, in its order: does it have conversations?
    docs: list[Doc] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_place: dict[tuple[str, int], Doc] = {}
        self.manifests = {
            path.parent.relative_to(self.directory).as_posix(): json.loads(path.read_bytes())
            for path in sorted(self.directory.rglob("manifest.json"))
            if path.parent != self.directory and "kind" in (body := json.loads(path.read_bytes())) and body
        }
        self._read_documents()
        self._read_copies()
        self._read_splits()
        self._read_tokens()

    def files(self, step: str, table: str) -> dict[str, Path]:
        """Of one table of a step by their numbers, as the manifest of the step lists them."""
        listed = self.manifests.get(step, {"files": []})["files"]
        return {
            _number(Path(entry["path"])): self.directory / step / entry["path"]
            for entry in listed
            if entry["table"] == table
        }

    def _read_documents(self) -> None:
        for source in self.sources:
            marks, edits = self.files(f"clean/{source}", "marks"), self.files(f"clean/{source}", "edits")
            for number, path in sorted(self.files(f"ingest/{source}", "documents").items()):
                edited = {row["row"]: row["text"] for row in _rows(edits.get(number))}
                marked = _rows(marks.get(number))
                for row, found in enumerate(_rows(path)):
                    doc = Doc(
                        source,
                        f"{source}/{number}",
                        row,
                        found["doc_id"],
                        found["text"],
                        edited.get(row, found["text"]),
                    )
                    if marked:
                        doc.license = marked[row]["license"]
                        doc.gone = None if marked[row]["kept"] else ("clean", "?")
                    self.docs.append(doc)
                    self._by_place[doc.shard, row] = doc
            for line in self.ledger(f"clean/{source}"):
                doc = self._by_place[line["shard"], line["row"]]
                if line["verdict"] != "edit":
                    self.check(
                        doc.gone == ("clean", "?"),
                        f"clean ledger: {doc.doc_id} is in it, and kept by its marks",
                    )
                    doc.gone = ("clean", line["reason"])
        for doc in self.docs:
            self.check(doc.gone != ("clean", "?"), f"clean ledger: {doc.doc_id} left without a row")

    def _leave(self, step: str) -> None:
        for line in self.ledger(step):
            if line["verdict"] != "edit":
                doc = self._by_place[line["shard"], line["row"]]
                self.check(doc.gone is None, f"{step} ledger: {doc.doc_id} had left by {doc.gone}")
                doc.gone = (step, line["reason"])

    def _read_copies(self) -> None:
        self._leave("scores")
        self._leave("dedup")
        self.shards = self.manifests.get("dedup", self.manifests.get("split", {"facts": {}}))["facts"].get(
            "shards", []
        )
        listed = {entry["table"] for entry in self.manifests.get("dedup", {"files": []})["files"]}
        for table in sorted(listed, key=lambda table: table == "trims"):  # passages are cut last
            for number, path in self.files("dedup", table).items():
                if path.suffix == ".parquet" and pq.read_schema(path).names[:2] == ["row", "text"]:
                    for row in _rows(path):
                        self._by_place[self.shards[_place(number)], row["row"]].text = row["text"]
        for line in self.ledger("dedup"):
            if line["verdict"] == "drop" and line["match_shard"] is not None:
                match = self._by_place.get((line["match_shard"], line["match_row"]))
                who = f"{line['reason']} of {line['source']}/{line['doc_id']}"
                if match is not None:
                    self.check(
                        match.gone is None or match.gone[0] == "split",
                        f"dedup match: {who} names {match.doc_id}, which is gone: {match.gone}",
                    )
                else:
                    self.check(
                        line["reason"].startswith("reference_"), f"dedup match: {who} names no document"
                    )

    def _read_splits(self) -> None:
        self._leave("split")
        labels = self.files("split", "labels")
        shards = self.shards or sorted(
            {doc.shard for doc in self.docs}, key=[doc.shard for doc in self.docs].index
        )
        for number, path in labels.items():
            for row, label in enumerate(_rows(path)):
                doc = self._by_place[shards[_place(number)], row]
                doc.split = SPLITS[label["split"]] if label["split"] in range(3) else None
                self.check(
                    (doc.split is None) == (doc.gone is not None),
                    f"split labels: {doc.doc_id} is {doc.split}, and {doc.gone}",
                )

    def _read_tokens(self) -> None:
        shards = self.shards or sorted(
            {doc.shard for doc in self.docs}, key=[doc.shard for doc in self.docs].index
        )
        for entry in self.manifests.get("tokens", {"files": []})["files"]:
            path = self.directory / "tokens" / entry["path"]
            if path.name.startswith("lengths-"):
                split, number = Path(entry["path"]).parts[0], _number(path)
                stored = MegatronFile(
                    path.with_name(path.name.replace("lengths-", "tokens-").removesuffix(".parquet"))
                )
                rows = _rows(path)
                self.check(
                    len(rows) == len(stored),
                    f"tokens: {entry['path']} has {len(rows)} lengths of {len(stored)} sequences",
                )
                for sequence, line in enumerate(rows):
                    doc = self._by_place[shards[_place(number)], line["row"]]
                    doc.ids = stored.sequence(sequence)
                    self.check(doc.split == split, f"tokens: {doc.doc_id} is in {split}, and of {doc.split}")
                    self.check(len(doc.ids) == line["tokens"], f"tokens: {doc.doc_id} has another length")
                    text = re.sub("[\ufdd0-\ufdd4]", "", doc.text) if self.sources[doc.source] else doc.text
                    self.same(f"tokens: text_bytes of {doc.doc_id}", line["text_bytes"], len(text.encode()))
        if "tokens" in self.manifests:
            missing = [doc.doc_id for doc in self.docs if doc.split and doc.ids is None]
            self.check(not missing, f"tokens: none of {missing[:3]}")

    # --- what is asked of it ---

    def check(self, holds: bool, what: str) -> None:
        if not holds and len(self.wrong) < 20:
            self.wrong.append(what)

    def same(self, name: str, said: Any, counted: Any) -> None:
        self.check(said == counted, f"{name}: says {said}, counted {counted}")

    def ledger(self, step: str) -> list[Json]:
        return [line for _, path in sorted(self.files(step, "ledger").items()) for line in _rows(path)]

    def kept_after(self, stage: str, source: str | None = None) -> int:
        later = ("clean", "scores", "dedup", "split")
        gone = later[: later.index(stage) + 1]
        return sum(
            doc.gone is None or doc.gone[0] not in gone for doc in self.docs if source in (None, doc.source)
        )

    def check_manifests(self) -> None:
        for step, manifest in self.manifests.items():
            counts = manifest["counts"]
            if "in" in counts:
                gone = sum(counts["dropped"].values()) + sum(counts["quarantined"].values())
                self.same(f"conservation of {step}", counts["in"], counts["kept"] + gone)
            root = json.loads((self.directory / "manifest.json").read_bytes())
            self.same(f"inputs of the run: {step}", root["inputs"].get(step), manifest["identity"])
        for source in self.sources:
            own = [doc for doc in self.docs if doc.source == source]
            if f"ingest/{source}" not in self.manifests:
                continue
            counts, ledger = self.manifests[f"ingest/{source}"]["counts"], self.ledger(f"ingest/{source}")
            self.same(f"ingest/{source} kept", counts["kept"], len(own))
            self.same(
                f"ingest/{source} text_bytes",
                counts["text_bytes"],
                sum(len(doc.received.encode()) for doc in own),
            )
            self.same(
                f"ingest/{source} text_chars", counts["text_chars"], sum(len(doc.received) for doc in own)
            )
            lines = Counter((line["verdict"], line["reason"]) for line in ledger)
            said = {("drop", r): n for r, n in counts["dropped"].items() if r != "not_sampled"}
            self.same(
                f"ingest/{source} ledger",
                said | {("quarantine", r): n for r, n in counts["quarantined"].items()},
                dict(lines),
            )
            self._check_cleaning(source, own)
        self._check_step("dedup", {"dedup"})
        self._check_step("split", {"split"})
        if "split" in self.manifests:
            counts = self.manifests["split"]["counts"]
            for split in self.manifests["split"]["facts"]["splits"]:
                self.same(
                    f"split {split}", counts.get(split, 0), sum(doc.split == split for doc in self.docs)
                )
        if "tokens" in self.manifests:
            counts, sums = self.manifests["tokens"]["counts"], Counter[str]()
            for doc in self.docs:
                if doc.split:
                    sums[doc.split] += len(doc.ids if doc.ids is not None else ())
            self.same(
                "tokens by split",
                {k: v for k, v in counts["tokens"].items() if v},
                {k: v for k, v in sums.items() if v},
            )
            self.same("tokens in", counts["in"], sum(doc.split is not None for doc in self.docs))

    def _check_cleaning(self, source: str, own: list[Doc]) -> None:
        if f"clean/{source}" not in self.manifests:
            return
        counts, ledger = self.manifests[f"clean/{source}"]["counts"], self.ledger(f"clean/{source}")
        kept = [doc for doc in own if doc.gone is None or doc.gone[0] != "clean"]
        self.same(f"clean/{source} in", counts["in"], len(own))
        self.same(f"clean/{source} kept", counts["kept"], len(kept))
        for verdict, key in (("drop", "dropped"), ("quarantine", "quarantined"), ("edit", "edited")):
            lines = Counter(line["reason"] for line in ledger if line["verdict"] == verdict)
            self.same(
                f"clean/{source} {key}", {r: n for r, n in counts.get(key, {}).items() if n}, dict(lines)
            )
        licenses = Counter(doc.license or "unknown" for doc in kept)
        self.same(
            f"clean/{source} licenses",
            {k: v["docs"] for k, v in counts.get("licenses", {}).items() if v["docs"]},
            dict(licenses),
        )

    def _check_step(self, step: str, stages: set[str]) -> None:
        if step not in self.manifests:
            return
        counts = self.manifests[step]["counts"]
        lines = Counter(line["reason"] for line in self.ledger(step) if line["verdict"] == "drop")
        self.same(f"{step} dropped", {r: n for r, n in counts["dropped"].items() if n}, dict(lines))
        self.same(f"{step} kept", counts["kept"], self.kept_after(step))

    # --- builds ---

    def builds(self) -> Iterator[tuple[str, Json]]:
        for step, manifest in self.manifests.items():
            if manifest["kind"] == "build":
                yield step, manifest

    def check_builds(self) -> None:
        by_name: dict[tuple[str, str], list[Doc]] = defaultdict(list)
        for doc in self.docs:
            by_name[doc.source, doc.doc_id].append(doc)
        for step, manifest in self.builds():
            tokens, rows = Counter[str](), 0
            for path in sorted((self.directory / step).glob("*/index.jsonl.zst")):
                split, index = path.parent.name, read_index(path)
                ids = list(built_ids(path.parent, manifest["config"].get("format", "")))
                self.check(
                    not ids or len(ids) == len(index), f"{step} {split}: {len(index)} rows, {len(ids)} read"
                )
                rows += len(index)
                for number, row in enumerate(index):
                    for source, doc_id, start, end, offset in row:
                        tokens[source] += end - start
                        docs = [doc for doc in by_name[source, doc_id] if doc.split == split]
                        self.check(
                            bool(docs), f"{step}: {source}/{doc_id} is in {split}, and no document of it"
                        )
                        if ids and not any(
                            np.array_equal(ids[number][start:end], doc.ids[offset : offset + end - start])
                            for doc in docs
                        ):
                            self.check(
                                False, f"{step} ids: row {number} has other tokens of {source}/{doc_id}"
                            )
            counts = manifest["counts"]
            if rows:
                self.same(f"{step} rows", counts["rows"], rows)
                said = {name: one["tokens"] for name, one in counts["sources"].items() if one["tokens"]}
                self.same(f"{step} tokens of sources", said, {k: v for k, v in tokens.items() if v})
                self.same(f"{step} written", counts["tokens"]["written"], tokens.total())
                left = sum(counts["tokens"][k] for k in ("written", "tail_dropped", "truncated", "left_out"))
                self.same(f"{step} tokens in", counts["tokens"]["in"], left)

    def check_report(self, report: Json) -> None:
        totals, split = report["totals"], [doc for doc in self.docs if doc.split]
        ingested = [
            self.manifests[f"ingest/{s}"]["counts"] for s in self.sources if f"ingest/{s}" in self.manifests
        ]
        self.same("report records", totals["records"], sum(counts["in"] for counts in ingested))
        self.same(
            "report text_bytes", totals["text_bytes"], sum(len(doc.received.encode()) for doc in self.docs)
        )
        if "split" in self.manifests:
            self.same("report kept", totals["kept"], len(split))
        if "tokens" in self.manifests:
            self.same(
                "report tokens", totals["tokens"], sum(len(doc.ids) for doc in split if doc.ids is not None)
            )
            licenses = Counter(doc.license or "unknown" for doc in split)
            self.same(
                "report shares by license",
                {one["name"]: one["docs"] for one in report["shares"]["license"]},
                dict(licenses),
            )
        for one in report["sources"]:
            own = [doc for doc in self.docs if doc.source == one["name"]]
            self.same(f"report {one['name']} ingested", one["ingested"], len(own))
            self.same(
                f"report {one['name']} kept_by_clean",
                one["kept_by_clean"],
                self.kept_after("clean", one["name"]),
            )
        lost = Counter(
            (line["stage"], line["reason"])
            for step in self.manifests
            for line in self.ledger(step)
            if line["verdict"] != "edit"
        )
        said = Counter[tuple[str, str]]()  # a reason may drop in one source, and quarantine in another
        for one in report["drops"]:
            if (
                one["stage"] in ("ingest", "clean", "dedup", "split", "scores")
                and one["reason"] != "not_sampled"
            ):
                said[one["stage"], one["reason"]] += one["docs"]
        self.same("report drops", dict(said), dict(lost))

    def check_why(self, why: Json, doc: Doc) -> None:
        same = [one for one in self.docs if one.doc_id == doc.doc_id]
        told = [
            one["outcome"]
            for one in why["documents"]
            if "ingest" not in one["outcome"] and one["outcome"] != "forgotten"
        ]
        self.same(f"why {doc.doc_id!r}: documents", len(told), len(same))
        kept = sum(outcome.startswith("kept") for outcome in told)
        self.same(f"why {doc.doc_id!r}: kept", kept, sum(one.gone is None for one in same))
        for one in same:
            if one.gone and one.gone[0] in ("clean", "dedup"):
                self.check(
                    any(one.gone[1] in outcome for outcome in told),
                    f"why {doc.doc_id!r}: no outcome tells {one.gone}: {told}",
                )


def built_ids(split: Path, format: str) -> Iterator[Any]:
    """Rows or documents of a split of a build, by libraries; nothing of formats that have no reader here."""
    if format in ("memmap", "parquet", "megatron"):
        yield from read_ids(split)[1]
    elif format == "npy":
        for path in sorted(split.glob("shard_*.npy")):
            yield from np.load(path)
    elif format == "arrow":
        for path in sorted(split.glob("data-*.arrow")):
            with pa.ipc.open_stream(path) as stream:
                yield from map(np.array, stream.read_all().column("input_ids").to_pylist())
    elif format == "token_cache":
        yield from read_token_cache(split)
    elif format in ("nanogpt", "llmc", "nanotron", "olmo"):
        meta = json.loads((split / "meta.json").read_bytes())
        dtype = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4"}[meta["dtype"]]
        skipped = 1024 if format == "llmc" else 0  # its header
        parts = [np.frombuffer((split / one["file"]).read_bytes()[skipped:], dtype) for one in meta["arrays"]]
        whole = np.concatenate(parts) if parts else np.zeros(0, dtype)
        ends = split / ("tokens.ds.index" if format == "nanotron" else "documents.index")
        if ends.is_file():
            yield from np.split(whole, np.fromfile(ends, "<u8").astype(np.int64)[:-1]) if len(whole) else ()
        else:
            yield from whole.reshape(-1, meta["seq_len"])


def contents(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, decompressed where it is compressed, and every column and the footer of every table."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name, data = path.relative_to(directory).as_posix(), path.read_bytes()
        if path.suffix == ".parquet":
            # Not its pages: zstd joins literals that are apart in the text. The footer has statistics.
            yield name, data[-8 - int.from_bytes(data[-8:-4], "little") :]
        elif path.suffix != ".zst":
            yield name, data
        if path.suffix == ".zst":
            with ZstdFile(path) as file:
                yield name, file.read()
        elif path.suffix == ".parquet":
            for column in pq.read_table(path).columns:
                if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                    yield name, np.asarray(column.combine_chunks().flatten()).astype("<i4").tobytes()
                else:
                    yield name, "\0".join(map(str, column.to_pylist())).encode("utf-8", "surrogatepass")


PIECE = 24


def own_pieces(texts: list[str], others: str) -> list[str]:
    """Pieces of the texts that are in none of the others: two of each, where there are."""
    found = []
    for text in texts:
        starts = [match.start() for match in re.finditer(r"z[qc][0-9a-f]{8}", text)] + [0, len(text) // 2]
        pieces = [text[max(0, start - 4) :][:PIECE] for start in starts]
        found += [piece for piece in dict.fromkeys(pieces) if len(piece) == PIECE and piece not in others][:2]
    return found


def own_ids(doc: Doc, others: bytes) -> bytes | None:
    """Ten of its ids that follow each other in no other document, as int32."""
    if doc.ids is None:
        return None
    ids = np.asarray(doc.ids).astype("<i4")
    for start in range(0, len(ids) - 10, 5):
        if (
            len(set(ids[start : start + 10].tolist())) > 5
            and (piece := ids[start : start + 10].tobytes()) not in others
        ):
            return piece
    return None
