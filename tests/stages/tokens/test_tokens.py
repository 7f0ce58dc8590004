"""The tokens step: one pass for all splits, a check that stops the run, control tokens,
lengths with bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokmill as mill
from mill import write_recipe
from tokmill.errors import TokenizerError
from tokmill.tokenizers import load
from tokmill.tokenizers.fast import Fast
from written import MegatronFile, load_manifest, load_table

TEXTS = [f"the cat number {number} sat, there\n" * (number % 4 + 1) for number in range(40)]
TEXTS[7] = "a literal <|endoftext|> in the text"
TEXTS[11] = "<|im_start|>user<|im_end|>"
TEXTS[13] = "\U00033111\n \n a letter of Unicode 17"


def corpus(directory: Path, **tokenizer: Any) -> Path:
    """Forty documents and a tokenizer file made here."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": f"doc-{number}", "text": text}) for number, text in enumerate(TEXTS)]
    (directory / "docs.jsonl").write_text("\n".join(lines) + "\n")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TEXTS, trainer)
    trained.save(str(directory / "tokenizer.json"))
    return write_recipe(
        directory,
        sources=[{"name": "docs", "domain": "web", "files": "docs.jsonl", "fields": {"id": "id"}}],
        normalize=None,
        filters=None,
        dedup={"exact": False},
        split={"valid_fraction": "0.3"},
        tokenizer={"path": "tokenizer.json", "eos": "<|endoftext|>", **tokenizer},
        builds=None,
    )


def milled(directory: Path, **tokenizer: Any) -> Path:
    return mill.run(corpus(directory, **tokenizer), directory / "out", workers=1).out


def reference(out: Path) -> Callable[[str], list[int]]:
    """The ids of ordinary text, by the library whose file it is, without the tokens that are not text."""
    content = json.loads((out / "tokenizer/tokenizer.json").read_text())
    plain = Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
    return lambda text: plain.encode(text, add_special_tokens=False).ids


def documents(out: Path) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Ids and the row of lengths, by doc_id, of all splits."""
    found = {}
    for entry in load_manifest(out / "tokens").entries("lengths"):
        path = out / "tokens" / entry.path
        sequences = MegatronFile(path.with_name(path.stem.replace("lengths-", "tokens-")))
        for number, row in enumerate(load_table(path).to_pylist()):
            found[row["doc_id"]] = (sequences.sequence(number).tolist(), row)
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return milled(tmp_path_factory.mktemp("tokens"))


def test_every_document_is_the_ids_of_the_reference_and_one_end(out: Path) -> None:
    encode = reference(out)
    found = documents(out)
    assert len(found) == len(TEXTS)
    for number, text in enumerate(TEXTS):
        ids, row = found[f"doc-{number}"]
        assert ids == [*encode(text), 0]
        assert (row["row"], row["tokens"], row["text_bytes"]) == (number, len(ids), len(text.encode()))


def test_both_splits_are_there_and_counted(out: Path) -> None:
    manifest = load_manifest(out / "tokens")
    found = documents(out)
    assert sum(manifest.counts["tokens"].values()) == sum(len(ids) for ids, _ in found.values())
    assert set(manifest.counts["tokens"]) == {"train", "valid"}
    assert (manifest.counts["in"], manifest.counts["kept"]) == (40, 40)


def test_literals_and_a_sample_are_checked_and_counted_alike_without_gigatoken(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_manifest(out / "tokens")
    assert 3 <= first.counts["checked"] <= 5  # documents 7 and 11, the least hash, and luck
    monkeypatch.setitem(__import__("sys").modules, "gigatoken", None)
    load._last_pinned.clear()
    second = load_manifest(milled(tmp_path) / "tokens")
    load._last_pinned.clear()
    assert second.counts == first.counts
    assert second.identity == first.identity


def test_the_engine_is_named(out: Path) -> None:
    pytest.importorskip("gigatoken")
    manifest = load_manifest(out / "tokens")
    assert manifest.environment["encoder"].startswith("gigatoken ")
    assert "," not in manifest.environment["encoder"]


def test_one_wrong_id_stops_the_run_and_names_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gigatoken")
    sound = Fast.encode

    def faulty(self: Fast, column: Any) -> Any:
        """gigatoken as it would be if it read documents with `<|im_start|>` differently."""
        encoded = sound(self, column)
        ids, at = encoded.ids.copy(), 0
        for row, length in enumerate(encoded.lengths.tolist()):
            begin, end = column.offsets[row : row + 2]
            if b"<|im_start|>" in column.data[begin:end].tobytes() and len(column.offsets) > 20:
                ids[at + 1] += 1
            at += length
        return encoded._replace(ids=ids)

    monkeypatch.setattr(Fast, "encode", faulty)
    load._last_pinned.clear()
    with pytest.raises(
        TokenizerError,
        match=r"docs document 'doc-11' \(row 11 of shard 00000\): token 1 is \d+ by gigatoken [\d.]+ and "
        r"\d+ by the huggingface reference\n  next: ",
    ):
        milled(tmp_path)
    assert not (tmp_path / "out/tokens/manifest.json").exists()


def test_control_tokens_are_read_when_the_recipe_asks_for_them(tmp_path: Path) -> None:
    load._last_pinned.clear()
    out = milled(tmp_path, control=["<|im_start|>", "<|im_end|>"])
    found = documents(out)
    encode = reference(out)
    assert found["doc-11"][0] == [1, *encode("user"), 2, 0]
    assert found["doc-7"][0] == [*encode(TEXTS[7]), 0], "it was not asked for this one"
    assert np.all([0 not in ids[:-1] for ids, _ in found.values()])
