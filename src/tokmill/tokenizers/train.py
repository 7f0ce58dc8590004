"""Train a tokenizer from text: one function for all kinds of model.

    unigram, bpe   SentencePiece                           spm_<vocabulary>_<model>.model
    byte_bpe       Hugging Face, BPE on the bytes          tokenizer.json

    byte_bpe   texts ─▶ split as GPT-2 does, and words of more than 1,000 characters once more
                     ─▶ count words ─▶ merge the commonest pair, again and again
                     ─▶ tokenizer.json

        ids   0 … S-1      special tokens, in the order given
              S … S+255    the 256 bytes: nothing is ever unknown
              S+256 …      merges, commonest first; of equally common pairs the one with the smaller ids

    unigram, bpe   texts ─▶ cut where the trainer would skip ─▶ sentencepiece ─▶ spm.model

        ids   0        <unk>
              1        <s>
              2        eos
              3 …      control symbols, user symbols, with byte fallback the 256 bytes, then pieces

Same texts and options, same bytes: whatever the number of threads, the hash seed or the order of the texts (a
test runs it under different ones). Byte-level counts are sums, and ties are broken by ids. What it took with
SentencePiece (measured with 0.2.2):

threads     Unigram training adds up expectations per thread and then over threads, in single precision: 1, 2
            and 7 threads give three different models. So their number is part of the method and always the
            same; how many cores there are then decides nothing but the time. BPE counts in integers, but the
            model file records the number of threads too.
sampling    the trainer draws none: every text it is given counts, in whatever order.
paths       the model is written into memory, so no name of a file gets into it.

That trainer leaves out without a word: texts over `max_sentence_length`; texts with U+2585, which it keeps
for itself; line ends at the end of a text. So texts are cut where they would be too long or have that
character, and a line end at the end is followed by a tab, which no piece can contain. Its BPE aborts the
process at a word of 65,536 characters: such words are cut too.

Newlines are text: "\\n" always has a piece, and may be part of others. As a user symbol it would be alone in
its piece: a token of unseen text then has 1 to 7 % fewer bytes with BPE, 15 to 23 % fewer with unigram
(docs/tokenizers.md). Only where normalization takes a line end for a space (nmt_*) it has to be a user
symbol, which is not normalized.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokmill.errors import InputError, RecipeError, TokenizerError


class Trained(NamedTuple):
    """A tokenizer file, and how many ids it really has: little text cannot fill a large vocabulary."""

    data: bytes
    vocab_size: int


def no_text() -> InputError:
    return InputError(
        "no text to train a tokenizer on",
        next="check that the sources are not empty after cleaning, and that their weights are not all 0",
    )


# --- byte-level BPE ---

# The trainer's source keeps pair counts in an i32; one that wraps would lose the commonest pair without a
# word. No pair can occur more often than the text has bytes.
_MAX_BPE_TEXT_BYTES = (1 << 31) - 1

# Each merge in a word moves all that stands behind it: one of 160,000 letters took 30 CPU seconds, one of
# 5 million, as a sequence of DNA has, would take hours. Of 42,136 real documents one has a longer one.
_MAX_WORD_CHARS = 1000
_LONG_RUN = re.compile(rf"\S{{{_MAX_WORD_CHARS}}}|\s{{{_MAX_WORD_CHARS}}}")


def train_byte_bpe(
    texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str], min_frequency: int = 2
) -> Trained:
    """Byte-level BPE of at most `vocab_size` ids, from pairs seen at least `min_frequency` times."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_bpe_request(vocab_size, special_tokens, alphabet)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    meter = _Meter(texts, splitter)
    tokenizer.train_from_iterator(iter(meter), trainer)
    if meter.text_bytes == 0:
        raise no_text()
    data: bytes = tokenizer.to_str(pretty=True).encode() + b"\n"
    _check_specials_stand_alone(data, special_tokens)
    return Trained(data, tokenizer.get_vocab_size())


