"""Cleaning a shard: what its documents become, what is measured, and what is decided about each.

    documents ─ normalize ─ licence ─ URL ─ robots ─ language
        ─┬─ out, whatever the thresholds ─> not measured ─┬─ hashes
         └─ still open ─ apply_filters ──────────────────┘

The first fault in this order is the reason for a drop: empty, licence, URL, robots, language, then the rules
as the recipe has them. All values of a document that is still open are kept, also where an earlier rule
already dropped it: another threshold can bring it back. One that is empty, has no licence to be here, is of
a page that is not wanted or in another language stays out with any threshold; its measures are null, and its
text is the normalized one.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.plugins import Plugin
from tokmill.clean.edits import Edits, NormalizeOptions, normalize_texts
from tokmill.clean.filtering import Change, Scoring, apply_filters
from tokmill.clean.language import (
    LANGUAGE_SCORE,
    OTHER_LANGUAGE,
    UNSURE_LANGUAGE,
    LanguagePlan,
    judge_languages,
    look_for_english,
)
from tokmill.clean.license_policy import KEEP, QUARANTINE, LicensePolicy, judge_licenses, make_policy
from tokmill.clean.rules import EMPTY, WHITESPACE, CompiledFilters
from tokmill.clean.url_policy import (
    Blocklist,
    Fault,
    RobotsPolicy,
    UrlPolicy,
    judge_robots,
    judge_urls,
    urls_of,
)
from tokmill.clean.verdicts import Faults, Open, Verdicts
from tokmill.duplicates.shingling import MARK_HASHES, folded_hashes, text_hashes
from tokmill.kernels import hashing
from tokmill.kernels.characters import measure_text
from tokmill.kernels.wordclasses import VERSION as WORD_CLASSES
from tokmill.schema import one_piece, string_column
from tokmill.scores.scoring import HOOK as SCORE_HOOK
from tokmill.scores.scoring import ScorePlan

Column = NDArray[Any]


# Of how documents are examined, where nothing else in the config tells it. 2: who is out for good is not
# measured; 3: examples are drawn by id; 4, of packs: what empties a document is named, and some are looked at
# for their language; 5, of hooks that measure or score: what they answer is float64.
_VERSION, _VERSION_OF_PACKS, _VERSION_OF_HOOKS = 3, 4, 5


def version_of(filters: CompiledFilters, scores: Sequence[ScorePlan]) -> int:
    if filters.hooks or any(plan.kind == SCORE_HOOK and not plan.is_stored for plan in scores):
        return _VERSION_OF_HOOKS
    return _VERSION_OF_PACKS if filters.packs else _VERSION


class CleanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that can change a byte of the cleaned shards of one source."""

    source: str
    normalize: NormalizeOptions
    license: LicensePolicy | None
    language: LanguagePlan | None
    sieve: CompiledFilters
    redact: tuple[str, ...]  # sorted
    transforms: tuple[Plugin, ...] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # not in the config where there are none
    is_chat: bool | msgspec.UnsetType = msgspec.UNSET  # of texts with marks that are transformed
    urls: UrlPolicy | msgspec.UnsetType = msgspec.UNSET  # not in the config where there are none
    robots: RobotsPolicy | msgspec.UnsetType = msgspec.UNSET  # likewise
    scores: tuple[ScorePlan, ...] | msgspec.UnsetType = msgspec.UNSET  # likewise
    version: int = _VERSION
    hash: str = MARK_HASHES
    unicode_data: str = unicodedata.unidata_version
    word_classes: str = WORD_CLASSES

    @property
    def plugins(self) -> list[Plugin]:
        """All that is somebody else's code."""
        scored = [plan.plugin for plan in self.scores or () if plan.plugin and not plan.is_stored]
        hooks = [Plugin("measures", *hook) for hook in self.sieve.hooks.items()]
        return [*(self.transforms or ()), *hooks, *scored]


class Examined(NamedTuple):
    edits: Edits  # open rows whose text changed, and to what
    changes: list[Change]
    faults: Faults
    measures: dict[str, Any]  # number columns, null where the document is out for good
    languages: Any  # string column, null where it was not looked at
    licenses: Any  # canonical, null where it is not known
    chars: Column
    sizes: Column
    hashes: Column  # of the folded texts
    text_hashes: Column  # of the texts as they are
    nuls: int
    chars_in: int
    emptied: dict[str, int]  # documents that edits left nothing of, by the edit that took most
    looks: dict[str, int]  # some of those that a pack judges: English, or their script
    with_url: int | None  # documents that have one; None: nobody asked


