"""A batch under the names, and with the meanings, that models of Hugging Face transformers are called with.

    tokens     a b . | c . | =          . ends a document, = is padding
    targets    b . c   . #   #          ours, the next id; # is ignore_index
    input_ids  a b . | c . | =
    labels     a b .   c .   #          theirs, the id itself: the model shifts them (ForCausalLMLoss in
                                        transformers/loss/loss_utils.py), so nothing is shifted twice
               a b .   # .   #          with targets="documents": the first id of a document is not learnt

    labels are the targets, one column later; before the first target stands the first id, which no loss reads

    mask="tokens"       attention_mask  (B, T) int64: 1 is an id, 0 is padding
    mask="documents"    position_ids    (B, T) int64: from 0 in every document, and in the padding; no mask
    mask="none"         neither
    varlen=True         position_ids, and cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k besides:
                        the bounds of all segments, laid end to end, for flash attention

Without an attention_mask transformers finds the documents of a row where position_ids begin again, and lets
none attend to another (find_packed_sequence_indices in transformers/masking_utils.py; its flash attention
does so in batches of one row, and in larger ones by cu_seq_lens). A mask beside them keeps it from looking,
so that documents would attend to each other at positions that begin again: there is one or the other, and
only who asks for mask="tokens" and varlen=True has both.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tokmill.errors import InputError

Batch = dict[str, Any]
Names = Literal["tokmill", "huggingface"]
NAMES: tuple[Names, ...] = ("tokmill", "huggingface")

IGNORE_INDEX = -100  # what cross entropies leave out by default

_MASKS = ("tokens", "documents", "none")
# loss_mask too: labels say it
_OURS = (
    *("tokens", "targets", "attn_mask", "lengths", "position_ids", "cu_seqlens", "max_seqlen", "loss_mask"),
)


def check_huggingface(mask: str, ignore_index: int, dtype: np.dtype[Any]) -> None:
    """What those models cannot be given."""
    if mask not in _MASKS:
        raise InputError(
            f"mask={mask!r} is no mask of transformers",
            where="names",
            next=f"with Hugging Face names set one of {', '.join(_MASKS)}",
        )
    if ignore_index != IGNORE_INDEX:
        raise InputError(
            f"ignore_index is {ignore_index}, and transformers leaves out {IGNORE_INDEX}",
            where="names",
            next="leave it out",
        )
    if dtype != np.int64:
        raise InputError(
            f"dtype is {dtype}, and the losses of transformers take int64",
            where="names",
            next="leave dtype out, or set int64",
        )


def huggingface(batch: Batch) -> Batch:
    """The same batch as arguments of a model; what was added to it (origins) stays as it is."""
    tokens, targets = batch["tokens"], batch["targets"]
    labels = np.empty_like(targets)
    if labels.shape[1]:
        labels[:, 1:] = targets[:, :-1]
        labels[:, 0] = np.where(batch["lengths"] > 0, tokens[:, 0], IGNORE_INDEX)
    named: Batch = {"input_ids": tokens, "labels": labels}
    if "attn_mask" in batch:
        named["attention_mask"] = batch["attn_mask"].astype(np.int64)
    if "position_ids" in batch:
        named["position_ids"] = batch["position_ids"].astype(np.int64)
    if "cu_seqlens" in batch:
        for side in ("q", "k"):
            named[f"cu_seq_lens_{side}"] = batch["cu_seqlens"]
            named[f"max_length_{side}"] = batch["max_seqlen"]
    return {**named, **{name: value for name, value in batch.items() if name not in _OURS}}
