"""A folder of `.npy` shards that somebody else made: read by their headers, refused where they disagree."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

import tokmill as mill
from tokmill.cli import main
from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.loader import Batches, list_splits, open_dataset


def write_shards(folder, dtype, counts=(5, 3, 7), length=16, names="shard_{:05d}.npy"):
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(4)
    shards = [draw.integers(3, 250, (count, length)).astype(dtype) for count in counts]
    for number, shard in enumerate(shards):
        np.save(folder / names.format(number), shard)
    return np.concatenate(shards)


@pytest.mark.parametrize("dtype", ["int32", "uint16", "int64", "uint8", ">i4"])
def test_rows_are_those_of_the_shards_in_their_order(dtype, tmp_path):
    rows = write_shards(tmp_path / "bare", dtype)
    ds = open_dataset(tmp_path / "bare")
    assert (len(ds), ds.facts.seq_len, ds.store.format) == (15, 16, "npy")
    assert np.dtype(ds.facts.dtype) == np.dtype(dtype)
    assert [example["ids"].tolist() for example in ds] == rows.tolist()
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301
    assert again[7]["ids"].tolist() == rows[7].tolist()
    seen = [row for batch in Batches(ds, batch_size=4, seed=3) for row in batch["tokens"].tolist()]
    assert sorted(seen) == sorted(rows.tolist())
    assert seen != rows.tolist()
    batch = next(iter(Batches(ds, batch_size=2, shuffle="none")))
    assert (batch["tokens"].dtype, batch["targets"][:, :-1].tolist()) == (np.int32, rows[:2, 1:].tolist())


def test_the_tenth_shard_comes_after_the_second(tmp_path):
    rows = write_shards(tmp_path / "bare", "int32", counts=(1,) * 12, names="part-{}.npy")
    assert [example["ids"].tolist() for example in open_dataset(tmp_path / "bare")] == rows.tolist()


def test_folders_of_splits_are_splits(tmp_path):
    train = write_shards(tmp_path / "bare/train", "int32")
    valid = write_shards(tmp_path / "bare/val", "int32", counts=(2,))
    assert list_splits(tmp_path / "bare") == ["train", "val"]
    assert len(open_dataset(tmp_path / "bare")) == len(train)
    assert open_dataset(tmp_path / "bare", "valid")[1]["ids"].tolist() == valid[1].tolist()


def test_the_end_of_documents_is_taken_at_the_trainers_word(tmp_path):
    rows = write_shards(tmp_path / "bare", "int32")
    rows[0, 4] = 2
    np.save(tmp_path / "bare/shard_00000.npy", rows[:5])
    ds = open_dataset(tmp_path / "bare", eos_id=2)
    batch = next(iter(Batches(ds, batch_size=1, shuffle="none", mask="documents")))
    assert not batch["attn_mask"][0, 5, 4]
    assert batch["attn_mask"][0, 4, 3]


@pytest.mark.parametrize(
    ("shard", "told"),
    [
        (np.zeros((2, 8), "int32"), "rows of 8 int32, but those of shard_00000.npy are of 16 int32"),
        (np.zeros((2, 16), "int64"), "rows of 16 int64, but those of shard_00000.npy are of 16 int32"),
        (np.zeros(16, "int32"), "holds int32 of shape (16,): not rows of ids"),
        (np.zeros((2, 16), "float32"), "holds float32 of shape (2, 16): not rows of ids"),
        (np.asfortranarray(np.zeros((2, 16), "int32")), "column after column"),
        (np.array([["a"]], object), "not rows of ids"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(shard, told, tmp_path):
    write_shards(tmp_path / "bare", "int32")
    np.save(tmp_path / "bare/shard_00001.npy", shard, allow_pickle=True)
    with pytest.raises(InputError, match=r"shard_00001\.npy") as caught:
        open_dataset(tmp_path / "bare")
    assert told in str(caught.value)


def test_a_shard_that_was_cut_is_refused(tmp_path):
    write_shards(tmp_path / "bare", "int32")
    path = tmp_path / "bare/shard_00002.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptFile, match="but its header describes"):
        open_dataset(tmp_path / "bare")
    path.write_bytes(b"not one at all")
    with pytest.raises(CorruptFile, match="is not a NumPy file"):
        open_dataset(tmp_path / "bare")


def test_an_id_beyond_what_batches_hold_is_an_error_and_does_not_wrap(tmp_path):
    rows = write_shards(tmp_path / "bare", "int64")
    rows[14, 3] = 1 << 32
    np.save(tmp_path / "bare/shard_00002.npy", rows[8:])
    with pytest.raises(VocabTooLarge, match="4,294,967,296 does not fit int32"):
        list(Batches(open_dataset(tmp_path / "bare"), batch_size=4))


def test_check_and_peek_say_what_is_known(tmp_path):
    write_shards(tmp_path / "bare", "uint16")
    shown = CliRunner().invoke(main, ["check", str(tmp_path / "bare"), "--json", "--steps", "0"])
    report = json.loads(shown.stdout)
    assert shown.exit_code == 0, report
    told = {finding["check"]: finding["detail"] for finding in report["findings"]}
    assert told["files"] == "npy, 15 examples, uint16; nothing says tokenizer_sha256, eos_id, vocab_size"
    assert told["members"].startswith("not compared: index.jsonl.zst")
    shown = CliRunner().invoke(main, ["peek", str(tmp_path / "bare")])
    assert shown.exit_code != 0
    assert "give its file (`--tokenizer`)" in shown.stderr


def test_what_a_killed_build_left_is_not_taken_for_a_bare_folder(tmp_path):
    write_shards(tmp_path / "b/train", "int32")
    (tmp_path / "b/receipts").mkdir()
    with pytest.raises(InputError, match="not finished"):
        open_dataset(tmp_path / "b")
    assert not mill.check(tmp_path / "b/train", steps=0).ok


def test_text_of_a_bare_row_is_shown_with_a_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(300)}, unk_token="w0"))
    made.save(str(tmp_path / "words.json"))
    rows = write_shards(tmp_path / "bare", "int32")
    shown = CliRunner().invoke(
        main,
        ["peek", str(tmp_path / "bare"), "--row", "6", "--tokenizer", str(tmp_path / "words.json"), "--json"],
    )
    (piece,) = json.loads(shown.stdout)["pieces"]
    assert piece["text"].split() == [f"w{id}" for id in rows[6].tolist()]
