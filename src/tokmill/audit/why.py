"""The history of a document, from its source to its tokens, read from the artifacts alone.

doc_id ─ ids ─> ingest: file, shard, row ─ clean: every rule with value and margin, edits ─ dedup: survivor
             │                           ─ split ─ tokens: how many, where ─ builds: rows, for every turn
             ├ of a web page: its blocks, kept and left out (tokmill.audit.webpages)
             ├ ledgers of ingest: a record that never became a document
             └ forgotten.parquet: it was taken down

    place, split ─ lengths-<shard> ─> sequence, first token ─┬ order-<split> ─> turns
                                                             └ places.npy, or where sequences begin
                                                                 ─> rows and columns, or a sequence

`tokmill trace` tells the tokens from here too. `(source, doc_id)` need not be unique:
every document of that name has its own history.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from tokmill.artifacts.cells import broken, cell, short_repr, table
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.examples import count_reasons, load_examples
from tokmill.audit.opened import find_artifacts, load_of, numbers_in
from tokmill.audit.places import Place, RunPlaces, entry_of, open_places, places_in, splits_of
from tokmill.errors import InputError, RecipeError
from tokmill.formats.megatron import MEGATRON, MegatronFile
from tokmill.formats.streams import open_documents
from tokmill.schema import NO_SPLIT
from tokmill.storage.tables import load_table


def _in_shard(run: RunPlaces, place: Place, split: str) -> Json:
    """Tokens lie in the order of rows: where one document begins is the sum of those before it."""
    artifact, entry = run.artifacts["tokens"], run.lengths_entry(place.shard, split)
    assert entry is not None, "a document of a split has tokens"
    table = load_table(artifact.path(entry), ["row", "tokens"])
    lengths = numbers_in(table, "tokens")
    sequence = int(np.searchsorted(numbers_in(table, "row"), place.row))
    return {
        "split": split,
        "tokens": int(lengths[sequence]),
        "file": entry.path.replace("/lengths-", "/tokens-").replace(".parquet", ".bin"),
        "sequence": sequence,
        "first": int(lengths[:sequence].sum()),
    }


def _in_build(run: RunPlaces, name: str, build: Artifact, split: str, shard: int, tokens: Json) -> Json:
    told: Json = {"build": name, "format": build.manifest.config["format"], "split": split}
    if split not in splits_of(build):
        return {**told, "turns": [], "why_not": "the build has no such split"}
    turns = run.turns(name, split)
    mine = turns.of(shard, tokens["sequence"])
    if not mine:
        wanted = build.manifest.config["sources"]
        is_chosen = any(own.number == shard for own in turns.shards)
        why = _NO_TURN if is_chosen else f"the build is of {', '.join(wanted)} only"
        return {**told, "turns": [], "why_not": why}
    return {**told, "turns": [_turn(build, split, turn, tokens["tokens"]) for turn in mine]}


def _in_texts(run: RunPlaces, name: str, texts: Artifact, split: str, place: Place) -> Json:
    """File and record, for every time that the document is there."""
    config = texts.manifest.config
    told: Json = {"build": name, "format": config["format"], "split": split}
    if config["sources"] and place.shard.source not in config["sources"]:
        return {**told, "turns": [], "why_not": f"the build is of {', '.join(config['sources'])} only"}
    records = run.in_texts(name, split, {place.shard.number: np.array([place.row])})
    found = [{"turn": turn, "file": one.file.path, "record": one.number} for turn, one in enumerate(records)]
    return {**told, "turns": found} if found else {**told, "turns": [], "why_not": _NO_TURN}


_NO_TURN = "the mixture gave it no turn"


def _turn(build: Artifact, split: str, turn: int, tokens: int) -> Json:
    """Rows and columns with the tokens in them; of sequences, which one; where they lie end to end,
    the first of its tokens, counted from the first file on."""
    if entry_of(build, split, "places") is not None:
        places = places_in(build, split, turn)
        columns = (places.row, places.start, places.end, places.offset)
        rows = [
            dict(zip(("row", "start", "end", "offset"), values, strict=True))
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]
        cut = tokens - sum(row["end"] - row["start"] for row in rows)
        return {"turn": turn, "rows": rows, "cut_tokens": cut}
    told: Json = {"turn": turn, "sequence": turn}
    documents = open_end_to_end(build, split)
    if documents is not None:
        told["first_token"], told["tokens"] = documents.span(turn)
    return told


class EndToEnd(Protocol):
    """Documents one after the other; tokens are counted from the first file on."""

    @property
    def tokens(self) -> int: ...
    @property
    def first_array(self) -> Path: ...
    def span(self, number: int) -> tuple[int, int]:
        """The first token of a document, and how many it has."""

    def find(self, token: int) -> tuple[int, int]:
        """The document that the token is in, and which of its tokens it is."""


class _Pair(NamedTuple):
    """The same of Megatron's files."""

    file: MegatronFile
    first_array: Path

    @property
    def tokens(self) -> int:
        return len(self.file.ids)

    def span(self, number: int) -> tuple[int, int]:
        return int(self.file.pointers[number]) // self.file.dtype.itemsize, int(self.file.lengths[number])

    def find(self, token: int) -> tuple[int, int]:
        pointer = token * self.file.dtype.itemsize
        number = int(np.searchsorted(self.file.pointers, pointer, side="right")) - 1
        return number, token - self.span(number)[0]


