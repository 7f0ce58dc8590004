"""`tokmill peek`: the text of a row, document by document, with the tokenizer that made it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from loader.builds import EOS, FORMATS, ROW_FORMATS, write_build
from tokmill.cli import main
from written import file_sha256

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "The mill stands by the river.",
    "It turns all day.",
    "Ça tourne aussi en français.",
    "A \x1b[31mred\x07 word.",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Byte-level BPE; id 2 is its end of document."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<pad>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def build_of(tmp_path, tokenizer, format):
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    docs = [[*made.encode(text).ids, EOS] for text in TEXTS]
    facts = {"sha256": file_sha256(tokenizer), "vocab_size": made.get_vocab_size()}
    splits = {"train": docs * 3, "valid": docs}
    return write_build(tmp_path / "b", format, splits, tokenizer=facts, seq_len=64, **facts)


def peeked(*arguments):
    shown = CliRunner().invoke(main, ["peek", *map(str, arguments), "--json"])
    return shown.exit_code, json.loads(shown.stdout)


@pytest.mark.parametrize("format", FORMATS)
def test_the_text_of_a_row_is_that_of_its_documents(format, tmp_path, tokenizer):
    build = build_of(tmp_path, tokenizer, format)
    status, found = peeked(build, "--row", 0, "--tokenizer", tokenizer)
    assert status == 0
    assert found["split"] == "train"
    pieces = found["pieces"]
    assert (pieces[0]["doc_id"], pieces[0]["source"]) == ("doc-0", "web")
    assert len(pieces) > 2 if format in ROW_FORMATS else len(pieces) == 1
    assert pieces[0]["text"] == TEXTS[0] + "<|endoftext|>"
    assert pieces[0]["is_ended"]
    status, last = peeked(build, "--split", "valid", "--row", -1, "--tokenizer", tokenizer)
    assert last["row"] == last["rows"] - 1
    assert last["pieces"][-1]["text"].endswith("word.<|endoftext|>")
    if format in ROW_FORMATS:
        assert last["padding"] == 64 - last["length"] > 0


def test_documents_have_their_colours_and_cannot_talk_to_the_terminal(tmp_path, tokenizer):
    build = build_of(tmp_path, tokenizer, "memmap")
    shown = CliRunner().invoke(main, ["peek", str(build), "--tokenizer", str(tokenizer)])
    assert shown.exit_code == 0
    assert "train row 0 of " in shown.stdout
    assert "── [0:" in shown.stdout
    assert "doc-0 of web" in shown.stdout
    assert "continues or was truncated" in shown.stdout
    shown = CliRunner().invoke(main, ["peek", str(build), "--row", "-1", "--tokenizer", str(tokenizer)])
    assert "\x07" not in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "�[31mred� word." in shown.stdout


def test_what_cannot_be_shown_says_why(tmp_path, tokenizer):
    build = build_of(tmp_path, tokenizer, "memmap")
    status, found = peeked(build, "--row", 99, "--tokenizer", tokenizer)
    assert status == 1
    assert "there is no row 99" in found["error"]["what"]
    status, found = peeked(build)
    assert "the tokenizer of this build is not beside it" in found["error"]["what"]
    other = tmp_path / "tokenizer.json"
    other.write_bytes(tokenizer.read_bytes() + b"\n")
    status, found = peeked(build, "--tokenizer", other)
    assert found["error"]["kind"] == "TokenizerMismatch"


def test_the_tokenizer_that_the_run_left_is_found(tmp_path, tokenizer):
    build = build_of(tmp_path / "run/build", tokenizer, "memmap")
    meta = build / "train/meta.json"
    (build / "manifest.json").unlink()
    facts = {**json.loads(meta.read_text()), "tokenizer_path": "../../../tokenizer/tokenizer.json"}
    meta.write_text(json.dumps(facts))
    (tmp_path / "run/tokenizer").mkdir()
    (tmp_path / "run/tokenizer/tokenizer.json").write_bytes(tokenizer.read_bytes())
    assert peeked(build)[0] == 0
