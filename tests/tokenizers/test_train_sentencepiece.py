"""SentencePiece models: the same bytes wherever they are trained, all text used,
and requests that cannot be met."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

import trained
from tokmill import tokenizer_check
from tokmill.errors import InputError, RecipeError, TokenizerError
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.spm import read_spm_model
from tokmill.tokenizers.train import resolve_options, train_tokenizer
from tokmill.tokenizers.vocabulary import resolve_eos

END = "<|endoftext|>"
PROSE = [
    "the cat sat on the mat, and the other cat sat there too\n\nthe mat was low, lower, lowest\n",
    "les chats étaient là, déjà\nun chat, deux chats\n",
    "def mill(grain):\n    if grain:\n        return grain * 2\n\n",
] * 7


def train(texts, *, model="unigram", vocab_size=330, **asked):
    return trained.train(
        texts, eos=END, **{"model": model, "vocab_size": vocab_size, "hard_vocab_limit": False, **asked}
    )


def train_directly(texts, *, model="unigram", vocab_size=330, control=(), eos=END, **asked):
    """With what a recipe refuses already, or never comes to."""
    options = resolve_options({"model": model, "vocab_size": vocab_size, "hard_vocab_limit": False, **asked})
    return train_tokenizer(texts, options, eos=eos, control=control)


def processor(made):
    return sentencepiece.SentencePieceProcessor(model_proto=made.data)


def pieces(made):
    loaded = processor(made)
    return [loaded.id_to_piece(id) for id in range(made.vocab_size)]


# Many words of many equal counts, and enough of them that sums of single-precision numbers depend on their
# order.
CODE = """
import hashlib, os, random, sys
model, cores, order = sys.argv[1:]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(cores)])
from tokmill.tokenizers.train import resolve_options, train_tokenizer
draw = random.Random(5)
words = ["".join(draw.choices("abcdefgh é漢", k=draw.randint(2, 9))) for _ in range(3000)]
texts = [" ".join(draw.choices(words, k=60)) + "\\n" for _ in range(300)]
random.Random(int(order)).shuffle(texts)
options = resolve_options({"model": model, "vocab_size": 900})
name, trained = train_tokenizer(iter(texts), options, eos="</s>")
print(name, hashlib.sha256(trained.data).hexdigest())
"""


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_training_is_the_same_for_any_cores_hash_seed_and_order_of_texts(model):
    found = set()
    for cores, seed, order in [("1", "0", "1"), ("2", "77", "1"), ("7", "3", "2")]:
        done = subprocess.run(
            [sys.executable, "-c", CODE, model, cores, order],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
    assert found.pop().startswith(f"spm_900_{model}.model ")


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_the_number_of_threads_in_the_model_is_not_that_of_the_machine(model, monkeypatch):
    """It decides the order of sums in unigram training, so it must be the same on every machine."""
    first = train(PROSE, model=model)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    second = train(PROSE, model=model)
    assert first.data == second.data
    trainer_spec = sentencepiece_field(first.data, 2)
    assert sentencepiece_field(trainer_spec, 16) == 16


def test_the_pieces_of_bpe_do_not_depend_on_the_threads_at_all(monkeypatch):
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr("tokmill.tokenizers.train._THREADS", threads)
        found.append(pieces(train(PROSE, model="bpe")))
    assert found[0] == found[1] == found[2]


def sentencepiece_field(message: bytes, wanted: int):
    """An independent look into the wire format: the last value of a field."""
    at, found = 0, None

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            value, at = message[at : at + size], at + size
        if key >> 3 == wanted:
            found = value
    return found


@pytest.mark.parametrize("model", ["unigram", "bpe"])
@pytest.mark.parametrize("normalization", ["identity", "nfkc", "nmt_nfkc", "nmt_nfkc_cf"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_newlines_survive_every_normalization(tmp_path, model, normalization, byte_fallback):
    made = train(PROSE, model=model, normalization=normalization, byte_fallback=byte_fallback)
    (tmp_path / made.name).write_bytes(made.data)
    text = "the cat\n\n\nsat\n the mat\n"
    (ids,) = trained.encode(tmp_path / made.name, [text], eos=END)
    assert processor(made).decode(ids) == text
    assert "\n" in pieces(made)


def test_newlines_are_learned_with_what_is_around_them():
    learned = pieces(train(PROSE, model="bpe", vocab_size=420))
    assert "\n\n" in learned
    assert ":\n" in learned


def test_line_ends_at_the_end_of_a_text_are_learned_too():
    assert "\n\n" in pieces(train(["abc\n\n\n", "abd\n\n\n"] * 9, model="bpe", vocab_size=290))


def test_a_newline_has_a_piece_even_where_no_text_has_one():
    assert "\n" in pieces(train(["abc abd"] * 5, vocab_size=300))


def test_texts_with_the_reserved_character_are_used_but_for_that_character():
    learned = pieces(train(["xyz ▅ xyz xyq"] * 9, vocab_size=300))
    assert {"x", "y", "z", "q"} <= set(learned)
    assert not any("▅" in piece for piece in learned)


def test_a_text_that_is_too_long_for_the_trainer_is_cut_and_not_skipped(monkeypatch):
    monkeypatch.setattr("tokmill.tokenizers.train._MAX_TEXT_BYTES", 44)
    monkeypatch.setattr("tokmill.tokenizers.train._MAX_TEXT_CHARS", 10)
    learned = pieces(train(["漢字 abc " * 30], vocab_size=300))
    assert {"漢", "字", "a", "b", "c"} <= {piece for whole in learned for piece in whole}


LONG_WORDS = """
import sys
from tokmill.tokenizers.train import SentencePieceOptions, train_sentencepiece
options = SentencePieceOptions(model="bpe", vocab_size=300, hard_vocab_limit=False, normalization=sys.argv[2])
made = train_sentencepiece([eval(sys.argv[1]), "the mill the mill"], options, eos="</s>")
print(made.vocab_size)
"""


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("text", ["'ab' * 40_000", "'ab,7\\n' * 20_000", "'\\ufdfa' * 9_000"])
def test_words_that_would_abort_the_trainer_are_cut(text, normalization):
    """A word ends at a space alone; U+FDFA is 18 characters in NFKC."""
    done = subprocess.run(
        [sys.executable, "-c", LONG_WORDS, text, normalization], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert int(done.stdout) > 256


TEXT = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=12)
    | st.sampled_from(
        [END, "</s>", "<s>", "<unk>", "<|pad|>", "<0x0A>", " the cat", "  ", "\n\n", "\0", "\t"]
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request, tmp_path_factory):
    made = train(PROSE, model=request.param, control_symbols=["<|pad|>"])
    path = tmp_path_factory.mktemp("spm") / made.name
    path.write_bytes(made.data)
    return load_tokenizer(path)


@given(text=TEXT)
@settings(deadline=None, max_examples=150)
def test_every_text_comes_back_and_none_spells_a_control_token(tokenizer, text):
    ids = tokenizer.encode([text]).ids
    assert tokenizer.decode(ids) == text
    controls = {tokenizer.token_id(token) for token in (END, "<|pad|>", "<s>", "<unk>")}
    assert not controls & set(ids.tolist())


def test_ids_are_unknown_begin_end_then_control_symbols(tokenizer):
    named = [tokenizer.token_id(token) for token in ("<unk>", "<s>", END, "<|pad|>")]
    assert named == [0, 1, 2, 3]
    assert resolve_eos(tokenizer, END) == 2
    assert tokenizer.token_id("</s>") is None


def test_user_symbols_are_found_in_text_and_never_cut():
    made = train(PROSE, user_symbols=["<tool>", "a,b", 'say"x"'])
    found = processor(made).encode('the<tool>thea,b\nsay"x"', out_type=str)
    assert [piece for piece in found if piece in ("<tool>", "a,b", 'say"x"')] == ["<tool>", "a,b", 'say"x"']


def test_options_reach_the_model(tmp_path):
    made = train(
        PROSE,
        model="bpe",
        character_coverage=0.98,
        byte_fallback=False,
        normalization="nfkc",
        add_dummy_prefix=False,
        remove_extra_whitespaces=True,
    )
    (tmp_path / made.name).write_bytes(made.data)
    assert tokenizer_check(tmp_path / made.name).description.as_json() == {
        "kind": "sentencepiece",
        "model": "bpe",
        "sha256": hashlib.sha256(made.data).hexdigest(),
        "vocab_size": made.vocab_size,
        "specials": {"<s>": 1, END: 2},
        "unknown_id": 0,
        "character_coverage": 0.98,
        "byte_fallback": False,
        "normalization": "nfkc",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": True,
    }
    assert read_spm_model(made.data).user_symbols == {}
    assert made.name == f"spm_{made.vocab_size}_bpe.model"
    digits = pieces(train(["12 123 1234 " * 9] * 3, model="bpe", split_digits=True))
    assert not [piece for piece in digits if sum(c.isdigit() for c in piece) > 1 and "0x" not in piece]
    spaces = pieces(train(PROSE, model="bpe", vocab_size=420))
    assert "▁▁▁▁" in spaces
    assert "▁▁" not in pieces(train(PROSE, model="bpe", vocab_size=420, whitespace_pieces=False))
    assert max(map(len, pieces(train(PROSE, model="bpe", vocab_size=420, max_piece_length=3))[259:])) == 3


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["▅▅"]])
def test_no_text_is_an_error(texts):
    with pytest.raises(InputError, match=r"no text to train a tokenizer on\n  next: check that the sources"):
        train_directly(texts)


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_a_vocabulary_that_the_text_cannot_fill_is_an_error_that_says_the_largest(model):
    with pytest.raises(
        InputError,
        match=(
            r"vocab_size 5,000 is more than this text has pieces for: \d+ at most\n  next: .*hard_vocab_limit"
        ),
    ) as raised:
        train(PROSE, model=model, vocab_size=5000, hard_vocab_limit=True)
    largest = int(raised.value.what.split(": ")[1].split()[0].replace(",", ""))
    assert train(PROSE, model=model, vocab_size=largest, hard_vocab_limit=True).vocab_size == largest
    assert train(PROSE, model=model, vocab_size=5000).vocab_size == largest


def test_a_vocabulary_without_room_for_the_characters_is_an_error_that_says_the_smallest():
    with pytest.raises(
        RecipeError,
        match=r"vocab_size 262 has no room for the characters .*: \d+ at least\n  next: set `vocab",
    ) as raised:
        train(PROSE, vocab_size=262)
    least = int(raised.value.what.split(": ")[1].split()[0])
    assert train(PROSE, vocab_size=least + 1).vocab_size == least + 1


@pytest.mark.parametrize(
    ("eos", "control", "symbols", "message"),
    [
        ("<e>", ["<e>"], [], "'<e>' is given twice"),
        ("<e>", ["<a>"], ["<a>"], "'<a>' is given twice"),
        ("<e>", [""], [], "a symbol is empty"),
        ("<e>", [], ["a b"], "the user symbol 'a b' has a space"),
        ("<unk>", [], [], "SentencePiece keeps <unk> for itself"),
        ("<e>", ["<0x0A>"], [], "SentencePiece keeps <0x0A> for itself"),
    ],
)
def test_symbols_that_cannot_be_are_an_error(eos, control, symbols, message):
    with pytest.raises(RecipeError, match=message):
        train_directly(PROSE, eos=eos, control=control, user_symbols=symbols)


def test_a_fault_of_the_texts_is_told_as_it_is():
    def texts():
        yield "some text"
        raise TokenizerError("the disk is gone")

    with pytest.raises(TokenizerError, match="the disk is gone"):
        train_directly(texts())


def test_the_reader_of_models_agrees_with_the_library_on_published_files(tokenizer_files):
    for path in sorted((tokenizer_files / "sentencepiece").iterdir()):
        data = path.read_bytes()
        loaded = sentencepiece.SentencePieceProcessor(model_proto=data)
        found = read_spm_model(data)
        assert found.vocab_size == loaded.get_piece_size()
        assert found.unknown_id == loaded.unk_id()
        ids = range(loaded.get_piece_size())
        assert found.controls == {loaded.id_to_piece(id): id for id in ids if loaded.is_control(id)}
        assert found.byte_fallback == any(loaded.is_byte(id) for id in ids)