def open_end_to_end(build: Artifact, split: str) -> EndToEnd | None:
    """None: the build has rows, or its format has no such files. Each has a table of sequences of its own."""
    entry = entry_of(build, split, "sequences")
    if entry is None:
        return None
    path = build.path(entry)
    if build.manifest.config["format"] == MEGATRON.name:
        return _Pair(MegatronFile(path.with_suffix("")), path.with_suffix(".bin"))
    return open_documents(path)


NOT_MEASURED = "it was out already, and no bound could have kept it"


class RuleOutcome(NamedTuple):
    rule: str
    value: float
    bound: str  # "min 50"
    margin: float  # below zero: broken
    reason: str


@short_repr
class History(NamedTuple):
    doc_id: str
    source: str
    outcome: str  # "kept", "dropped: too_few_words", …
    ingest: Json
    clean: Json | None = None
    rules: tuple[RuleOutcome, ...] = ()
    scores: Json | None = None  # percentiles, where there are some
    dedup: Json | None = None
    split: str | None = None
    tokens: Json | None = None
    builds: tuple[Json, ...] = ()
    explained: tuple[Json, ...] = ()  # scores, and what pushed them up and down, where that is asked for
    page: Json | None = None  # where the web page lies that it is of, and what became of its blocks

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "rules": [rule._asdict() for rule in self.rules],
            "builds": list(self.builds),
            "explained": list(self.explained),
        }

    def _repr_html_(self) -> str:
        """What a notebook shows: the outcome, each rule with value, threshold and margin, and every step."""
        parts = []
        if self.rules:
            rules = [
                (
                    rule.rule,
                    rule.value,
                    rule.bound,
                    broken(f"{rule.margin:.6g}") if rule.margin < 0 else rule.margin,
                )
                for rule in self.rules
            ]
            parts.append(table(["rule", "value", "threshold", "margin"], rules))
        told = {"ingest": self.ingest, "clean": self.clean, "dedup": self.dedup, "tokens": self.tokens}
        steps = [(name, _spelled(what)) for name, what in told.items() if what]
        steps += [("split", self.split)] if self.split else []
        steps += [(f"build/{build['build']}", _spelled(build)) for build in self.builds]
        parts.append(table(["step", "what is written there"], steps))
        outcome = self.outcome if self.outcome.startswith("kept") else broken(self.outcome)
        return cell(f"{self.doc_id} of {self.source}", outcome, parts)


class Told(NamedTuple):
    """A history, and where the document is; None: it never was one, or was taken down."""

    place: Place | None
    history: History