class _Meter:
    """Counts the bytes that pass, and stops the training where its counters would wrap; cuts long words."""

    def __init__(self, texts: Iterable[str], splitter: pre_tokenizers.PreTokenizer) -> None:
        self._texts = texts
        self._splitter = splitter
        self.text_bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.text_bytes += len(text.encode())
            if self.text_bytes > _MAX_BPE_TEXT_BYTES:
                raise InputError(
                    f"more than {_MAX_BPE_TEXT_BYTES:,} bytes of text to train a tokenizer on",
                    next="train on a sample: more text than this does not change a vocabulary for the better",
                )
            yield from _without_long_words(text, self._splitter)


def _without_long_words(text: str, splitter: pre_tokenizers.PreTokenizer) -> Iterator[str]:
    """The text, cut where one of its words is too long for the trainer. A word has white space throughout or
    nowhere, so most texts are seen to have none that is."""
    if not _LONG_RUN.search(text):
        yield text
        return
    begin = 0
    for _, (start, end) in splitter.pre_tokenize_str(text):
        for cut in range(start + _MAX_WORD_CHARS, end, _MAX_WORD_CHARS):
            yield text[begin:cut]
            begin = cut
    yield text[begin:]


class _Model(msgspec.Struct):
    merges: list[tuple[str, str]]


class _File(msgspec.Struct):
    model: _Model


def _check_bpe_request(vocab_size: int, special_tokens: Sequence[str], alphabet: Sequence[str]) -> None:
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


# --- SentencePiece ---

# Not the number of cores: see above. 16 is the library's own default.
_THREADS = 16

# The most that the trainer allows, and how many characters surely fit it.
_MAX_TEXT_BYTES = 1 << 30
_MAX_TEXT_CHARS = _MAX_TEXT_BYTES // 4 - 1

# The trainer of BPE aborts the process where a word, which ends at a space alone, has more than 65,535
# characters after normalization, which makes 18 of some.
_WORD_CHARS = 65_535 // 18
_LONG_WORD = re.compile(rf"[^ ]{{{_WORD_CHARS}}}")

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
    sentences = _Sentences(texts, keep_line_end="\n" not in symbols, cut_words=options.model == "bpe")
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

    def __init__(self, texts: Iterable[str], *, keep_line_end: bool, cut_words: bool) -> None:
        self._texts = texts
        self._cut_words = cut_words
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
                for piece in self._words(part[start : start + _MAX_TEXT_CHARS]):
                    self.has_text = True
                    yield piece + _TAB if self._keep_line_end and piece[-1] in "\r\n" else piece

    def _words(self, piece: str) -> Iterator[str]:
        begin = 0
        if self._cut_words:
            for long in _LONG_WORD.finditer(piece):
                yield piece[begin : long.end()]
                begin = long.end()
        if begin < len(piece):
            yield piece[begin:]


def _check_request(eos: str, control: Sequence[str], symbols: Sequence[str]) -> None:
    names = [eos, *control, *symbols]
    twice = [name for name in names if names.count(name) > 1]
    if twice or "" in names:
        raise RecipeError(
            f"{twice[0]!r} is given twice" if twice else "a symbol is empty",
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


# --- all kinds ---


class ByteLevelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A byte-level vocabulary may stay smaller than asked for: it has every byte, so it spells everything."""

    model: str
    vocab_size: int
    min_frequency: int = 2


def resolve_options(asked: dict[str, Any]) -> dict[str, Any]:
    """All options of the model, with defaults for those that are not given."""
    kind = ByteLevelOptions if asked["model"] == "byte_bpe" else SentencePieceOptions
    resolved: dict[str, Any] = msgspec.to_builtins(msgspec.convert(asked, kind, strict=False))
    return resolved


def train_tokenizer(
    texts: Iterable[str], options: dict[str, Any], *, eos: str, control: Sequence[str] = ()
) -> tuple[str, Trained]:
    """The name of the file and what is in it; `options` as `resolve_options` gives them."""
    if options["model"] == "byte_bpe":
        resolved = msgspec.convert(options, ByteLevelOptions)
        trained = train_byte_bpe(
            texts,
            vocab_size=resolved.vocab_size,
            special_tokens=[eos, *control],
            min_frequency=resolved.min_frequency,
        )
        return "tokenizer.json", trained
    trained = train_sentencepiece(
        texts, msgspec.convert(options, SentencePieceOptions), eos=eos, control=control
    )
    return f"spm_{trained.vocab_size}_{options['model']}.model", trained
