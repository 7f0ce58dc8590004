"""Where documents begin and end in the training rows of a build, counted in its index and beside its ids.

    row │ …end of a│eos│ whole of b │eos│ beginning of c… │       three pieces: one lacks its beginning, one its end

A trainer sees a row by itself: what a piece lacks is not there, wherever else it is. Ends are where EOS is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tokmill.audit.review.finding import share
from tokmill.audit.review.pieces import SplitPieces, Taken
from tokmill.audit.review.subject import Build, Subject
from tokmill.audit.review.thresholds import PROBE_TRAIN_TOKENS
from tokmill.manifest import Json


@dataclass
class Boundaries:
    """Of the rows that were looked at."""

    taken: Taken = field(default_factory=lambda: Taken(0, 0))
    several_documents: int = 0  # rows
    several_domains: int = 0
    rows_by_domain: dict[str, int] = field(default_factory=dict)  # rows of that domain alone
    pieces: int = 0
    without_beginning: int = 0
    without_end: int | None = 0  # None: no id ends a document
    neither: int = 0
    tokens: int = 0
    tokens_without_beginning: int = 0
    after_another: int = 0  # tokens that stand in their row after another document


def find_boundaries(build: Build, domain_of: Mapping[str, str], eos: int | None) -> Boundaries:
    names = list(dict.fromkeys(domain_of.values()))
    codes = {source: names.index(domain) for source, domain in domain_of.items()}
    found = Boundaries(rows_by_domain=dict.fromkeys(names, 0))
    split = SplitPieces(build, build.splits[0] if build.splits else "train", PROBE_TRAIN_TOKENS)
    for pieces in split:
        domains = np.array([codes[source] for source in pieces.sources], np.int64)
        amounts = np.zeros((pieces.rows, len(names)), np.int64)
        np.add.at(amounts, (pieces.row, domains), pieces.lengths)
        of_row = (amounts > 0).sum(1)
        found.several_domains += int((of_row > 1).sum())
        for domain, rows in enumerate(
            np.bincount(amounts[of_row == 1].argmax(1), minlength=len(names)).tolist()
        ):
            found.rows_by_domain[names[domain]] += rows
        found.several_documents += int((np.bincount(pieces.row, minlength=pieces.rows) > 1).sum())
        is_first = np.concatenate((np.ones(min(1, len(pieces.row)), np.bool_), np.diff(pieces.row) > 0))
        found.after_another += int(pieces.lengths[~is_first].sum())
        found.pieces += len(pieces.row)
        found.tokens += int(pieces.lengths.sum())
        is_headless = pieces.offset > 0
        found.without_beginning += int(is_headless.sum())
        found.tokens_without_beginning += int(pieces.lengths[is_headless].sum())
        if eos is None or found.without_end is None:
            found.without_end = None
            continue
        is_endless = pieces.ids[pieces.end - 1] != eos
        found.without_end += int(is_endless.sum())
        found.neither += int((is_headless & is_endless).sum())
    found.taken = split.taken
    return found


def boundary_sentences(build: Build, found: Boundaries) -> list[str]:
    rows = f"{found.taken.rows:,} training rows"
    if found.taken.rows < found.taken.of_rows:
        rows += f" (of {found.taken.of_rows:,}, chosen by the hash of their numbers)"
    about = f"Build {build.name}" if build.name != "." else "This build"
    several = share(found.several_documents, found.taken.rows)
    mixed = share(found.several_domains, found.taken.rows)
    said = [f"{about}, {rows}: {several} hold more than one document, {mixed} more than one domain."]
    ends = (
        f", {share(found.without_end, found.pieces)} without their end"
        if found.without_end is not None
        else ""
    )
    said.append(
        f"Of {found.pieces:,} pieces of documents in them {share(found.without_beginning, found.pieces)} stand without their "
        f"beginning{ends}; {share(found.tokens_without_beginning, found.tokens)} of the tokens are in a piece without its beginning."
    )
    return said


def boundary_figures(found: Boundaries) -> Json:
    return {
        "rows": found.taken.rows,
        "of_rows": found.taken.of_rows,
        "rows_of_several_documents": found.several_documents,
        "rows_of_several_domains": found.several_domains,
        "rows_by_domain": found.rows_by_domain,
        "pieces": found.pieces,
        "pieces_without_beginning": found.without_beginning,
        "pieces_without_end": found.without_end,
        "pieces_with_neither": found.neither,
        "tokens": found.tokens,
        "tokens_without_beginning": found.tokens_without_beginning,
        "tokens_after_another_document": found.after_another,
    }


def classes(subject: Subject, build: Build) -> dict[str, str]:
    """Source -> its domain. A build by itself does not say which that is: there every source is its own."""
    read = {
        name: str(artifact.manifest.config["reading"]["domain"])
        for name, artifact in subject.of_kind("ingest").items()
    }
    return {name: read.get(name, name) for name in build.artifact.manifest.counts.get("sources", {})}