@short_repr
class Why(NamedTuple):
    """The histories of every document of a name; or, for a reason, how many were dropped for it,
    and examples."""

    documents: list[History] | None = None
    counts: list[Json] | None = None
    examples: list[Json] | None = None
    others: list[Json] | None = (
        None  # the counts of all reasons, where there is nothing of the one that was asked for
    )

    def as_json(self) -> Json:
        if self.documents is not None:
            return {"documents": [history.as_json() for history in self.documents]}
        return {"counts": self.counts, "examples": self.examples, "others": self.others or []}

    def _repr_html_(self) -> str:
        if self.documents is not None:
            return "".join(history._repr_html_() for history in self.documents)
        found = [*(self.counts or []), *(self.examples or [])]
        return "".join(cell("", _spelled(one), []) for one in found)


def why(
    directory: str | Path,
    doc_id: str | None = None,
    *,
    source: str | None = None,
    reason: str | None = None,
    blocks: bool = False,
    explain: bool = False,
    base: str | Path | None = None,
) -> Why:
    """The history of a document: every rule with its value and margin, what was decided,
    where its tokens are. Of a web page also how much of it was kept and left out, and with `blocks` each
    block, with its score and what decided it; with `explain`, what pushed each learned score up and down.
    `base` is where the recipe lies, to find the page and the models again.

    With a `reason` instead (or a part of its name, or "all") how many left or were changed for it,
    and some of them.
    """
    if (doc_id is None) == (reason is None):
        raise RecipeError(
            "needs either DOC_ID or --reason", where="tokmill why", next="see `tokmill why --help`"
        )
    if doc_id is not None:
        run = open_places(directory)
        told = tell_histories(run, doc_id, source)
        pages = [_with_page(run, one, base, blocks) for one in told]
        return Why(
            [_with_scores(run, one, page, base, explain) for one, page in zip(told, pages, strict=True)]
        )
    if blocks or explain:
        raise RecipeError(
            f"{'--blocks' if blocks else '--explain'} is for one document",
            where="tokmill why",
            next="give its DOC_ID, and no `--reason`",
        )
    assert reason is not None
    found = find_artifacts(directory)
    sources = list(found.of_kind("ingest"))
    if source not in (None, *sources):
        raise InputError(
            f"no source is called {source}", where=str(directory), next=f"one of: {', '.join(sources)}"
        )
    known, counts = {one["reason"] for one in count_reasons(found)}, count_reasons(found, source)
    wanted = known if reason == "all" else {reason} & known or {name for name in known if reason in name}
    counted = [one for one in counts if one["reason"] in wanted]
    examples = load_examples(found, wanted, source)
    return Why(counts=counted, examples=examples, others=None if counted or examples else counts)


def tell_histories(run: RunPlaces, doc_id: str, source: str | None = None) -> list[Told]:
    """Every document of that name, in the order of the corpus;
    then records and documents that are not there."""
    found = [Told(place, whole_history(run, place, doc_id)) for place in run.find(doc_id, source)]
    found += [Told(None, _of_record(own, row)) for own, row in run.find_left_out(doc_id, source)]
    found += [
        Told(None, History(doc_id, row["source"], "forgotten", {"taken_out_of": row["parent"]}))
        for row in run.find_forgotten(doc_id, source)
    ]
    if not found:
        raise InputError(
            f"no document is called {doc_id}",
            where=str(run.directory) + (f", source {source}" if source else ""),
            next=f"the run was cut short, without {', '.join(run.missing)}: run the recipe again"
            if run.missing
            else "ids are those of the source, or 32 hex digits made from the text where it has none"
            + _not_written_down(run),
        )
    return found


def _not_written_down(run: RunPlaces) -> str:
    """A sample reads records that it does not draw, and keeps nothing of them."""
    left_out = {
        name.removeprefix("ingest/"): artifact.manifest.counts["dropped"].get("not_sampled", 0)
        for name, artifact in run.of_kind("ingest").items()
    }
    told = [f"{count:,} of {source}" for source, count in left_out.items() if count]
    return f"; records that were not sampled are written down nowhere ({', '.join(told)})" if told else ""


