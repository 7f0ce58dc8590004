"""What tasks use and every process would load for itself: once, by the process that workers are forked from.

    load_ahead ─┬─ kernels     those that are compiled and kept: 0.8 CPU seconds
                ├─ tables      of code points, words and sentences: 0.25
                └─ libraries   of tokenizers, where a step has tokens: 0.3

None of it starts a thread: a tokenizer does, so it is loaded by the worker that uses it.
"""

from __future__ import annotations

import contextlib
import importlib

from tokmill.clean.language import fasttext_model, letter_classes
from tokmill.duplicates.shingling import boundary_kinds, unit_kinds, word_table
from tokmill.kernels.warm import load_kept
from tokmill.kernels.wordclasses import class_table, fold_table

_TABLES = (fold_table, class_table, letter_classes, word_table, boundary_kinds, unit_kinds, fasttext_model)
_LIBRARIES = {"tokens": ("tokenizers", "awkward", "gigatoken")}


def load_ahead(*kinds: str) -> None:
    """For steps of these kinds. What is not installed, or cannot be read, is told by the task that needs
    it."""
    load_kept()
    for table in _TABLES:
        with contextlib.suppress(Exception):
            table()
    for name in (name for kind in kinds for name in _LIBRARIES.get(kind, ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
