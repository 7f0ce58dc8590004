"""Builds, the tokenizer, and what a chat template asks of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from tokmill.artifacts.directory import open_artifact
from tokmill.engines.forking import Answer
from tokmill.errors import ManifestError, StorageError, TokenizerMismatch, TokmillError
from tokmill.formats import resolve_format
from tokmill.pipeline.examination.mistakes import Found
from tokmill.pipeline.opened_tokenizer import opened_tokenizer, step_of
from tokmill.pipeline.tokens import build_options, narrow_builds, tokenizer_step
from tokmill.recipe import Recipe, Tokenizer, Training
from tokmill.recipe.section import Path_
from tokmill.sources.chat import resolve_chat
from tokmill.stages.tokens.tokenizer import open_published
from tokmill.stages.warnings import chat_warnings, tell
from tokmill.tokenizers.vocabulary import check_dtype


def look_at_tokens(found: Found, recipe: Recipe, base: Path, out: Path, opening: Answer | None) -> None:
    for index, build in enumerate(recipe.builds):
        place: Path_ = ("builds", index)
        if build.is_text:
            continue  # its own section knows all that can be wrong with it
        if found.holds((*place, "format"), resolve_format, build.format, base, f"builds.{build.name}"):
            found.holds(place, build_options, recipe, build, base)
    tokenizer = recipe.tokenizer
    if tokenizer is None:
        return
    vocabulary = tokenizer.padded_vocab_size or 0
    if tokenizer.train is not None:
        alone = recipe.model_copy(update={"mixture": None})  # which is looked at by itself
        found.holds(("tokenizer", "train"), tokenizer_step, alone, base, out, ())
        vocabulary = max(vocabulary, tokenizer.train.vocab_size)
    else:
        vocabulary = max(vocabulary, _opened(found, tokenizer, recipe, base, out, opening))
    narrow = narrow_builds(recipe)
    for index, build in enumerate(recipe.builds):
        if build.name in narrow:
            where, dtypes = f"build {build.name}", narrow[build.name]
            found.holds(("builds", index, "dtype"), check_dtype, vocabulary, "uint16", where, dtypes)


def look_at_conversations(recipe: Recipe, base: Path, out: Path) -> None:
    """Said, and no mistake: some want the literals of a template as text.
    What cannot be opened is told already."""
    tokenizer = recipe.tokenizer
    chats = [source for source in recipe.sources if source.chat is not None]
    if tokenizer is None or not chats:
        return
    with contextlib.suppress(TokmillError, OSError):
        if tokenizer.train is not None:
            of, specials = "", _to_be_trained(tokenizer, tokenizer.train)
        else:
            opened = open_published(step_of(recipe, base, out))
            of, specials = opened.path.name, set(opened.specials)
        for source in chats:
            assert source.chat is not None
            chat = msgspec.to_builtins(resolve_chat(source.chat, base, source.name))
            tell("tokenizer", chat_warnings(source.name, chat, specials, of))


def _to_be_trained(tokenizer: Tokenizer, training: Training) -> set[str]:
    known = {*tokenizer.control, *training.control_symbols, str(tokenizer.eos), str(tokenizer.bos)}
    return known if training.model == "byte_bpe" else known | {"<unk>", "<s>", "</s>"}


def _opened(
    found: Found, tokenizer: Tokenizer, recipe: Recipe, base: Path, out: Path, asked: Answer | None
) -> int:
    """How many ids it has; 0: it cannot be opened. One that the last run has opened is not opened again."""
    try:
        step = step_of(recipe, base, out)
        with contextlib.suppress(ManifestError, StorageError):
            known = open_artifact(out / "tokenizer")
            if known is not None and known.manifest.config == step.config:
                return int(known.manifest.facts["vocab_size"])
        opened = opened_tokenizer(step, tokenizer, asked)
        if opened.fault is not None:
            raise opened.fault.as_error()
    except TokmillError as error:
        key = "sha256" if isinstance(error, TokenizerMismatch) else "plugin" if tokenizer.plugin else "path"
        if tokenizer.eos is None and "`eos" in f"{error.what} {error.next}":
            key = "eos"
        found.note(("tokenizer", key), error)
        return 0
    for wrong in opened.wrong:
        found.note(("tokenizer", *wrong.place), wrong.fault.as_error())
    return opened.vocab_size