# Sources whose documents may be of web pages.
_WEB_FORMATS = ("warc", "directory")


def _with_page(run: RunPlaces, told: Told, base: str | Path | None, blocks: bool) -> History:
    history = told.history
    ingest = run.artifacts.get(f"ingest/{history.source}")
    if ingest is None or ingest.manifest.config["reading"]["format"] not in _WEB_FORMATS:
        return history
    from tokmill.audit.webpages import tell_page

    page = tell_page(run, told.place, history, base)
    return history._replace(page=page.as_json(blocks=blocks)) if page is not None else history


def _with_scores(
    run: RunPlaces, told: Told, history: History, base: str | Path | None, explain: bool
) -> History:
    if not explain or told.place is None:
        return history
    from tokmill.audit.explaining import explain_scores

    return history._replace(explained=tuple(explain_scores(run, told.place, base)))


def _of_record(source: str, row: Json) -> History:
    """Of a record that never became a document."""
    told = ("file", "offset", "verdict", "reason", "value", "threshold", "detail")
    outcome = f"{_past(row['verdict'])} at ingest: {row['reason']}"
    return History(row["doc_id"], source, outcome, {key: row[key] for key in told})


def whole_history(run: RunPlaces, place: Place, doc_id: str) -> History:
    history = history_of(run, place, doc_id)
    split, outcome = history.split, history.outcome
    if split is None:
        return history
    tokens = _in_shard(run, place, split) if "tokens" in run.artifacts else None
    builds = [
        _in_build(run, name, build, split, place.shard.number, tokens)
        for name, build in run.of_kind("build").items()
        if tokens is not None
    ]
    builds += [_in_texts(run, name, texts, split, place) for name, texts in run.of_kind("texts").items()]
    if builds and not any(turn.get("rows", True) for told in builds for turn in told["turns"]):
        outcome += ", in no build"
    return history._replace(outcome=outcome, tokens=tokens, builds=tuple(builds))


def history_of(run: RunPlaces, place: Place, doc_id: str) -> History:
    """Until the split: what came of it afterwards is in `whole_history`."""
    shard, row = place
    document = run.document(place)
    chunk = shard.key.rpartition("-")[0]
    tasks = run.artifacts[f"ingest/{shard.source}"].manifest.tasks
    facts: Json = next((task["facts"] for task in tasks if task["key"] == chunk), {})
    told: Json = {
        "file": facts.get("file"),
        "shard": shard.name,
        "row": row,
        "bytes": len(document["text"].encode()),
        **{key: document[key] for key in ("license_tag", "created_at", "meta")},
    }
    history = History(doc_id, shard.source, "ingested", told)
    cleaned = run.artifacts.get(f"clean/{shard.source}")
    if cleaned is None:
        return history
    marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet").slice(row, 1).to_pylist()[0]
    ledger = _ledger_rows(cleaned, f"ledger-{shard.key}.parquet", row)
    clean: Json = {key: marks[key] for key in ("kept", "chars", "bytes", "language", "license")}
    rules = _rules(cleaned, shard.key, row)
    if rules is None:
        clean["not_measured"] = NOT_MEASURED
    history = history._replace(clean={**clean, "decisions": ledger}, rules=rules or ())
    if not marks["kept"]:
        fault = next(decision for decision in ledger if decision["verdict"] != "edit")
        return history._replace(outcome=f"{_past(fault['verdict'])} by clean: {fault['reason']}")
    return _after_clean(run, place, history._replace(outcome="kept by clean"))


