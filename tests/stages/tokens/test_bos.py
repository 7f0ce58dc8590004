"""A token that begins every document: where it stands, what it counts for, and that no text becomes it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from click.testing import CliRunner

import tokmill
from tokmill.cli import main
from tokmill.errors import EosMissing, TokenizerError
from trained import rank_lines, train
from written import MegatronFile, load_manifest, load_table

SENTENCES = ["the cat sat on the mat, and the other cat sat there too\n" * 3, "les chats étaient là"] * 20
BOS, EOS = "<s>", "</s>"
RANK_BOS, RANK_EOS = "<|begin_of_text|>", "<|end_of_text|>"
TEXTS = {
    "plain": "the cat sat on the mat",
    "literals": "<s>a</s> <s> in the text</s> <|begin_of_text|>x<|end_of_text|>",
    "begins": "<s>",
    "wide": "日本語 naïve 👩‍👩‍👧",
    "long": "and the other cat sat there too " * 9,
}


@pytest.fixture(scope="module")
def sections(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """A tokenizer of every library, as a recipe has it."""
    directory = tmp_path_factory.mktemp("tokenizers")
    trained = train(SENTENCES, model="byte_bpe", vocab_size=330, eos=EOS, control_symbols=[BOS])
    (directory / "tokenizer.json").write_bytes(trained.data)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=360,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (directory / "spm.model").write_bytes(model.getvalue())
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"at", b" c", b" cat"]
    (directory / "ranks.model").write_bytes(rank_lines(tokens))
    return {
        "huggingface": {"path": str(directory / "tokenizer.json"), "eos": EOS, "bos": BOS},
        "sentencepiece": {"path": str(directory / "spm.model"), "eos": EOS, "bos": BOS},
        "tiktoken": {
            "path": str(directory / "ranks.model"),
            "encoding": "llama3",
            "eos": RANK_EOS,
            "bos": RANK_BOS,
        },
    }


def recipe(tokenizer: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "begun",
        "sources": [{"name": "s", "data": [{"id": id, "text": text} for id, text in TEXTS.items()]}],
        "split": {"valid_fraction": 0},
        "tokenizer": tokenizer,
        "builds": [{"name": "mega", "format": "megatron", "dtype": "int32"}],
        **more,
    }


def sequences(out: Path, build: str = "mega") -> list[list[int]]:
    found = MegatronFile(out / f"build/{build}/train/tokens")
    return [found.sequence(number).tolist() for number in range(len(found))]


def without(tokenizer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tokenizer.items() if key != "bos"}


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece", "tiktoken"])
def test_every_document_begins_with_it_and_no_literal_becomes_it(tmp_path, sections, kind):
    out = tokmill.run(recipe(sections[kind]), tmp_path / "with", workers=1).out
    plain = tokmill.run(recipe(without(sections[kind])), tmp_path / "without", workers=1).out
    facts = load_manifest(out / "tokenizer").facts
    bos, eos = facts["bos_id"], facts["eos_id"]
    assert "bos_id" not in load_manifest(plain / "tokenizer").facts
    documents = sequences(out)
    assert len(documents) == len(TEXTS)
    assert documents == [[bos, *ids] for ids in sequences(plain)]
    assert [(ids.count(bos), ids.count(eos), ids[0], ids[-1]) for ids in documents] == [(1, 1, bos, eos)] * 5


def test_counts_and_lengths_have_it(tmp_path, sections):
    out = tokmill.run(recipe(sections["huggingface"]), tmp_path / "out", workers=1).out
    documents = sequences(out)
    manifest = load_manifest(out / "tokens")
    assert manifest.counts["tokens"]["train"] == sum(map(len, documents))
    (entry,) = manifest.entries("lengths")
    assert load_table(out / "tokens" / entry.path).column("tokens").to_pylist() == list(map(len, documents))
    build = load_manifest(out / "build/mega")
    assert build.facts["tokenizer"]["bos_id"] == documents[0][0]


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece", "tiktoken"])
def test_a_column_is_traced_to_its_characters(tmp_path, sections, kind):
    more = {"pack": {"layout": "concat", "length": 16, "tail": "pad"}}
    more["builds"] = [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}]
    out = tokmill.run(recipe(sections[kind], **more), tmp_path / "out", workers=1).out
    documents = dict(zip(TEXTS, sequences(out), strict=True))
    spelled: dict[str, str] = dict.fromkeys(TEXTS, "")
    rows = np.fromfile(out / "build/rows/train/input_ids.mmap", "<i4").reshape(-1, 16)
    for row in range(len(rows)):
        for column in range(16):
            (found,) = tokmill.trace(out / "build/rows", row=row, column=column).documents
            if found.doc_id is None:
                continue
            first = found.tokens[0]
            ids = documents[found.doc_id]
            assert found.document_tokens == len(ids)
            assert rows[row, column] == ids[first]
            assert found.note is None
            assert list(found.ids) == (ids[first : first + 1] if first < len(ids) - 1 else [])
            text = TEXTS[found.doc_id][found.stretch.start : found.stretch.end]
            assert not (text and first in (0, len(ids) - 1))
            spelled[found.doc_id] += text
    assert spelled == TEXTS


@pytest.mark.parametrize("layout", ["concat", "document", "best_fit", "pad"])
def test_rows_of_every_layout_hold_what_lengths_say_and_pass_the_check(tmp_path, sections, layout):
    more = {"pack": {"layout": layout, "length": 32}, "builds": [{"name": "rows", "format": "memmap"}]}
    out = tokmill.run(recipe(sections["tiktoken"], **more), tmp_path / "out", workers=1).out
    facts = load_manifest(out / "tokenizer").facts
    bos, eos = facts["bos_id"], facts["eos_id"]
    rows = np.fromfile(out / "build/rows/train/input_ids.mmap", "<i4").reshape(-1, 32)
    if layout != "concat":
        assert (rows[:, 0] == bos).any()
    for row in rows:
        after = np.flatnonzero(row[1:] == bos)  # the column before a beginning
        assert (row[after] == eos).all()
    meta = json.loads((out / "build/rows/train/meta.json").read_text())
    assert meta["bos_id"] == bos
    answer = CliRunner().invoke(main, ["check", str(out / "build/rows")])
    assert answer.exit_code == 0, answer.output


def test_the_check_of_documents_tells_of_beginnings(tmp_path, sections):
    out = tokmill.run(recipe(sections["tiktoken"]), tmp_path / "out", workers=1).out
    answer = CliRunner().invoke(main, ["check", str(out / "build/mega")])
    assert answer.exit_code == 0
    assert "5 begin with 262, 0 times it stands elsewhere" in " ".join(answer.output.split())


def test_a_mixture_counts_it(tmp_path, sections):
    """A target of all tokens, as lengths have them, takes every document once."""
    documents = sequences(tokmill.run(recipe(sections["huggingface"]), tmp_path / "all", workers=1).out)
    total = sum(map(len, documents))
    out = tokmill.run(
        recipe(sections["huggingface"], mixture={"tokens": total}), tmp_path / "mixed", workers=1
    ).out
    assert sorted(sequences(out)) == sorted(documents)


@pytest.mark.parametrize(
    ("model", "bos"), [("byte_bpe", "<|begin|>"), ("bpe", "<s>"), ("unigram", "<|begin|>")]
)
def test_a_trained_tokenizer_has_it(tmp_path, model, bos):
    options = {"model": model, "vocab_size": 330}
    if model != "byte_bpe":
        options["hard_vocab_limit"] = False
    data = [{"id": f"d{n}", "text": f"{text} {n} <|begin|> <s>"} for n, text in enumerate(SENTENCES)]
    section = {"train": options, "eos": EOS, "bos": bos}
    asked = recipe(section, sources=[{"name": "s", "data": data}], dedup={"exact": False})
    out = tokmill.run(asked, tmp_path / "out", workers=1).out
    id = load_manifest(out / "tokenizer").facts["bos_id"]
    assert [(ids[0], ids.count(id)) for ids in sequences(out)] == [(id, 1)] * len(data)


def test_without_one_nothing_is_written_of_it(tmp_path, sections):
    plain = without(sections["huggingface"])
    first = tokmill.run(recipe(plain), tmp_path / "a", workers=1).out
    second = tokmill.run(recipe(plain | {"bos": None}), tmp_path / "b", workers=1).out
    assert load_manifest(first).config == load_manifest(second).config
    assert load_manifest(first / "build/mega").identity == load_manifest(second / "build/mega").identity
    assert '"bos' not in (first / "manifest.json").read_text() + (first / "tokens/manifest.json").read_text()


@pytest.mark.parametrize(
    ("bos", "error", "message"),
    [
        ("<bos>", EosMissing, r"no token '<bos>' in the vocabulary\n  next: set `bos` to one of <s>"),
        (9999, EosMissing, r"bos id 9999 is outside the vocabulary \(0 to 295\)\n  next: set `bos` to"),
        (
            "the",
            TokenizerError,
            r"'the' \(id \d+\) is also what .*could begin in its middle\n  next: set `bos`",
        ),
        ("the", TokenizerError, r"set `bos` to one of <s>, or set the id \d+ as bos to accept it"),
        ("</s>", TokenizerError, r"bos and eos are both '</s>' \(id \d\).*\n  next: leave `bos` out"),
    ],
)
def test_a_token_that_cannot_begin_documents_is_an_error(tmp_path, sections, bos, error, message):
    with pytest.raises(error, match=message):
        tokmill.run(recipe(sections["huggingface"] | {"bos": bos}), tmp_path / "out", workers=1)


def test_the_report_names_it_and_does_not_take_it_for_text(tmp_path, sections):
    out = tokmill.run(recipe(sections["huggingface"]), tmp_path / "out", workers=1).out
    written = tokmill.report(out)
    report = json.loads(written.figures.read_bytes())
    id = load_manifest(out / "tokenizer").facts["bos_id"]
    assert (report["tokenizer"]["bos"], report["tokenizer"]["bos_id"]) == (BOS, id)
    (row,) = report["fertility"]["source"]
    assert row["text_tokens"] == sum(len(ids) - 2 for ids in sequences(out))
    assert f"&lt;s&gt; = {id}" in written.page.read_text()
