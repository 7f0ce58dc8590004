"""The rest of a run has the tokenizer of the run, and no other, however often it is made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tokmill as mill
from continuation.rests import DOMAINS, LONGER, recipe_of, written
from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.errors import RecipeError, TokenizerMismatch


def trained(vocab_size: int) -> Json:
    return {"train": {"model": "byte_bpe", "vocab_size": vocab_size}, "eos": "<|endoftext|>"}


def test_another_tokenizer_is_refused_and_leaves_nothing(place: Path, state: Json) -> None:
    build = place / "old/build/rows"
    trained = {"train": {"model": "byte_bpe", "vocab_size": 310}, "eos": "<|endoftext|>"}
    other = written(place, "other", recipe_of("web", "math", mixture={}, tokenizer=trained))
    with pytest.raises(TokenizerMismatch, match="trains another tokenizer"):
        mill.continue_(build, recipe=other, out=place / "refused", at=state, workers=1)
    mill.run(other, place / "other", until="tokenizer", workers=1)
    pinned = {"path": "other/tokenizer/tokenizer.json", "eos": "<|endoftext|>"}
    named = written(place, "named", recipe_of("web", "math", mixture={}, tokenizer=pinned))
    with pytest.raises(TokenizerMismatch, match="its sha256 is"):
        mill.continue_(build, recipe=named, out=place / "refused", at=state, workers=1)
    assert not (place / "refused").exists()


def test_the_recipe_is_run_again_as_it_is_and_the_tokenizer_stays(place: Path, state: Json) -> None:
    """It trains one, and would have another on a source more. The run that is continued is gone."""
    old = shutil.copytree(place / "old", place / "short_lived")
    out, recipe = place / "again_and_again", place / "new.yaml"
    written(place, "new", recipe_of("web", "math", "more", mixture=LONGER))
    mill.continue_(old / "build/rows", recipe=recipe, out=out, at=state, workers=1)
    shutil.rmtree(old)
    tokenizer, before = (out / "tokenizer/tokenizer.json").read_bytes(), mill.verify(out)
    assert mill.run(recipe, out, workers=1).ran == []
    assert mill.verify(out).digest == before.digest
    padded = {**recipe_of("web", "math", "more", mixture=LONGER), "name": "padded"}
    padded["tokenizer"] = {**padded["tokenizer"], "padded_vocab_size": 320}
    ran = mill.run(written(place, "padded", padded), out, workers=1, replace=True).ran
    assert "tokenizer" in ran
    assert (out / "tokenizer/tokenizer.json").read_bytes() == tokenizer
    mill.run(recipe, out, workers=1, replace=True)
    doc_id = next(doc.doc_id for doc in Recount(out, DOMAINS).turns("train") if doc.source == "web")
    mill.forget(out, doc_id=[doc_id], source="web", workers=1)
    assert mill.run(recipe, out, workers=1).ran == []
    assert (out / "tokenizer/tokenizer.json").read_bytes() == tokenizer
    assert mill.verify(out).problems == []


def test_another_tokenizer_is_refused_by_a_run_in_the_directory_too(place: Path, rest: Path) -> None:
    out = shutil.copytree(rest, place / "retrained")
    before = mill.verify(out)
    other = recipe_of("web", "math", "more", mixture=LONGER, tokenizer=trained(310))
    with pytest.raises((TokenizerMismatch, RecipeError), match="trains another tokenizer"):
        mill.run(written(place, "retrained", other), out, workers=1)
    assert mill.verify(out).digest == before.digest
    shutil.rmtree(out / "tokenizer")
    with pytest.raises(
        (TokenizerMismatch, RecipeError), match="tokenizer of the run that is continued is not here"
    ):
        mill.run(place / "new.yaml", out, workers=1)
    assert not (out / "tokenizer").exists(), "no step has begun"


def test_the_rest_of_a_rest_trains_no_other_tokenizer_either(place: Path, rest: Path, state: Json) -> None:
    for number, vocab_size in enumerate((310, 300)):
        recipe = recipe_of("web", "math", mixture=LONGER, tokenizer=trained(vocab_size))
        path, out = written(place, "second_rest", recipe), place / f"second_rest{number}"
        if vocab_size != 300:
            with pytest.raises(TokenizerMismatch, match="trains another tokenizer"):
                mill.continue_(rest / "build/rows", recipe=path, out=out, step=2, batch_size=3, workers=1)
            continue
        mill.continue_(rest / "build/rows", recipe=path, out=out, step=2, batch_size=3, workers=1)
        theirs, ours = (one / "tokenizer/tokenizer.json" for one in (rest, out))
        assert theirs.read_bytes() == ours.read_bytes()
    # of a run that names a file nobody knows how it was trained
    named = {"path": "old/tokenizer/tokenizer.json", "eos": "<|endoftext|>"}
    mill.run(
        written(place, "unknown", recipe_of("web", "math", tokenizer=named)), place / "unknown", workers=1
    )
    with pytest.raises(TokenizerMismatch, match="how that of the run was trained is not known"):
        mill.continue_(
            place / "unknown/build/rows",
            recipe=path,
            out=place / "of_unknown",
            step=2,
            batch_size=3,
            workers=1,
        )
