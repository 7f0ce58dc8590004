"""What differs between two runs: asked for, made of, and made.

    recipe      key by key
    tokenizer   file, vocabulary, control tokens
    documents   that came, went, changed or moved, and why
    scores      of documents that both have                               before and after
    shares      of tokens, by domain, source, language and licence        before and after: of all,
                                                                          and of each build
    builds      documents, rows and tokens                                before and after

Runs may have other steps, and may have been cut short: what one of them lacks is said.
Documents are compared source by source:

    matched         by id and text, else by id alone: audit/same_texts.py
    per document    hash of the id · outcome (kept in a split, or the step and reason)

Ids need not be unique: equal documents are matched one to one, in order. 20 bytes per document of one source
are held at a time, twice: once for each run; and 16 more where its text has to be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Json, add_counts, explain_changes
from tokmill.artifacts.tombstones import Forgotten
from tokmill.artifacts.upstream import domain_of
from tokmill.audit.opened import ShardTables, load_of, read_ledgers
from tokmill.audit.places import RunPlaces, open_places
from tokmill.audit.same_texts import Numbers, Side, has_texts, match_documents
from tokmill.audit.score_changes import ScoreChange, ScoreChanges
from tokmill.errors import RecipeError
from tokmill.formats.index import map_ids
from tokmill.schema import NO_SPLIT
from tokmill.storage.tables import load_table

KEPT = "kept"
FORGOTTEN, GONE, NEW, NO_SOURCE = "forgotten", "not in the source", "new in the source", "no such source"

_EXAMPLES = 5  # of each reason


class Outcomes:
    """What can become of a document, by number; those that start with "kept" are in."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def is_kept(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = np.array([name.startswith(KEPT) for name in self.names] or [False])[numbers]
        return kept


class DocumentDiff(NamedTuple):
    same: int  # in both, with the same text to the byte, in the same split
    moved: Json  # "train → valid": how many
    changed: int  # in both, with another text
    came: Json  # by what they were before: how many
    went: Json  # by what they are now
    examples: tuple[Json, ...]
    scores: tuple[ScoreChange, ...] = ()
    by_id: tuple[str, ...] = ()  # sources that a run has not cleaned: their texts were not compared

    @property
    def is_equal(self) -> bool:
        return not (self.moved or self.changed or self.came or self.went)

    def as_json(self) -> Json:
        told = {**self._asdict(), "examples": list(self.examples)}
        return {**told, "by_id": list(self.by_id), "scores": [change.as_json() for change in self.scores]}


class Changed(NamedTuple):
    """Documents of one source that changed in one way: numbers of shards and rows, in the run before and in
    the one after; None: there they are not."""

    what: str
    why: str
    before: tuple[NDArray[np.int32], NDArray[np.int32]] | None
    after: tuple[NDArray[np.int32], NDArray[np.int32]] | None


def diff_documents(
    a: RunPlaces, b: RunPlaces, notice: Callable[[Changed], None] = lambda changed: None
) -> DocumentDiff:
    """`notice` is told of every document that changed, not of examples alone."""
    found = _Comparison(a, b, notice)
    for source in dict.fromkeys([*_sources(a), *_sources(b)]):
        found.compare(source)
    came, went, moved = (dict(sorted(c.items())) for c in (found.came, found.went, found.moved))
    examples, scores, by_id = tuple(found.examples), found.scores.told(), tuple(found.by_id)
    return DocumentDiff(found.same, moved, found.changed, came, went, examples, scores, by_id)


def _sources(run: RunPlaces) -> list[str]:
    return [name.removeprefix("ingest/") for name in run.of_kind("ingest")]