def examine(
    documents: Any,
    options: CleanOptions,
    blocklist: Blocklist | None = None,
    models: Mapping[str, Path] | None = None,
    stored: Mapping[str, Any] | None = None,
) -> Examined:
    """`models`: where the files of scores are, by sha256. `stored`: columns of scores that are computed."""
    filters = options.sieve
    given = one_piece(documents.column("text"))
    normal = normalize_texts(given, options.normalize)

    decided = Verdicts(documents.num_rows)
    decided.close(hashing.blank_rows(*string_column(normal.texts)[:2]), EMPTY, 0, 1)
    licenses = _judge_licenses(documents, options.license, decided)
    with_url = _judge_pages(documents, options, blocklist, decided)
    languages, measures = _judge_languages(documents, normal.texts, options.language, decided)

    # with web-en, 28 MB of which nearly all is in other languages take 0.38 s of CPU time so,
    # and 1.30 s if all is filtered
    still = decided.open()
    filtered = apply_filters(
        still.take(normal.texts),
        _others(documents, options, still),
        filters,
        options.transforms or (),
        options.redact,
        *([Scoring(options.scores, models or {}, _stored(stored or {}, still))] if options.scores else []),
        is_chat=options.is_chat is True,
    )
    measures |= {name: still.spread_nullable(values) for name, values in filtered.measures.items()}
    first, values, thresholds = map(still.spread, filtered.judged)
    for index, rule in enumerate(filters.rules):
        decided.claim(first == index, rule.reason, values, thresholds)
    changes = [Change(*reason) for reason in normal.edits.reasons]
    changes += [change._replace(rows=still.rows[change.rows]) for change in filtered.changes]

    is_edited, is_filtered = np.zeros((2, documents.num_rows), np.bool_)
    is_filtered[still.rows[filtered.rows]] = True
    is_edited[normal.edits.rows] = True
    is_edited |= is_filtered
    places = np.flatnonzero(is_edited[still.rows])
    rows, edited = still.rows[places], filtered.texts.take(pa.array(places))
    chars, sizes = normal.chars.copy(), np.diff(string_column(normal.texts).offsets)
    hashes = folded_hashes(normal.texts, normal.is_ascii, ~is_filtered)
    strict = text_hashes(normal.texts)
    emptied: dict[str, int] = {}
    if len(filtered.rows):
        # of dropped documents too: `whatif` says what they would bring, and which would have nothing left
        data, offsets, _ = string_column(edited)
        looks = measure_text(data, offsets)
        chars[rows], sizes[rows] = looks.chars, np.diff(offsets)
        hashes[is_filtered] = folded_hashes(edited, looks.is_ascii, is_filtered[rows])[is_filtered[rows]]
        strict[rows] = text_hashes(edited)
        edited_by = changes[len(normal.edits.reasons) :]
        emptied = _claim_emptied(decided, is_blank(hashes), edited_by)
    return Examined(
        edits=Edits(rows, edited, []),
        changes=_of_kept(changes, decided.kept()),
        faults=decided.faults(),
        measures=measures,
        languages=languages,
        licenses=licenses,
        chars=chars,
        sizes=sizes,
        hashes=hashes,
        text_hashes=strict,
        nuls=normal.nuls,
        chars_in=normal.chars_in,
        emptied=emptied,
        looks=look_for_english(still.take(normal.texts)) if filters.languages() else {},
        with_url=with_url,
    )


def _stored(columns: Mapping[str, Any], still: Open) -> dict[str, Column]:
    """Of the open rows, none of which is blank: all are scored."""
    return {name: np.asarray(still.take(one_piece(column))) for name, column in columns.items()}


