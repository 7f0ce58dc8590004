"""Byte-level BPE: the same bytes wherever it runs, a complete alphabet, and requests that cannot be met."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

import trained
from tokmill import tokenizer_check
from tokmill.errors import InputError, RecipeError
from tokmill.tokenizers.train import _Meter, train_byte_bpe


def train(texts, *, eos="<|endoftext|>", **options):
    return trained.train(texts, eos=eos, **{"model": "byte_bpe", **options})


# many words of many equal counts: ties are where a trainer loses its determinism
CODE = """
import hashlib, random
from tokmill.tokenizers.train import _Meter, train_byte_bpe
draw = random.Random(5)
words = ["".join(draw.choices("abcdefgh é漢", k=draw.randint(2, 9))) for _ in range(4000)]
texts = [" ".join(draw.choices(words, k=60)) for _ in range(400)]
trained = train_byte_bpe(texts, vocab_size=3000, special_tokens=["<|endoftext|>"])
print(hashlib.sha256(trained.data).hexdigest())
"""


def test_training_is_the_same_for_any_number_of_threads_and_any_hash_seed():
    digests = set()
    for threads, seed, parallel in [
        ("1", "0", "true"),
        ("2", "1", "true"),
        ("5", "77", "true"),
        ("2", "3", "false"),
    ]:
        environment = {
            **os.environ,
            "RAYON_NUM_THREADS": threads,
            "PYTHONHASHSEED": seed,
            "TOKENIZERS_PARALLELISM": parallel,
        }
        done = subprocess.run(
            [sys.executable, "-c", CODE], env=environment, check=True, capture_output=True, text=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_word_that_is_too_long_is_learned_from_in_parts():
    """As one word it has runs of 16,384 letters, and five million letters would take hours."""
    whole, parts = (
        train_byte_bpe([*texts, "a mill"], vocab_size=400, special_tokens=["<|e|>"])
        for texts in (["x" * 20_000], ["x" * 1000] * 20)
    )
    assert whole.data == parts.data
    assert max(map(len, json.loads(whole.data)["model"]["vocab"])) == 1000


# as GPT-2 has published it
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
RUNS = st.tuples(
    st.sampled_from([*"x7-\n 漢é", " x", "x7", "x "]), st.sampled_from([1, 3, 600, 999, 1000, 1001, 2600])
)


@given(runs=st.lists(RUNS, max_size=5))
@settings(deadline=None)
def test_texts_are_cut_inside_of_long_words_and_nowhere_else(runs):
    text = "".join(piece * times for piece, times in runs)
    pieces = list(_Meter([text], pre_tokenizers.ByteLevel(add_prefix_space=False)))
    assert "".join(pieces) == text
    words = [match.span() for match in GPT2.finditer(text)]
    cuts = set(itertools.accumulate(map(len, pieces[:-1])))
    assert cuts == {cut for start, end in words for cut in range(start + 1000, end, 1000)}


def test_the_order_of_the_texts_does_not_matter():
    texts = [f"word{number % 17} thing{number % 13} x" for number in range(300)]
    shuffled = texts.copy()
    random.Random(1).shuffle(shuffled)
    assert train(texts, vocab_size=400) == train(iter(shuffled), vocab_size=400)


def test_ids_are_specials_then_bytes_then_merges(tmp_path):
    made = train(["low lower lowest " * 9], vocab_size=262, eos="<|a|>", control_symbols=["<|b|>"])
    assert made.vocab_size == 262
    config = json.loads(made.data)
    assert len(config["model"]["merges"]) == 4
    (tmp_path / "t.json").write_bytes(made.data)
    checked = tokenizer_check(tmp_path / "t.json").description
    assert (checked.vocab_size, checked.specials) == (262, {"<|a|>": 0, "<|b|>": 1})
    library = Tokenizer.from_str(json.dumps({**config, "added_tokens": []}))
    assert library.token_to_id("!") == 2
    every_byte = "".join(map(chr, range(0x250))) + "\u2028漢🙂<|a|>"
    ids = library.encode(every_byte, add_special_tokens=False).ids
    assert library.decode(ids) == every_byte
    assert min(ids) >= 2


def test_a_vocabulary_that_the_text_cannot_fill_says_its_real_size():
    made = train(["abab"], vocab_size=5000)
    assert made.vocab_size == 256 + 1 + 1 == len(json.loads(made.data)["model"]["vocab"])
    assert train(["abab"], vocab_size=5000, min_frequency=3).vocab_size == 256 + 1


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text_is_an_error(texts):
    with pytest.raises(InputError, match=r"no text to train a tokenizer on\n  next: check that the sources"):
        train_byte_bpe(texts, vocab_size=300, special_tokens=[])


def test_a_vocabulary_without_room_for_the_bytes_is_an_error():
    with pytest.raises(
        RecipeError,
        match=(
            r"vocab_size 257 has no room for 256 bytes and 2 special tokens\n  next: set `vocab_size` to 258"
        ),
    ):
        train(["a"], vocab_size=257, control_symbols=["<|b|>"])


@pytest.mark.parametrize("specials", [["<|a|>", "<|a|>"], [""]])
def test_repeated_or_empty_special_tokens_are_an_error(specials):
    with pytest.raises(RecipeError, match="special tokens must be distinct and not empty"):
        train_byte_bpe(["a"], vocab_size=300, special_tokens=specials)


@pytest.mark.parametrize("special", ["EOS", "a", "Ġthe"])
def test_a_special_token_that_text_can_spell_is_an_error(special):
    with pytest.raises(
        RecipeError,
        match=rf"the special token '{special}' is also a piece of ordinary text\n  next: .*<\|{special}\|>",
    ):
        train(["EOS the EOS the"], vocab_size=300, eos=special)


def test_more_text_than_the_trainer_can_count_is_an_error(monkeypatch):
    monkeypatch.setattr("tokmill.tokenizers.train._MAX_BPE_TEXT_BYTES", 10)
    with pytest.raises(InputError, match=r"more than 10 bytes of text .*\n  next: train on a sample"):
        train(["12345", "678", "9éé"], vocab_size=300)