class _Comparison:
    """Of two runs, source by source."""

    def __init__(self, a: RunPlaces, b: RunPlaces, notice: Callable[[Changed], None]) -> None:
        self._a, self._b, self._notice = a, b, notice
        self._outcomes = Outcomes()
        self.same = self.changed = 0
        self.moved: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.went: Counter[str] = Counter()
        self.examples: list[Json] = []
        self.by_id: list[str] = []
        self._shown: Counter[tuple[str, str]] = Counter()
        self.scores = ScoreChanges(a, b)

    def compare(self, source: str) -> None:
        before, after = (_side(run, source, self._outcomes) for run in (self._a, self._b))
        found = match_documents((self._a, self._b), (before, after), source)
        for is_same_text in (True, False):
            chosen = found.is_same_text == is_same_text
            at_a, at_b = found.at_a[chosen], found.at_b[chosen]
            self._judge(source, before, after, at_a, at_b, is_same_text=is_same_text)
        runs = (self._a, self._b)
        if all(source in _sources(run) for run in runs) and not all(has_texts(run, source) for run in runs):
            self.by_id.append(source)
        self.scores.add(source, found.at_a, found.at_b)
        for run, other, side, alone, counts, what, absent in (
            (self._a, self._b, before, found.alone_a, self.went, "went", GONE),
            (self._b, self._a, after, found.alone_b, self.came, "came", NEW),
        ):
            alone = alone[self._outcomes.is_kept(side.outcomes[alone])]
            is_forgotten = Forgotten.of_source(other.forgotten, source).holds(side.ids[alone])
            absent = absent if source in _sources(other) else NO_SOURCE
            for why, chosen in ((FORGOTTEN, alone[is_forgotten]), (absent, alone[~is_forgotten])):
                if len(chosen):
                    counts[why] += len(chosen)
                    places = _places(side, chosen)
                    sides = (places, None) if what == "went" else (None, places)
                    self._notice(Changed(what, why, *sides))
                    self._show(run, source, what, why, side, chosen)

    def _judge(
        self, source: str, before: Side, after: Side, at_a: Numbers, at_b: Numbers, *, is_same_text: bool
    ) -> None:
        """Documents that are on both sides: what each is here and there."""
        was, now = before.outcomes[at_a], after.outcomes[at_b]
        pairs, counts = np.unique(np.stack([was, now], axis=1), axis=0, return_counts=True)
        for (old, new), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            chosen = np.flatnonzero((was == old) & (now == new))
            names = self._outcomes.names[old], self._outcomes.names[new]
            is_in = [name.startswith(KEPT) for name in names]
            sides = _places(before, at_a[chosen]), _places(after, at_b[chosen])
            if all(is_in):
                if not is_same_text:
                    self.changed += count
                    self._notice(Changed("changed", "another text", *sides))
                    self._show(self._b, source, "changed", "another text", after, at_b[chosen])
                elif old == new:
                    self.same += count
                else:
                    way = " → ".join(name.removeprefix(f"{KEPT}, ") for name in names)
                    self.moved[way] += count
                    self._notice(Changed("moved", way, *sides))
                    self._show(self._b, source, "moved", way, after, at_b[chosen])
            elif is_in[0]:
                self.went[names[1]] += count
                self._notice(Changed("went", names[1], *sides))
                self._show(self._a, source, "went", names[1], before, at_a[chosen])
            elif is_in[1]:
                self.came[names[0]] += count
                self._notice(Changed("came", names[0], *sides))
                self._show(self._b, source, "came", names[0], after, at_b[chosen])

    def _show(self, run: RunPlaces, source: str, what: str, why: str, side: Side, chosen: Numbers) -> None:
        """Some of `chosen`, by their ids."""
        room = _EXAMPLES - self._shown[what, why]
        for at in chosen[:room].tolist():
            shard = run.shards[int(side.shards[at])]
            path = run.artifacts[f"ingest/{source}"].path(shard.documents)
            doc_id = load_table(path, ["doc_id"]).column("doc_id")[int(side.rows[at])].as_py()
            self.examples.append({"what": what, "why": why, "source": source, "doc_id": doc_id})
            self._shown[what, why] += 1


def _places(side: Side, chosen: Numbers) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return side.shards[chosen], side.rows[chosen]


# --- reading ---


