"""Train a byte-level BPE tokenizer from text.

    texts ─▶ split as GPT-2 does ─▶ count words ─▶ merge the commonest pair, again and again ─▶ tokenizer.json

    ids   0 … S-1      special tokens, in the order given
          S … S+255    the 256 bytes: nothing is ever unknown
          S+256 …      merges, commonest first; of equally common pairs the one with the smaller ids

Same texts, same bytes: counts are sums and ties are broken by ids, so neither threads, nor hash seeds, nor the
order of the texts can be seen in the result (a test runs it under different ones).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokmill.errors import InputError, RecipeError
from tokmill.tokenizers.trained import Trained, no_text

# The trainer's source keeps pair counts in an i32; one that wraps would lose the commonest pair without a word.
# No pair can occur more often than the text has bytes.
_MAX_TEXT_BYTES = (1 << 31) - 1


def train_byte_bpe(
    texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str], min_frequency: int = 2
) -> Trained:
    """Byte-level BPE of at most `vocab_size` ids, from pairs seen at least `min_frequency` times."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_request(vocab_size, special_tokens, alphabet)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    meter = _Meter(texts)
    tokenizer.train_from_iterator(iter(meter), trainer)
    if meter.text_bytes == 0:
        raise no_text()
    data: bytes = tokenizer.to_str(pretty=True).encode() + b"\n"
    _check_specials_stand_alone(data, special_tokens)
    return Trained(data, tokenizer.get_vocab_size())


class _Meter:
    """Counts the bytes that pass, and stops the training where its counters would wrap."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.text_bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.text_bytes += len(text.encode())
            if self.text_bytes > _MAX_TEXT_BYTES:
                raise InputError(
                    f"more than {_MAX_TEXT_BYTES:,} bytes of text to train a tokenizer on",
                    next="train on a sample: more text than this does not change a vocabulary for the better",
                )
            yield text


class _Model(msgspec.Struct):
    merges: list[tuple[str, str]]


class _File(msgspec.Struct):
    model: _Model


def _check_request(vocab_size: int, special_tokens: Sequence[str], alphabet: Sequence[str]) -> None:
    least = len(alphabet) + len(special_tokens)
    if vocab_size < least:
        raise RecipeError(
            f"vocab_size {vocab_size:,} has no room for 256 bytes and {len(special_tokens)} special tokens",
            where="tokenizer.train",
            next=f"set `vocab_size` to {least} or more",
        )
    if "" in special_tokens or len(set(special_tokens)) != len(special_tokens):
        raise RecipeError(
            f"special tokens must be distinct and not empty: {list(special_tokens)}",
            where="tokenizer.train",
            next="name each once",
        )
    _refuse_plain_words(set(special_tokens) & set(alphabet))


def _check_specials_stand_alone(data: bytes, special_tokens: Sequence[str]) -> None:
    """No merge may build a special token: the trainer would give the word that token's id."""
    merges = msgspec.json.decode(data, type=_File).model.merges
    _refuse_plain_words(set(special_tokens) & {left + right for left, right in merges})


def _refuse_plain_words(words: set[str]) -> None:
    if words:
        word = min(words)
        raise RecipeError(
            f"the special token {word!r} is also a piece of ordinary text",
            where="tokenizer.train",
            next=f"write it so that text splits it, e.g. <|{word}|>",
        )
