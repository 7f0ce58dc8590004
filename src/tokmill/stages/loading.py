"""What tasks use and every process would load for itself: once, by the process that workers are forked from.

    load_ahead ─┬─ kernels      those that are compiled and kept: 1.0 CPU seconds
                ├─ tables       of code points, words and sentences: 0.25
                ├─ libraries    that others load when they are first used: pandas by Arrow, 0.2
                └─ a tokenizer  that is not to be trained: 0.45 for gpt2

None of it starts a thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import pyarrow as pa

from tokmill.artifacts.step import Step
from tokmill.clean.language import fasttext_model, letter_classes
from tokmill.duplicates.shingling import boundary_kinds, unit_kinds, word_table
from tokmill.engines.processes import Prepare
from tokmill.kernels.warm import load_kept
from tokmill.kernels.wordclasses import class_table, fold_table
from tokmill.tokenizers.fast import LibraryTokenizer
from tokmill.tokenizers.load import pinned_tokenizer

_TABLES = (fold_table, class_table, letter_classes, word_table, boundary_kinds, unit_kinds, fasttext_model)


def prepare_for(steps: Sequence[Step]) -> Prepare:
    """What to load ahead of these."""
    pinned = [
        (str(step.extra.path), str(step.options.sha256), step.options.encoding)
        for step in steps
        if step.kind == "tokenizer" and step.extra is not None
    ]
    return Prepare(f"{load_ahead.__module__}:{load_ahead.__qualname__}", pinned)


def load_ahead(*pinned: tuple[str, str, str | None]) -> None:
    """What is not installed, or cannot be read, is told by the task that needs it."""
    acts: list[Callable[[], object]] = [load_kept, *_TABLES]
    acts.append(lambda: pa.array([""], pa.large_string()))
    acts += [functools.partial(load_pinned, *one) for one in pinned]
    for act in acts:
        with contextlib.suppress(Exception):
            act()


def load_pinned(path: str, sha256: str, encoding: str | None) -> None:
    tokenizer = pinned_tokenizer(path, sha256, encoding)
    if isinstance(tokenizer, LibraryTokenizer):
        tokenizer.load_ahead()
