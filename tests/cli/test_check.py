"""`tokmill check`: a build that is in order passes, and each fault is found by the check it belongs to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import tokmill as mill
from loader.builds import EOS, FORMATS, documents, write_build
from tokmill.audit.check import batch_faults
from tokmill.cli import main
from tokmill.loader import collate


def found_by(build, **how) -> dict[str, bool]:
    return {finding.check: finding.ok for finding in mill.check(build, steps=0, **how).findings}


@pytest.mark.parametrize("format", FORMATS)
def test_a_build_that_is_in_order_passes_and_a_model_learns_it(format, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(40), "valid": documents(9, seed=4)})
    steps = "300" if format == "memmap" else "0"
    shown = CliRunner().invoke(main, ["check", str(build), "--json", "--verify", "hashes", "--steps", steps])
    report = json.loads(shown.stdout)
    assert report["ok"], report
    assert shown.exit_code == 0
    checks = [
        "files",
        "ids",
        "ends",
        "sizes",
        "members",
        "batch",
        *(["overfit"] if format == "memmap" else []),
    ]
    assert [f["check"] for f in report["findings"]] == 2 * checks
    if format == "memmap":
        assert "steps of AdamW" in report["findings"][6]["detail"]


def test_what_was_found_is_shown(tmp_path):
    build = write_build(tmp_path / "b", "memmap", {"train": documents(40)})
    shown = CliRunner().invoke(main, ["check", str(build), "--steps", "0"])
    assert shown.exit_code == 0
    assert "✓ train    files    memmap, " in shown.stdout
    assert "overfit" not in shown.stdout
    (build / "train/input_ids.mmap").write_bytes(b"")
    shown = CliRunner().invoke(main, ["check", str(build / "train")])
    assert shown.exit_code == 1
    assert "✗ train    files" in shown.stdout


def test_each_fault_is_found_by_its_check(tmp_path):
    docs = documents(40)
    beyond = write_build(tmp_path / "a", "megatron", {"train": [*docs, [700, EOS]]})
    others = dict.fromkeys(("files", "ends", "sizes", "members", "batch"), True)
    assert found_by(beyond) == {**others, "ids": False}
    inside = write_build(tmp_path / "b", "token_cache", {"train": [*docs, [5, EOS, 6, EOS]]})
    assert not found_by(inside)["ends"]
    unended = write_build(tmp_path / "c", "parquet", {"train": [*docs, [5, 6]]})
    assert not found_by(unended)["ends"]
    rows = write_build(tmp_path / "d", "memmap", {"train": [*docs, [5, EOS, 6, EOS]]})
    assert not found_by(rows)["ends"]
    cut = write_build(tmp_path / "e", "npy", {"train": [[5, 6], *docs]})
    assert not found_by(cut)["ends"]


@pytest.mark.parametrize("format", ["token_cache", "memmap"])
def test_an_end_token_that_texts_may_hold_is_told_and_no_fault(format, tmp_path):
    """As `tokenizer.control` has it."""
    docs = [*documents(40), [5, EOS, 6, EOS]]
    for name, tokenizer, is_fine in (("a", {}, False), ("b", {"controls": {"</s>": EOS}}, True)):
        build = write_build(tmp_path / name, format, {"train": docs}, tokenizer)
        (found,) = (one for one in mill.check(build, steps=0).findings if one.check == "ends")
        assert found.ok == is_fine
    assert "1 times it stands inside one" in found.detail


def test_wrong_batches_do_not_pass_for_right_ones():
    examples = [{"ids": np.array([5, EOS, 6, 7])}, {"ids": np.array([8, 9])}]
    for mask in ("tokens", "keys", "causal", "documents"):
        targets = "documents" if mask == "documents" else "stream"
        batch = collate(examples, 0, 5, mask=mask, targets=targets, eos_id=EOS)
        assert list(batch_faults(examples, batch, mask, EOS)) == []
        for name in ("targets", "attn_mask"):
            for place in np.ndindex(batch[name].shape):
                wrong = {**batch, name: batch[name].copy()}
                wrong[name][place] = not wrong[name][place] if name == "attn_mask" else 99
                assert len(list(batch_faults(examples, wrong, mask, EOS))) == 1
