"""Tokens of documents that an earlier run encoded: copied, whoever is kept by now, and proven where
they were written to."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokmill as mill
from mill import write_recipe
from written import MegatronFile, load_manifest, load_table

TEXTS = [f"the cat number {number} sat, there\n" * (number % 7 + 1) for number in range(300)]
TEXTS[7] = "a literal <|endoftext|> in the text, and no more of it"
TEXTS[200] = "short <|im_start|>"
TEXTS[30:60] = [
    f"write to cat{number}@example.org about {number} " * (number % 3 + 1) for number in range(30)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return path


def recipe(home: Path, tokenizer: Path, least: int, **around: str) -> Path:
    """Of documents of at least so many characters; addresses are redacted, so that there are edits."""
    lines = [json.dumps({"id": f"doc-{number}", "text": text}) for number, text in enumerate(TEXTS)]
    (home / "docs.jsonl").write_text("\n".join(lines) + "\n")
    return write_recipe(
        home,
        sources=[{"name": "docs", "domain": "web", "files": "docs.jsonl", "fields": {"id": "id"}}],
        filters=[{"measure": "chars", "min": least, "reason": "too_short"}],
        redact=["email"],
        dedup={"exact": False},
        split={"valid_fraction": "0.2"},
        tokenizer={"path": str(tokenizer), "eos": "<|endoftext|>", **around},
        builds=None,
    )


def tokens_of(out: Path) -> Any:
    """What the manifest says, but for the time and place."""
    manifest = load_manifest(out / "tokens")
    files = [(entry.path, entry.rows, entry.content_sha256) for entry in manifest.files]
    return files, manifest.counts, manifest.identity


def documents(out: Path) -> dict[str, list[int]]:
    found = {}
    for entry in load_manifest(out / "tokens").entries("lengths"):
        path = out / "tokens" / entry.path
        sequences = MegatronFile(path.with_name(path.stem.replace("lengths-", "tokens-")))
        for number, row in enumerate(load_table(path).to_pylist()):
            found[row["doc_id"]] = sequences.sequence(number).tolist()
    return found


@pytest.mark.parametrize("around", [{}, {"bos": "<|im_start|>"}], ids=["eos", "bos and eos"])
def test_documents_come_and_go_and_the_tokens_are_those_of_a_fresh_run(
    tmp_path: Path, tokenizer: Path, around: dict[str, str]
) -> None:
    for number, least in enumerate((40, 90, 10, 120, 60)):
        path = recipe(tmp_path, tokenizer, least, **around)
        mill.run(path, tmp_path / "grown", workers=1)
        mill.run(path, tmp_path / f"fresh-{number}", workers=1, lean=True)
        assert tokens_of(tmp_path / "grown") == tokens_of(tmp_path / f"fresh-{number}"), least


def tamper(cache: Path, *, is_told: bool) -> None:
    """Other ids in the files that are kept, of the size that they had."""
    for folder in cache.glob("tokens/*.tokens"):
        before = (folder / "note.json").stat().st_mtime_ns - 10**9
        for path in folder.glob("*.bin"):
            ids = np.fromfile(path, np.uint16)
            ids[-4:-1] ^= 1
            path.unlink()  # not the file of the run, which has another name for it
            path.write_bytes(ids.tobytes())
            if not is_told:
                os.utime(path, ns=(before, before))


def test_what_is_known_is_copied_and_neither_encoded_nor_read_to_be_proven(
    tmp_path: Path, tokenizer: Path
) -> None:
    path = recipe(tmp_path, tokenizer, 40)
    out = mill.run(path, tmp_path / "out", workers=1).out
    before = documents(out)
    tamper(tmp_path / "out.cache", is_told=False)
    mill.run(recipe(tmp_path, tokenizer, 90), out, workers=1)
    after = documents(out)
    changed = [name for name, ids in after.items() if ids != before[name]]
    assert 0 < len(changed) <= 2, "the last document of a split has what lay in the cache"


@pytest.mark.parametrize("options", [{}, {"verify": True}], ids=["written to since", "all is verified"])
def test_other_bytes_are_seen_where_the_file_was_written_to_or_all_is_verified(
    tmp_path: Path, tokenizer: Path, options: dict[str, bool]
) -> None:
    out = mill.run(recipe(tmp_path, tokenizer, 40), tmp_path / "out", workers=1).out
    tamper(tmp_path / "out.cache", is_told=not options)
    path = recipe(tmp_path, tokenizer, 90)
    mill.run(path, out, workers=1, **options)
    mill.run(path, tmp_path / "fresh", workers=1, lean=True)
    assert tokens_of(out) == tokens_of(tmp_path / "fresh")


def test_a_note_that_says_less_than_this_version_needs_is_no_note(tmp_path: Path, tokenizer: Path) -> None:
    out = mill.run(recipe(tmp_path, tokenizer, 40), tmp_path / "out", workers=1).out
    for note in (tmp_path / "out.cache").rglob("note.json"):
        said = json.loads(note.read_bytes()[32:])
        del said["told"]
        data = json.dumps(said).encode()
        note.write_bytes(hashlib.sha256(data).digest() + data)
    path = recipe(tmp_path, tokenizer, 90)
    mill.run(path, out, workers=1)
    mill.run(path, tmp_path / "fresh", workers=1, lean=True)
    assert tokens_of(out) == tokens_of(tmp_path / "fresh")
