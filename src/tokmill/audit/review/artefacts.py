r"""What datasets leave in their texts: marks of an old tokenizer, blanks at the ends, broken encodings, endings that all have.

<unk>   @-@   "word , word"   &amp;   U+FFFD   â€™            documents of each source that hold one
a blank first or last        the last 8, 12 … 32 characters   how often each
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.compute as pc

from tokmill.audit.review.finding import Finding, Found, Measure, percent, plural, quoted, share
from tokmill.audit.review.thresholds import COMMON_SUFFIX, MAX_ARTEFACT, MIN_DOCUMENTS, PREFIX_CHARS

Place = Literal["any", "text"]


class Artefact(NamedTuple):
    pattern: str
    says: str
    of: Place = "any"  # text: in code it may be meant
    is_told: bool = True  # as a finding; else only in the answer


ARTEFACTS = {
    "<unk>": Artefact(r"<unk>|\[UNK\]", 'hold "<unk>", the mark of a word that another vocabulary lacked'),
    "@-@": Artefact(r" @[-,.]@ ", 'hold "@-@", "@,@" or "@.@", which stand for a sign between two words'),
    "blank before a comma": Artefact(
        r"\pL [,;] \pL", "have blanks before their commas, as another tokenizer left them", "text"
    ),
    "HTML entity": Artefact(r"&(?:amp|lt|gt|quot|nbsp|#[0-9]{2,5});", "hold HTML entities", "text"),
    "U+FFFD": Artefact(r"\x{FFFD}", "hold U+FFFD, the mark of bytes that were no text"),
    "broken UTF-8": Artefact(
        r"â€[™œ˜\x{201D}\x{201C}]|Ã[©¨¤¶¼±¡]", "hold UTF-8 that was read as Latin-1", "text"
    ),
    "blank at the end": Artefact(r"[ \t\x{00A0}]\n*\z", "end with a blank", "text"),
    # how texts begin is a finding of `hidden_characters`
    "blank at the beginning": Artefact(r"\A[\s\x{00A0}]", "begin with a blank", is_told=False),
}


@dataclass
class Leftovers:
    """Of one source."""

    counts: Counter[str] = field(default_factory=Counter)
    suffixes: dict[int, Counter[str]] = field(
        default_factory=lambda: {size: Counter() for size in PREFIX_CHARS}
    )

    def count(self, texts: Any) -> None:
        for name, artefact in ARTEFACTS.items():
            self.counts[name] += int(np.asarray(pc.match_substring_regex(texts, artefact.pattern)).sum())

    def common_suffix(self, docs: int, at_least: float = COMMON_SUFFIX) -> tuple[str, int] | None:
        """The longest ending of those counted that more than this share have."""
        found = None
        for size in PREFIX_CHARS:
            best = min(self.suffixes[size].items(), key=lambda item: (-item[1], item[0]), default=None)
            if best is None or best[1] <= at_least * docs:
                break
            found = best
        return found


def is_meant(name: str, domain: str) -> bool:
    """What is no artefact in code."""
    return ARTEFACTS[name].of == "text" and "code" in domain.lower()


def judge(source: str, domain: str, docs: int, left: Leftovers) -> Found:
    if docs < MIN_DOCUMENTS:
        return
    read_from = "texts of ingest/* and clean/*"
    for name, artefact in ARTEFACTS.items():
        count = left.counts[name]
        if not artefact.is_told or is_meant(name, domain) or count <= MAX_ARTEFACT * docs:
            continue
        yield Finding(
            "dataset_artefacts",
            "low" if artefact.of == "text" else "medium",
            f"source {source}",
            f"{count:,} of {plural(docs, 'document')} ({share(count, docs)}) {artefact.says}",
            (
                Measure(name, count, "documents", read_from),
                Measure("of the source", percent(count, docs), "%", read_from),
            ),
            Measure("with an artefact", 100 * MAX_ARTEFACT, "% of a source", ""),
        )
    suffix = left.common_suffix(docs)
    if suffix is not None:
        text, count = suffix
        yield Finding(
            "dataset_artefacts",
            "medium",
            f"source {source}",
            f"{share(count, docs)} of {plural(docs, 'document')} end with {quoted(text)}",
            (
                Measure(f"end with {quoted(text)}", count, "documents", read_from),
                Measure("of the source", percent(count, docs), "%", read_from),
            ),
            Measure(
                "one ending", 100 * COMMON_SUFFIX, "% of a source", f"{PREFIX_CHARS[0]} characters or more"
            ),
        )
