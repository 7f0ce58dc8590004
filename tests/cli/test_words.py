"""One set of words: what several verbs have is spelled, meant and explained alike in all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from docs.verbs import walk_verbs

# Of options that several verbs have: what the help of each begins with. Their notes come after it.
SHARED = {
    "--out": "Output: ",
    "--tokenizer": "Tokenizer file: tokenizer.json, .model or .tiktoken",
    "--workers": "Processes [default: TOKMILL_WORKERS, or the cores available].",
    "--seed": "Seed of draws and orders: another seed, another result",
    "--json": "Print one JSON object on stdout.",
    "--quiet": "Print results and errors only.",
    "--verbose": "Print more messages.",
    "--log-file": "Append all messages to this file, with times.",
}
EVERYWHERE = {"--json", "--quiet", "--verbose", "--log-file"}

# What other projects call them, and what this one once did.
OTHER_SPELLINGS = {
    "--out": r"--(out|output|save|target|dest)[-_]?(dir|path|file|folder|to)?|--to|--root",
    "--tokenizer": r"--tokenizer[-_](path|file|name|model|dir)|--vocab([-_]file)?|--tok",
    "--workers": (
        r"--(num[-_])?(workers?|proc|processes|procs|jobs|threads|cores|parallel)|--n[-_](jobs|proc)"
    ),
    "--seed": r"--(random|shuffle|sample)[-_]?(seed|state)|--rng",
    "--json": r"--(as|to|output|format)[-_]json",
    "--quiet": r"--(silent|no[-_](progress|bars?))",
    "--verbose": r"--(debug|loud|verbosity|log[-_]level)",
    "--log-file": r"--log([-_](path|to|dir))?|--logfile",
}
# What a help says of an option that is one of them under another name.
SIGNS = {
    "--out": r"^output(:| file| directory|\.)|^(where (it|the result)s? go|directory for)\b",
    "--tokenizer": r"^tokenizer file\b|\btokenizer\.json, ",
    "--workers": r"^processes\b|\b(number of|how many) (processes|workers)\b",
    "--seed": r"\bseed\b",
    "--log-file": r"\bmessages to\b",
}
# Where corpora/ of a snapshot is: read, not written.
READ = {("--root", "--out")}


def options() -> Iterator[tuple[str, click.Option]]:
    for path, command in walk_verbs():
        for param in command.params:
            if isinstance(param, click.Option):
                yield " ".join(path), param


def test_every_verb_that_has_a_shared_option_explains_it_alike() -> None:
    seen = set()
    for verb, option in options():
        for name in SHARED.keys() & set(option.opts):
            assert str(option.help).startswith(SHARED[name]), f"{verb} {name}: {option.help}"
            seen.add(name)
    assert seen == set(SHARED)


def test_a_shared_option_takes_the_same_kind_of_value_in_every_verb() -> None:
    kinds: dict[str, set[str]] = {}
    for _, option in options():
        for name in SHARED.keys() & set(option.opts):
            kind = "flag" if option.is_flag else type(option.type).__name__
            kinds.setdefault(name, set()).add(kind)
    assert kinds.pop("--out") <= {"Path", "StringParamType"}  # `run` publishes to URLs
    assert {name: len(found) for name, found in kinds.items()} == dict.fromkeys(kinds, 1)


def test_what_every_verb_says_every_verb_has() -> None:
    for path, command in walk_verbs():
        spelled = {name for param in command.params for name in param.opts}
        assert spelled >= EVERYWHERE - ({"--json"} if isinstance(command, click.Group) else set()), path


@pytest.mark.parametrize("name", SHARED)
def test_no_other_spelling_stands_for_the_same(name: str) -> None:
    for verb, option in options():
        for spelled in option.opts:
            if spelled in SHARED or (spelled, name) in READ:
                continue
            assert not re.fullmatch(OTHER_SPELLINGS[name], spelled), f"{verb} {spelled} is {name}"
            if name in SIGNS:
                assert not re.search(SIGNS[name], str(option.help), re.IGNORECASE), (
                    f"{verb} {spelled}: {option.help}"
                )