def _claim_emptied(decided: Verdicts, is_empty: Column, changes: Sequence[Change]) -> dict[str, int]:
    """Documents of which the edits left nothing, told with the edit that took most:
    by its lines, or, of a transform, all."""
    fresh = np.flatnonzero(is_empty & decided.kept())
    if not len(fresh):
        return {}
    most, by = np.full(len(is_empty), -1.0), np.zeros(len(is_empty), np.int64)
    for index, change in enumerate(changes):
        times = change.counts.astype(np.float64)
        if change.sizes is not None:
            times = np.where(change.sizes == 0, np.inf, -1)
        elif change.reason in WHITESPACE:
            times = np.zeros(len(times))  # what is around lines that are gone
        is_more = times > most[change.rows]
        rows = change.rows[is_more]
        most[rows], by[rows] = times[is_more], index
    told = [
        f"line edits left nothing: most went as {change.reason}"
        if change.sizes is None
        else f"{change.reason} left nothing"
        for change in changes
    ]
    decided.claim(is_empty, EMPTY, 0, 1, details=pa.DictionaryArray.from_arrays(by, told))
    taken = np.bincount(by[fresh], minlength=len(changes)).tolist()
    found = Counter[str]()  # transforms of two files may have one name
    for change, count in zip(changes, taken, strict=True):
        found[change.reason] += count
    return dict(+found)


def is_blank(hashes: Column) -> Column:
    """The hash of a folded text without a visible character is 0."""
    blank: Column = (hashes == 0).all(axis=1)
    return blank


def _of_kept(changes: list[Change], kept: Column) -> list[Change]:
    """What was changed in a document that is dropped happened to nobody."""
    found = []
    for change in changes:
        stays = kept[change.rows]
        details = change.details and [d for d, is_in in zip(change.details, stays, strict=True) if is_in]
        sizes = None if change.sizes is None else change.sizes[stays]
        if stays.any():
            found.append(Change(change.reason, change.rows[stays], change.counts[stays], details, sizes))
    return found


def _others(documents: Any, options: CleanOptions, still: Open) -> dict[str, Any]:
    """What the code of others is shown besides the texts."""
    names = [name for name in documents.column_names if name != "text"] if options.plugins else []
    return {name: still.take(one_piece(documents.column(name))) for name in names}


def _judge_licenses(documents: Any, policy: LicensePolicy | None, decided: Verdicts) -> Any:
    """Canonical names, also where nothing is asked: totals and attribution speak of them."""
    tags = one_piece(documents.column("license_tag"))
    judged = judge_licenses(tags, policy or make_policy(unknown="keep"))
    reasons = np.asarray(judged.reason.indices.fill_null(-1))
    for code, reason in enumerate(judged.reason.dictionary.to_pylist()):
        for verdict in np.unique(judged.verdict[reasons == code]).tolist():
            if verdict != KEEP:
                rows = (reasons == code) & (judged.verdict == verdict)
                word = "quarantine" if verdict == QUARANTINE else "drop"
                decided.close(rows, reason, verdict=word, details=tags)
    return judged.spdx.cast(pa.string())


def _judge_pages(
    documents: Any, options: CleanOptions, blocklist: Blocklist | None, decided: Verdicts
) -> int | None:
    """By their URLs, and by what robots are told. How many have a URL."""
    meta, faults, with_url = one_piece(documents.column("meta")), list[Fault](), None
    if options.urls:
        urls = urls_of(meta, options.urls)
        faults += judge_urls(urls, options.urls, blocklist)
        with_url = len(urls) - urls.null_count
    if options.robots:
        faults += judge_robots(meta, options.robots)
    for fault in faults:
        decided.close(fault.rows, fault.reason, details=fault.details)
    return with_url


def _judge_languages(
    documents: Any, texts: Any, plan: LanguagePlan | None, decided: Verdicts
) -> tuple[Any, dict[str, Any]]:
    """The score is measured of every document: it takes the score to know who is out."""
    if plan is None or plan.applied == "none":
        return pa.nulls(len(texts), pa.string()), {}
    found = judge_languages(one_piece(documents.column("meta")), texts, plan)
    for claim, rows, reason in (
        (decided.claim, found.is_unsure, UNSURE_LANGUAGE),
        (decided.close, found.is_other, OTHER_LANGUAGE),
    ):
        claim(rows, reason, found.scores, found.min_score, details=found.codes)
    return found.codes, {LANGUAGE_SCORE: pa.array(found.scores)} if plan.applied == "detect" else {}