def _after_clean(run: RunPlaces, place: Place, history: History) -> History:
    shard, row = place
    scores = run.artifacts.get("scores")
    if scores is not None:
        percentiles = load_of(scores, f"percentiles-{shard.number:05d}.parquet")
        assert percentiles is not None, "every shard has percentiles"
        drops = _ledger_rows(scores, f"ledger-{shard.number:05d}.parquet", row)
        told = {
            "kept": not drops,
            "percentiles": percentiles.slice(row, 1).to_pylist()[0],
            "decisions": drops,
        }
        history = history._replace(scores=told)
        if drops:
            return history._replace(outcome=f"dropped by scores: {drops[0]['reason']}")
    dedup = run.artifacts.get("dedup")
    if dedup is not None:
        ledger = _ledger_rows(dedup, f"ledger-{shard.number:05d}.parquet", row)
        decisions = [_with_survivor(run, decision) for decision in ledger]
        drops = [decision for decision in ledger if decision["verdict"] != "edit"]
        history = history._replace(dedup={"kept": not drops, "decisions": decisions})
        if drops:
            return history._replace(outcome=f"dropped by dedup: {drops[0]['reason']}")
    split = run.artifacts.get("split")
    if split is None:
        return history
    labels = load_of(split, f"labels-{shard.number:05d}.parquet")
    assert labels is not None, "every shard has labels"
    number = labels.column("split")[row].as_py()
    if number == NO_SPLIT:
        (left_out,) = _ledger_rows(split, f"ledger-{shard.number:05d}.parquet", row)
        detail = f" ({left_out['detail']})" if "detail" in left_out else ""
        return history._replace(outcome=f"dropped by split: {left_out['reason']}{detail}")
    side = split.manifest.facts["splits"][number]
    return history._replace(split=side, outcome=f"kept, {side}")


def _with_survivor(run: RunPlaces, decision: Json) -> Json:
    """The id of the document that stayed instead, beside its place."""
    if "match_shard" not in decision:
        return decision
    source, _, key = decision["match_shard"].rpartition("/")
    path = run.artifacts[f"ingest/{source}"].directory / f"documents-{key}.parquet"
    return {**decision, "match_doc_id": load_table(path, ["doc_id"])[0][decision["match_row"]].as_py()}


class _Bound(msgspec.Struct):
    """A rule as the manifest has it. `tokmill.clean.rules` knows more of it,
    and takes half a second to load."""

    name: str
    column: str
    bound: str
    threshold: int | float
    reason: str


def _rules(cleaned: Artifact, key: str, row: int) -> tuple[RuleOutcome, ...] | None:
    """None: there are rules, and the document was not measured for them."""
    rules = msgspec.convert(cleaned.manifest.config["sieve"]["rules"], list[_Bound])
    measures = load_of(cleaned, f"measures-{key}.parquet")
    if measures is None:
        return ()
    values = measures.slice(row, 1).to_pylist()[0]
    if any(values[rule.column] is None for rule in rules):
        return None
    return tuple(_outcome(rule, values[rule.column]) for rule in rules)


def _outcome(rule: _Bound, value: float) -> RuleOutcome:
    inside = value - rule.threshold if rule.bound == "min" else rule.threshold - value
    return RuleOutcome(rule.name, value, f"{rule.bound} {rule.threshold:.15g}", float(inside), rule.reason)


def _ledger_rows(artifact: Artifact, path: str, row: int) -> list[Json]:
    ledger = load_of(artifact, path)
    if ledger is None:
        return []
    places = np.flatnonzero(numbers_in(ledger, "row") == row)
    rows = [ledger.slice(place, 1).to_pylist()[0] for place in places.tolist()]
    told = ("verdict", "reason", "value", "threshold", "match_shard", "match_row", "similarity", "detail")
    return [{key: line[key] for key in told if line[key] is not None} for line in rows]


def _spelled(told: Json) -> str:
    """A few words of what a step wrote down: no lists of places, which may be long."""
    plain = {name: value for name, value in told.items() if isinstance(value, (str, int, float, bool))}
    decisions = [_spelled(one) for one in told.get("decisions") or []]
    return " · ".join([*(f"{name} {value}" for name, value in plain.items()), *decisions])


def _past(verdict: str) -> str:
    return {"drop": "dropped", "quarantine": "quarantined"}[verdict]
