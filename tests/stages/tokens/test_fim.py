"""Fill in the middle, undone from the written tokens by a loop that knows the paper, not the code."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

import tokmill
from mill import tokmill as command
from tokmill.errors import RecipeError, TokmillError
from tokmill.loader import open_dataset
from tokmill.tokenizers.fim import Fim, encode_fim
from tokmill.tokenizers.load import load_tokenizer as load_ours
from written import decoder_of, load_manifest, load_table, read_row_index

SENTINELS = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")


def texts(count: int = 400) -> list[str]:
    """One of one character, one of two, and many with characters of one to four bytes."""
    words = ("def", "ça", "漢字", "🥺", "return", "x")
    long = ["".join(f"{words[(n * k) % 6]} {n}\n" for k in range(1, 2 + n % 9)) for n in range(count)]
    return ["é", "xy", *long]


def corpus(directory: Path, fim: Any, found: list[str] | None = None, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    found = texts() if found is None else found
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(found)]
    (directory / "code.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "prose.jsonl").write_text("\n".join(lines[:50]) + "\n")
    recipe: dict[str, Any] = {
        "name": "fim",
        "seed": 11,
        "shards": {"megabytes": 1},
        "sources": [
            {"name": "code", "domain": "code", "files": "code.jsonl", "fields": {"id": "id"}},
            {"name": "prose", "domain": "prose", "files": "prose.jsonl", "fields": {"id": "id"}},
        ],
        "dedup": {"exact": False},
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {
            "train": {"model": "byte_bpe", "vocab_size": 400, "control_symbols": list(SENTINELS)},
            "eos": "<|endoftext|>",
        },
        "pack": {"length": 32},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
        "fim": fim,
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps({key: value for key, value in recipe.items() if value is not None}))
    return path


def sequences(out: Path, domain: str) -> dict[str, list[int]]:
    found = {}
    for path in sorted((out / "tokens").glob(f"*/{domain}/tokens-*.bin")):
        ids = np.fromfile(path, np.uint16)
        lengths = load_table(path.with_name(path.name.replace("tokens-", "lengths-")).with_suffix(".parquet"))
        at = 0
        for doc_id, count in zip(*(lengths.column(c).to_pylist() for c in ("doc_id", "tokens")), strict=True):
            found[doc_id] = ids[at : at + count].tolist()
            at += count
        assert at == len(ids)
    return found


def undone(ids: list[int], tokenizer: tokenizers.Tokenizer) -> tuple[str, str]:
    """The kind of a document, and its text."""
    pre, mid, suf = (tokenizer.token_to_id(name) for name in SENTINELS)

    def decoded(some: list[int]) -> str:
        return tokenizer.decode(some, skip_special_tokens=False)

    assert ids[-1] == tokenizer.token_to_id("<|endoftext|>")
    body = ids[:-1]
    if pre not in body:
        assert mid not in body
        assert suf not in body
        return "plain", decoded(body)
    assert [body.count(one) for one in (pre, mid, suf)] == [1, 1, 1]
    assert body[0] == pre
    at_suffix, at_middle = body.index(suf), body.index(mid)
    assert at_suffix < at_middle
    suffix = body[at_suffix + 1 : at_middle]
    if at_suffix == 1 and body[at_middle + 1 :]:
        # SPM, or PSM without a prefix: what follows <fim_middle> and then the suffix is the text either way
        return "suffix first", decoded(body[at_middle + 1 :]) + decoded(suffix)
    prefix, middle = body[1:at_suffix], body[at_middle + 1 :]
    return "prefix first", decoded(prefix) + decoded(middle) + decoded(suffix)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fim")
    tokmill.run(corpus(directory, {}), out=directory / "out", workers=1)
    return directory


def load_tokenizer(out: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))


def test_every_character_is_there_and_the_rates_are_those_that_were_asked_for(made: Path) -> None:
    tokenizer = load_tokenizer(made / "out")
    kinds: dict[str, int] = {}
    found = sequences(made / "out", "code")
    assert len(found) == len(texts())
    for doc_id, ids in found.items():
        kind, text = undone(ids, tokenizer)
        assert text == texts()[int(doc_id[1:])], doc_id
        kinds[kind] = kinds.get(kind, 0) + 1
    # five standard deviations of 402 fair draws are 0.125
    assert abs((kinds["prefix first"] + kinds["suffix first"]) / len(found) - 0.5) < 0.125
    assert abs(kinds["suffix first"] / (kinds["prefix first"] + kinds["suffix first"]) - 0.5) < 0.18


def test_documents_of_other_domains_stay_as_they_are(made: Path) -> None:
    tokenizer = load_tokenizer(made / "out")
    for doc_id, ids in sequences(made / "out", "prose").items():
        assert undone(ids, tokenizer) == ("plain", texts()[int(doc_id[1:])])


def test_cuts_are_spread_over_the_text(made: Path) -> None:
    tokenizer = load_tokenizer(made / "out")
    pre, _, suf = (tokenizer.token_to_id(name) for name in SENTINELS)
    shares = []
    for doc_id, ids in sequences(made / "out", "code").items():
        kind, text = undone(ids, tokenizer)
        if kind == "prefix first":
            prefix = tokenizer.decode(ids[1 : ids.index(suf)], skip_special_tokens=False)
            shares.append(len(prefix) / len(text))
            assert "\ufffd" not in prefix, doc_id
    assert ids[0] == pre or pre not in ids
    assert 0.2 < sum(shares) / len(shares) < 0.47, "the smaller of two uniform draws is a third on average"


@pytest.mark.usefixtures("forked_workers")
def test_three_workers_give_the_same_tokens(made: Path, tmp_path: Path) -> None:
    tokmill.run(made / "recipe.yaml", out=tmp_path / "out", workers=3)
    for step in ("tokens", "build/rows"):
        ours, theirs = (load_manifest(place / step) for place in (made / "out", tmp_path / "out"))
        assert ours.identity == theirs.identity, step


def test_the_run_is_proven_and_checked(made: Path) -> None:
    assert command("verify", made / "out").returncode == 0
    found = json.loads(command("check", made / "out" / "build" / "mega", "--json").stdout)
    members = [one for one in found["findings"] if one["check"] == "members"]
    assert [one["ok"] for one in members] == [True] * len(members), members
    assert members


def test_all_or_none_can_be_asked_for_and_none_is_as_without(tmp_path: Path) -> None:
    some = texts(30)
    runs = {}
    for name, fim in (("all", {"rate": 1, "spm": 0}), ("none", {"rate": 0}), ("without", None)):
        tokmill.run(corpus(tmp_path / name, fim, some), out=tmp_path / name / "out", workers=1)
        runs[name] = sequences(tmp_path / name / "out", "code")
    assert runs["none"] == runs["without"]
    tokenizer = load_tokenizer(tmp_path / "all" / "out")
    pre, mid, suf = (tokenizer.token_to_id(name) for name in SENTINELS)
    for doc_id, ids in runs["all"].items():
        assert ids[0] == pre
        assert ids.index(suf) < ids.index(mid)
        assert (
            "".join(
                tokenizer.decode(part, skip_special_tokens=False)
                for part in (
                    ids[1 : ids.index(suf)],
                    ids[ids.index(mid) + 1 : -1],
                    ids[ids.index(suf) + 1 : ids.index(mid)],
                )
            )
            == some[int(doc_id[1:])]
        )
    config = load_manifest(tmp_path / "without" / "out" / "tokens").config
    assert config == {}


def test_texts_of_no_one_and_two_characters(tiny_tokenizer: Any) -> None:
    column = pa.array(["left out", "", "é", "xy", "", "ab"], pa.large_string()).slice(1)
    names = pa.array(["a", "b", "c", "d", "e"])
    for seed in range(20):
        fim = Fim(seed, "s", Fraction(1), Fraction(seed % 3, 2), 1001, 1002, 1003)
        found = encode_fim(column, names, tiny_tokenizer.encode_column, fim)
        parts = np.split(found.ids, np.cumsum(found.lengths)[:-1])
        for text, ids in zip(column.to_pylist(), (part.tolist() for part in parts), strict=True):
            assert [ids.count(one) for one in (1001, 1002, 1003)] == ([1, 1, 1] if text else [0, 0, 0])
            spelled = [tiny_tokenizer.decode([one]) for one in ids if one < 1000]
            assert sorted("".join(spelled)) == sorted(text) or "\ufffd" in "".join(spelled)
    nothing = encode_fim(column.slice(5), names.slice(5), tiny_tokenizer.encode_column, fim)
    assert len(nothing.ids) == len(nothing.lengths) == 0


@pytest.fixture(scope="module")
def tiny_tokenizer(made: Path) -> Any:
    return load_ours(made / "out" / "tokenizer" / "tokenizer.json")


@pytest.mark.parametrize(
    ("fim", "told"),
    [
        ({"prefix": "<fim-prefix>"}, r"no token '<fim-prefix>'.*\n  next: did you mean <fim_prefix>"),
        (
            {"suffix": "qqqqqqqq"},
            r"no token 'qqqqqqqq'.*\n  next: set the suffix of `fim` to a control",
        ),
        ({"middle": "e"}, "'e' .* is an ordinary token"),
    ],
)
def test_a_sentinel_that_is_no_control_token_is_told(tmp_path: Path, fim: dict[str, str], told: str) -> None:
    with pytest.raises(TokmillError, match=told):
        tokmill.run(corpus(tmp_path, fim, texts(20)), out=tmp_path / "out", workers=1)


def test_a_text_is_told_in_every_row_that_may_have_it(tmp_path: Path) -> None:
    """Its tokens lie elsewhere than in the text: all of the document is told, and that it is."""
    found = [" ".join(f"w{number}x{place}" for place in range(30)) for number in range(40)]
    out = tokmill.run(corpus(tmp_path, {"rate": 1}, found), out=tmp_path / "out", workers=1).out
    dataset, decode = open_dataset(out / "build" / "rows", "train"), decoder_of(out)
    decoded = [
        (row, span, decode(np.asarray(dataset[row]["ids"])[span.start : span.end]))
        for row, spans in read_row_index(out / "build/rows/train/index.jsonl.zst")
        for span in spans
        if span.source == "code"
    ]
    met = 0
    for number, text in enumerate(found):
        words = text.split()[13]
        having = {row for row, span, shown in decoded if f" {words} " in shown}
        told = tokmill.seen(
            out / "build" / "rows", step=0, batch_size=4, text=f" {words} ", source="code"
        ).meetings
        assert told is not None
        if not told:  # it is held out
            continue
        met += len(having)
        assert {one.doc_id for one in told} == {f"d{number}"}
        assert having <= {one.row for one in told}
        whole = tokmill.seen(
            out / "build" / "rows", step=0, batch_size=4, doc_id=f"d{number}", source="code"
        ).meetings
        assert [(one.row, one.tokens) for one in told] == [(one.row, one.tokens) for one in whole or []]
        assert not any(one.is_placed for one in told)
    assert met > 20
    prose = tokmill.seen(out / "build/rows", step=0, batch_size=4, text=" w3x13 ", source="prose").meetings
    assert prose
    assert all(one.is_placed for one in prose)
    shown = command("seen", out / "build/rows", "--step", 0, "--batch-size", 4, "--text", " w3x13 ")
    assert "of d3, which may have it" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"fim": {"domains": ["cod"]}}, r"fim\.domains: no source has the domain cod"),
        ({"fim": {"prefix": "<fim_middle>"}}, r"fim\.middle: `prefix` is <fim_middle> too"),
        ({"tokenizer": None, "builds": None}, r"fim: `fim` needs a `tokenizer`"),
        ({"fim": {"rate": 2}}, r"fim\.rate: "),
        (
            {
                "sources": [{"name": "talk", "domain": "code", "files": "code.jsonl", "chat": {}}],
                "builds": [],
            },
            r"fim\.domains: talk of code has conversations",
        ),
    ],
)
def test_mistakes_are_told_at_their_keys(tmp_path: Path, sections: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        tokmill.run(corpus(tmp_path, **{"fim": {}, **sections}), out=tmp_path / "out", workers=1)