def _side(run: RunPlaces, source: str, outcomes: Outcomes) -> Side:
    none = np.empty(0, np.int32)
    parts = [Side(np.empty(0, np.uint64), none, none, none)]
    for at, shard in enumerate(run.shards):
        if shard.source == source:
            size = shard.documents.rows
            place = np.full(size, at, np.int32), np.arange(size, dtype=np.int32)
            parts.append(Side(_id_hashes(run, shard), _outcomes(run, shard, outcomes), *place))
    return Side(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _id_hashes(run: RunPlaces, shard: ShardTables) -> NDArray[np.uint64]:
    path = run.artifacts[f"ingest/{shard.source}"].directory / f"ids-{shard.key}.npy"
    hashes, rows = map_ids(path, shard.documents.rows)
    found = np.empty(len(rows), np.uint64)
    found[rows] = hashes
    return found


def _outcomes(run: RunPlaces, shard: ShardTables, outcomes: Outcomes) -> NDArray[np.int32]:
    """By the last step that spoke: kept in a split, or why not."""
    found = np.full(shard.documents.rows, outcomes.number(KEPT), np.int32)
    for step, ledger in read_ledgers(run.artifacts, shard, ["row", "verdict", "reason"]):
        if ledger is not None:
            _lay(found, ledger, step, outcomes)
    labels = load_of(run.artifacts.get("split"), f"labels-{shard.number:05d}.parquet", ["split"])
    if labels is not None:
        numbers = np.asarray(labels.column("split"))
        for number, split in enumerate(run.artifacts["split"].manifest.facts["splits"]):
            found[numbers == number] = outcomes.number(f"{KEPT}, {split}")
        assert not ((numbers == NO_SPLIT) & outcomes.is_kept(found)).any(), (
            "a document of no split has a reason"
        )
    return found


def _lay(found: NDArray[np.int32], ledger: Any, step: str, outcomes: Outcomes) -> None:
    coded = ledger.column("reason").combine_chunks().dictionary_encode()
    numbers = [outcomes.number(f"{step}: {reason}") for reason in coded.dictionary.to_pylist()]
    if numbers:
        found[np.asarray(ledger.column("row"))] = np.array(numbers, np.int32)[np.asarray(coded.indices)]


_TOKENIZER_FACTS = (
    "kind",
    "file",
    "sha256",
    "encoding",
    "vocab_size",
    "padded_vocab_size",
    "bos_id",
    "eos_id",
    "controls",
)

CHECKS = ("recipe", "tokenizer", "documents", "tokens", "shares")


class Share(NamedTuple):
    """Of all tokens, or of those in the rows of a build, before and after."""

    of: str  # "tokens", "build/rows"
    group: str  # domains, sources, languages, licenses
    name: str
    tokens: tuple[int, int]
    shares: tuple[float, float]

    @property
    def change(self) -> float:
        return self.shares[1] - self.shares[0]

    def as_json(self) -> Json:
        return {**self._asdict(), "tokens": list(self.tokens), "shares": list(self.shares)}


@short_repr
class Diff(NamedTuple):
    missing: tuple[list[str], list[str]]  # steps that each run does not have
    recipe: list[str] | None  # None: a run that was cut short does not say what it was asked for
    tokenizer: list[str]
    documents: DocumentDiff
    tokens: tuple[Json, Json]  # by split
    has_other_tokens: bool
    shares: list[Share]
    builds: list[Json]
    failed: tuple[str, ...] = ()  # of the checks that were asked for

    def as_json(self) -> Json:
        return {
            "ok": not self.failed,
            **self._asdict(),
            "failed": list(self.failed),
            "missing": list(self.missing),
            "documents": self.documents.as_json(),
            "tokens": list(self.tokens),
            "shares": [share.as_json() for share in self.shares],
        }


def diff(a: str | Path, b: str | Path, *, fail_on: Sequence[str] = ()) -> Diff:
    """What changed from one run to the other. `failed` has what of `fail_on` differs:
    recipe, tokenizer, documents, tokens, or shares=0.01."""
    _check_names(fail_on)
    before, after = open_places(a), open_places(b)
    tokens = tuple(_tokens(run) for run in (before, after))
    ids = [
        run.artifacts["tokens"].manifest.identity if "tokens" in run.artifacts else None
        for run in (before, after)
    ]
    found = Diff(
        _missing(before, after),
        _recipe(Path(a), Path(b)),
        _tokenizer(before, after),
        diff_documents(before, after),
        (tokens[0], tokens[1]),
        ids[0] != ids[1],
        _shares(before, after),
        _builds(before, after),
    )
    return found._replace(failed=tuple(_failures(found, fail_on)))


def _check_names(checks: Sequence[str]) -> None:
    """Before runs are read: are these checks at all?"""
    for check in checks:
        name, _, bound = check.partition("=")
        if name not in CHECKS or (name == "shares") != _is_fraction(bound):
            raise RecipeError(
                f"{check} cannot be checked",
                where="--fail-on",
                next=f"one of: {', '.join(CHECKS[:-1])}, or a change of shares such as shares=0.01",
            )


def _failures(found: Diff, checks: Sequence[str]) -> list[str]:
    """Which of the checks do not hold."""
    differs = {
        "recipe": found.recipe != [],
        "tokenizer": bool(found.tokenizer),
        "documents": not found.documents.is_equal,
        "tokens": found.has_other_tokens,
    }
    largest = max((abs(share.change) for share in found.shares), default=0.0)
    return [
        check
        for check in checks
        if (largest > float(check.partition("=")[2]) if check.startswith("shares=") else differs[check])
    ]


def _is_fraction(bound: str) -> bool:
    try:
        return 0 <= float(bound) <= 1
    except ValueError:
        return False


def _missing(a: RunPlaces, b: RunPlaces) -> tuple[list[str], list[str]]:
    first = [*(step for step in b.artifacts if step not in a.artifacts), *a.missing]
    second = [*(step for step in a.artifacts if step not in b.artifacts), *b.missing]
    return list(dict.fromkeys(first)), list(dict.fromkeys(second))


def _recipe(a: Path, b: Path) -> list[str] | None:
    roots = [open_artifact(directory) for directory in (a, b)]
    if roots[0] is None or roots[1] is None:
        return None
    return explain_changes(roots[0].manifest.config, roots[1].manifest.config)


def _tokenizer(a: RunPlaces, b: RunPlaces) -> list[str]:
    made = [run.of_kind("tokenizer") for run in (a, b)]
    facts = [found["tokenizer"].manifest.facts if found else {} for found in made]
    before, after = ({name: own[name] for name in _TOKENIZER_FACTS if name in own} for own in facts)
    return explain_changes(before, after, "tokenizer")


def _tokens(run: RunPlaces) -> Json:
    artifact = run.artifacts.get("tokens")
    found: Json = artifact.manifest.counts.get("tokens", {}) if artifact is not None else {}
    return found


_GROUPS = ("domains", "sources", "languages", "licenses")

Groups = Mapping[str, Mapping[str, int]]  # tokens by group and name


def _shares(a: RunPlaces, b: RunPlaces) -> list[Share]:
    found = _compared("tokens", _token_groups(a), _token_groups(b))
    for name in dict.fromkeys([*a.of_kind("build"), *b.of_kind("build")]):
        found += _compared(name, *(_built_groups(run.artifacts.get(name)) for run in (a, b)))
    return found


def _compared(of: str, before: Groups, after: Groups) -> list[Share]:
    found = []
    for group in _GROUPS:
        totals = [sum(groups[group].values()) or 1 for groups in (before, after)]
        for name in sorted({*before[group], *after[group]}):
            tokens = before[group].get(name, 0), after[group].get(name, 0)
            found.append(Share(of, group, name, tokens, (tokens[0] / totals[0], tokens[1] / totals[1])))
    return found


def _built_groups(build: Artifact | None) -> Groups:
    """Tokens in rows; a document that is built twice counts twice."""
    counts = build.manifest.counts if build is not None else {}
    return {
        group: {name: total["tokens"] for name, total in counts.get(group, {}).items()} for group in _GROUPS
    }


def _token_groups(run: RunPlaces) -> Groups:
    """Of the tokens step: what there is to build from."""
    groups: Json = {group: {} for group in _GROUPS}
    artifact = run.artifacts.get("tokens")
    if artifact is None:
        return groups
    domains = {
        name.removeprefix("ingest/"): domain_of(ingested) for name, ingested in run.of_kind("ingest").items()
    }
    for source, by_license in artifact.manifest.counts.get("licenses", {}).items():
        tokens = {name: total["tokens"] for name, total in by_license.items()}
        whole = sum(tokens.values())
        own = {"licenses": tokens, "sources": {source: whole}, "domains": {domains[source]: whole}}
        groups = add_counts(groups, own)
    languages = artifact.manifest.counts.get("languages", {})
    groups["languages"] = {name: total["tokens"] for name, total in languages.items()}
    return groups


def _builds(a: RunPlaces, b: RunPlaces) -> list[Json]:
    before, after = a.of_kind("build"), b.of_kind("build")
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        told: Json = {"build": name, "before": _build_counts(old), "after": _build_counts(new)}
        told |= {"config": None, "is_same": False}
        if old is not None and new is not None:
            told["config"] = explain_changes(old.manifest.config, new.manifest.config)
            told["is_same"] = old.manifest.identity == new.manifest.identity
        found.append(told)
    return found


def _build_counts(build: Artifact | None) -> Json | None:
    if build is None:
        return None
    counts = build.manifest.counts
    return {
        "documents": counts["kept"],
        "rows": counts["rows"],
        "tokens": counts["tokens"]["written"],
        "padding": counts["tokens"]["padding"],
    }
