"""What tasks use and every process would load for itself: once, by the process that workers are forked from.

    load_common ─┬─ kernels    of records and cleaning, compiled and kept: 0.3 CPU seconds
                 └─ tables     of characters and languages: 0.15
    load_pages   ─── kernels   of web pages, posts and the like: 0.2; their readers
    load_rest    ─┬─ kernels   of the other steps: 0.15, and 0.15 more for all that a recipe may ask for
                  ├─ tables    of words and sentences, for who compares passages: 0.15
                  └─ tokenizer that is not to be trained: 0.45 for gpt2

No task of ingest needs the rest, so it is loaded while they are at work. None of it starts a thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence

from tokmill.artifacts.step import Step
from tokmill.clean.language import fasttext_model, letter_classes
from tokmill.duplicates.shingling import boundary_kinds, unit_kinds, word_table
from tokmill.engines.processes import Load, Prepare
from tokmill.kernels.warm import load_kept
from tokmill.kernels.wordclasses import class_table, fold_table
from tokmill.recipe.names import METHODS
from tokmill.sources.readers import load_reader
from tokmill.storage.lean import spare_pandas
from tokmill.tokenizers.fast import LibraryTokenizer
from tokmill.tokenizers.load import pinned_tokenizer

_FIRST = (
    *("characters", "excerpt", "hashing", "jsonlines", "languages", "lines"),
    *("wordclasses", "words", "wordstats"),
)
_FIRST_TABLES = (fold_table, class_table, letter_classes, fasttext_model)
# How modules of kernels begin that pages, posts and the like need, or files of some kind while they are read.
_PAGES = ("boosting", "csvrows", "html", "jsonarray", "mathml", "xmlrows")
# Kernels and tables that only some methods of deduplication use, by their keys.
_KERNELS_OF = {
    "boundaries": ("window",),
    "passages": ("window", "against"),
    "sitelines": ("templates",),
    "sketches": ("earlier",),
    "urls": ("url",),
    "windows": ("window", "against"),
}
_TABLES_OF = {word_table: ("window", "against"), boundary_kinds: ("window",), unit_kinds: ("near", "earlier")}


def prepare_for(steps: Sequence[Step]) -> Prepare:
    """What to load ahead of these."""
    pinned = [
        (str(step.extra.path), str(step.options.sha256), step.options.encoding)
        for step in steps
        if step.kind == "tokenizer" and step.extra is not None
    ]
    asked = [step.options for step in steps if step.kind == "dedup"]
    methods = [key for key in METHODS if any(getattr(options, key, None) for options in asked)]
    formats = {step.options.reading.format for step in steps if step.kind == "ingest"} - {"records"}
    return Prepare(
        [Load(LOADED_FIRST), *([Load(_name(load_pages), sorted(formats))] if formats else [])],
        [Load(_name(load_rest), [methods, *pinned])],
    )


def _name(function: Callable[..., None]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def load_common() -> None:
    spare_pandas()
    _try([lambda: load_kept(lambda module: module in _FIRST), *_FIRST_TABLES])


def load_pages(*formats: str) -> None:
    _try([load_kept, *(functools.partial(load_reader, format) for format in formats)])


def load_rest(methods: Collection[str], *pinned: tuple[str, str, str | None]) -> None:
    """`methods` of deduplication."""

    def is_used(by: Collection[str] | None) -> bool:
        return by is None or not set(by).isdisjoint(methods)

    tables = [table for table, by in _TABLES_OF.items() if is_used(by)]
    tokenizers = [functools.partial(load_pinned, *one) for one in pinned]
    kernels = functools.partial(
        load_kept, lambda module: not module.startswith(_PAGES) and is_used(_KERNELS_OF.get(module))
    )
    _try([kernels, *tables, *tokenizers])


LOADED_FIRST = _name(load_common)  # by every run


def _try(acts: Sequence[Callable[[], object]]) -> None:
    """What is not installed, or cannot be read, is told by the task that needs it."""
    for act in acts:
        with contextlib.suppress(Exception):
            act()


def load_pinned(path: str, sha256: str, encoding: str | None) -> None:
    tokenizer = pinned_tokenizer(path, sha256, encoding)
    if isinstance(tokenizer, LibraryTokenizer):
        tokenizer.load_ahead()
