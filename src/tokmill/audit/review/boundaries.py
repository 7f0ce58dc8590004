"""Where documents begin and end in the training rows of a build, counted in its index and beside its ids.

    row │ …end of a│eos│ whole of b │eos│ beginning of c… │       three pieces: one lacks its beginning, one its end

A trainer sees a row by itself: what a piece lacks is not there, wherever else it is. Ends are where EOS is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.audit.review.finding import share
from tokmill.audit.review.pieces import Pieces, SplitPieces, Taken
from tokmill.audit.review.subject import Build, Subject
from tokmill.audit.review.thresholds import PROBE_TRAIN_TOKENS
from tokmill.manifest import Json


class Classes(NamedTuple):
    """What the tokens of a build are told apart by: domains, or sources where nothing says which domain they are of."""

    word: Literal["domain", "source"]
    of: dict[str, str]  # by source


@dataclass
class Boundaries:
    """Of the rows that were looked at."""

    classes: Classes
    taken: Taken = field(default_factory=lambda: Taken(0, 0))
    several_classes: int = 0  # rows of more than one domain
    rows_by_class: dict[str, int] = field(default_factory=dict)  # rows of that one alone
    pieces: int = 0
    without_beginning: int = 0
    without_end: int | None = 0  # None: no id ends a document
    neither: int = 0
    tokens: int = 0
    tokens_without_beginning: int = 0


def find_boundaries(build: Build, found: Classes, eos: int | None) -> Boundaries:
    names = sorted(set(found.of.values()))
    codes = {source: names.index(domain) for source, domain in found.of.items()}
    sums = Boundaries(found, rows_by_class=dict.fromkeys(names, 0))
    split = SplitPieces(build, build.splits[0] if build.splits else "train", PROBE_TRAIN_TOKENS)
    for pieces in split:
        domains = np.array([codes[source] for source in pieces.sources], np.int64)
        amounts = np.zeros((pieces.rows, len(names)), np.int64)
        np.add.at(amounts, (pieces.row, domains), pieces.lengths)
        of_row = (amounts > 0).sum(1)
        sums.several_classes += int((of_row > 1).sum())
        alone = np.bincount(amounts[of_row == 1].argmax(1), minlength=len(names))
        for domain, rows in enumerate(alone.tolist()):
            sums.rows_by_class[names[domain]] += rows
        goes_on = _goes_on(pieces)
        is_begun, is_ended = ~goes_on, np.append(~goes_on[1:], True)[: len(goes_on)]
        headless = is_begun & (pieces.offset > 0)
        sums.pieces += int(is_begun.sum())
        sums.tokens += int(pieces.lengths.sum())
        sums.without_beginning += int(headless.sum())
        whole = np.cumsum(is_begun) - 1  # pieces of a document that go on in their row are one
        sums.tokens_without_beginning += int(pieces.lengths[headless[is_begun][whole]].sum())
        if eos is None or sums.without_end is None:
            sums.without_end = None
            continue
        endless = (pieces.ids[pieces.end - 1] != eos)[is_ended]
        sums.without_end += int(endless.sum())
        sums.neither += int((headless[is_begun] & endless).sum())
    sums.taken = split.taken
    return sums


def _goes_on(pieces: Pieces) -> NDArray[np.bool_]:
    """Is a piece the rest of the document before it in the same row? So it is where its middle was cut out."""
    named = list(zip(pieces.sources, pieces.doc_ids, strict=True))
    is_same = np.array([one == before for before, one in itertools.pairwise(named)], np.bool_)
    is_next = is_same & (np.diff(pieces.row) == 0) & (pieces.offset[1:] > 0)
    return np.concatenate((np.zeros(min(1, len(pieces.row)), np.bool_), is_next))


def boundary_sentences(build: Build, found: Boundaries) -> list[str]:
    rows = f"{found.taken.rows:,} training rows"
    if found.taken.rows < found.taken.of_rows:
        rows += f" (of {found.taken.of_rows:,}, chosen by the hash of their numbers)"
    about = f"Build {build.name}" if build.name != "." else "This build"
    mixed = share(found.several_classes, found.taken.rows)
    ends = (
        f", {share(found.without_end, found.pieces)} without their end"
        if found.without_end is not None
        else ""
    )
    headless = share(found.without_beginning, found.pieces)
    lacking = share(found.tokens_without_beginning, found.tokens)
    return [
        f"{about}, {rows}: {mixed} hold more than one {found.classes.word}.",
        f"Of {found.pieces:,} pieces of documents {headless} stand in a row without their beginning{ends}.",
        f"{lacking} of the tokens are in such a piece without its beginning.",
    ]


def boundary_figures(found: Boundaries) -> Json:
    return {
        "rows": found.taken.rows,
        "of_rows": found.taken.of_rows,
        f"rows_of_several_{found.classes.word}s": found.several_classes,
        f"rows_by_{found.classes.word}": found.rows_by_class,
        "pieces": found.pieces,
        "pieces_without_beginning": found.without_beginning,
        "pieces_without_end": found.without_end,
        "pieces_with_neither": found.neither,
        "tokens": found.tokens,
        "tokens_without_beginning": found.tokens_without_beginning,
    }


def classes(subject: Subject, build: Build) -> Classes:
    """As the build says, or the run around it."""
    manifest = build.artifact.manifest
    known = manifest.facts.get("domain_of") or {
        name: str(artifact.manifest.config["reading"]["domain"])
        for name, artifact in subject.of_kind("ingest").items()
    }
    sources = list(manifest.counts.get("sources", {}))
    if all(name in known for name in sources):
        return Classes("domain", {name: str(known[name]) for name in sources})
    return Classes("source", {name: name for name in sources})
