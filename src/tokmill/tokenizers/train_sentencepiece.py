"""Train a SentencePiece model, unigram or BPE, from whole documents.

    texts ─▶ nothing that the trainer would skip ─▶ sentencepiece ─▶ spm.model

    ids   0        <unk>
          1        <s>
          2        eos
          3 …      control symbols, user symbols, with byte fallback the 256 bytes, then pieces

Same texts, same bytes. What that took (measured with sentencepiece 0.2.2):

    threads     Unigram training adds up expectations per thread and then over threads, in single precision: 1, 2
                and 7 threads give three different models. So their number is part of the method and always the
                same; how many cores there are then decides nothing but the time. BPE counts in integers, but the
                model file records the number of threads too.
    sampling    the trainer draws none: every text it is given counts, in whatever order.
    paths       the model is written into memory, so no name of a file gets into it.

The trainer leaves out without a word: texts over `max_sentence_length`; texts with U+2585, which it keeps for
itself; line ends at the end of a text. So texts are cut where they would be too long or have that character, and a
line end at the end is followed by a tab, which no piece can contain.

Newlines are text: "\\n" always has a piece, and may be part of others. As a user symbol it would be alone in its piece:
a token of unseen text then has 1 to 7 % fewer bytes with BPE, 15 to 23 % fewer with unigram (docs/tokenizers.md).
Only where normalization takes a line end for a space (nmt_*) it has to be a user symbol, which is not normalized.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import sentencepiece

from tokmill.errors import InputError, RecipeError, TokenizerError
from tokmill.tokenizers.trained import Trained, no_text

# Not the number of cores: see above. 16 is the library's own default.
_THREADS = 16

# The most that the trainer allows, and how many characters surely fit it.
_MAX_TEXT_BYTES = 1 << 30
_MAX_TEXT_CHARS = _MAX_TEXT_BYTES // 4 - 1

_RESERVED = "▅"
_TAB = "\t"

_TOO_HIGH = re.compile(r"Vocabulary size too high \((\d+)\)\. Please set it to a value <= (\d+)")
_TOO_LOW = re.compile(r"Vocabulary size is smaller than required_chars\. (\d+) vs (\d+)")


class SentencePieceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can change a byte of the model, besides the texts and the control tokens.

    Runs of spaces as pieces: 2.9 bytes a token of code instead of 2.2 (BPE, 16,000 pieces of a mixed corpus).
    """

    model: str
    vocab_size: int
    character_coverage: float = 0.9995
    byte_fallback: bool = True
    hard_vocab_limit: bool = True
    user_symbols: list[str] = []
    normalization: str = "identity"
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = False
    whitespace_pieces: bool = True
    split_digits: bool = False
    max_piece_length: int = 16


def train_sentencepiece(
    texts: Iterable[str], options: SentencePieceOptions, *, eos: str, control: Sequence[str] = ()
) -> Trained:
    """A model whose end of document is `eos`, and whose other control tokens are `control`."""
    newline_is_symbol = options.normalization.startswith("nmt_")
    symbols = list(options.user_symbols)
    if newline_is_symbol and "\n" not in symbols:
        symbols.insert(0, "\n")
    _check_request(eos, control, symbols)
    sentences = _Sentences(texts, keep_line_end="\n" not in symbols)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=options.model,
            vocab_size=options.vocab_size,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            hard_vocab_limit=options.hard_vocab_limit,
            eos_piece=eos,
            control_symbols=list(control),
            user_defined_symbols=symbols,
            required_chars="" if "\n" in symbols else "\n",
            normalization_rule_name=options.normalization,
            add_dummy_prefix=options.add_dummy_prefix,
            remove_extra_whitespaces=options.remove_extra_whitespaces,
            allow_whitespace_only_pieces=options.whitespace_pieces,
            split_digits=options.split_digits,
            max_sentencepiece_length=options.max_piece_length,
            max_sentence_length=_MAX_TEXT_BYTES,
            input_sentence_size=0,
            num_threads=_THREADS,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise sentences.failure or _in_words(str(error), sentences, options) from error
    loaded: Any = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return Trained(model.getvalue(), int(loaded.get_piece_size()))


class _Sentences:
    """The texts as the trainer takes all of them."""

    def __init__(self, texts: Iterable[str], *, keep_line_end: bool) -> None:
        self._texts = texts
        self._keep_line_end = keep_line_end
        self.has_text = False
        self.failure: Exception | None = None  # the trainer would tell a fault of the texts as its own

    def __iter__(self) -> Iterator[str]:
        try:
            for text in self._texts:
                yield from self._pieces(text)
            if self._keep_line_end and self.has_text:
                yield "\n" + _TAB  # a required character that no text has would end the process
        except Exception as error:
            self.failure = error
            raise

    def _pieces(self, text: str) -> Iterator[str]:
        for part in text.split(_RESERVED):
            for start in range(0, len(part), _MAX_TEXT_CHARS):
                piece = part[start : start + _MAX_TEXT_CHARS]
                self.has_text = True
                yield piece + _TAB if self._keep_line_end and piece[-1] in "\r\n" else piece


def _check_request(eos: str, control: Sequence[str], symbols: Sequence[str]) -> None:
    names = [eos, *control, *symbols]
    twice = [name for name in names if names.count(name) > 1]
    if twice or "" in names:
        raise RecipeError(
            f"{twice[0]!r} is asked for twice" if twice else "a symbol is empty",
            where="tokenizer.train",
            next="eos, control symbols and user symbols must all differ",
        )
    spaced = [name for name in symbols if " " in name]
    if spaced:  # it would be there, and never found: spaces of the text are ▁ when symbols are looked for
        raise RecipeError(
            f"the user symbol {spaced[0]!r} has a space",
            where="tokenizer.train.user_symbols",
            next="SentencePiece finds no such symbol in text; write it without",
        )
    taken = [name for name in names if name in ("<unk>", "<s>") or re.fullmatch("<0x[0-9A-F]{2}>", name)]
    if taken:
        raise RecipeError(
            f"SentencePiece keeps {taken[0]} for itself", where="tokenizer.train", next="choose another token"
        )


def _in_words(message: str, sentences: _Sentences, options: SentencePieceOptions) -> Exception:
    """What the trainer means by a failed check of its own."""
    if not sentences.has_text or "!sentences_.empty()" in message:
        return no_text()
    if found := _TOO_HIGH.search(message):
        return InputError(
            f"vocab_size {int(found[1]):,} is more than this text has pieces for: {int(found[2]):,} at most",
            where="tokenizer.train",
            next=f"set `vocab_size: {found[2]}` or less, or `hard_vocab_limit: false`, or give it more text",
        )
    if found := _TOO_LOW.search(message):
        return RecipeError(
            f"vocab_size {int(found[1]):,} has no room for the characters and special tokens: "
            f"{int(found[2]):,} at least",
            where="tokenizer.train",
            next=f"set `vocab_size: {found[2]}` or more, or a lower `character_coverage`",
        )
    return TokenizerError(
        f"sentencepiece {sentencepiece.__version__} cannot train this {options.model} model "
        f"({message.removeprefix('INTERNAL: ')})",
        where="tokenizer.train",
        next="change the vocabulary size or the options; the message is the library's",
    )
