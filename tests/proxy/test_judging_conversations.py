"""Conversations and control tokens are judged in the ids that a build has of them."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("jinja2")

import tokmill  # noqa: E402
from proxy.numpy_decoder import log_chances  # noqa: E402
from tokmill.errors import InputError  # noqa: E402
from tokmill.proxy.choices import choice_nats  # noqa: E402
from tokmill.proxy.held_out import load_held_out, load_text  # noqa: E402
from tokmill.proxy.items import Item  # noqa: E402
from tokmill.proxy.judging import bits_per_byte  # noqa: E402
from tokmill.proxy.model import Decoder  # noqa: E402
from tokmill.proxy.shapes import Shape  # noqa: E402
from tokmill.proxy.targets import open_target  # noqa: E402
from tokmill.proxy.widths import draw_weights  # noqa: E402
from written import read_row_index  # noqa: E402

CONTROLS = ["<|im_start|>", "<|im_end|>", "<sep>"]


def talk(number: int) -> list[dict[str, str]]:
    turns = ("user", f"Say {number}."), ("assistant", f"Ça: {number}{number}."), ("user", "thanks")
    return [{"role": role, "content": text} for role, text in turns]


TALKS = {f"c{number}": talk(number) for number in range(12)}
NOTES = {f"n{number}": f"Note {number}<sep>of the mill." for number in range(12)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("talks")
    lines = {
        "talks": [{"id": name, "messages": messages} for name, messages in TALKS.items()],
        "notes": [{"id": name, "text": text} for name, text in NOTES.items()],
    }
    for name, records in lines.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    recipe = {
        "name": "talks",
        "sources": [
            {"name": "talks", "domain": "chat", "files": "talks.jsonl", "fields": {"id": "id"}, "chat": {}},
            {"name": "notes", "domain": "prose", "files": "notes.jsonl", "fields": {"id": "id"}},
        ],
        "split": {"valid_fraction": "0.5"},
        "dedup": {"exact": False},
        "tokenizer": {
            "train": {"model": "byte_bpe", "vocab_size": 290, "control_symbols": CONTROLS},
            "control": ["<sep>"],
            "eos": "<|endoftext|>",
        },
        "pack": {"layout": "pad", "length": 96},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    (directory / "recipe.json").write_text(json.dumps(recipe))
    return tokmill.run(directory / "recipe.json", out=directory / "out", workers=1).out


@pytest.fixture(scope="module")
def model() -> Decoder:
    made = Decoder(Shape(32, 2, 16), 290, 96)
    draw_weights(made, 3)
    return made


def held_out_ids(run: Path) -> dict[str, tuple[list[int], list[int]]]:
    """By document, its ids in the build and whether each is learned; without the end of the document."""
    split = run / "build/rows/valid"
    meta = json.loads((split / "meta.json").read_bytes())
    shape = meta["n_seqs"], meta["seq_len"]
    ids = np.fromfile(split / "input_ids.mmap", meta["dtype"]).reshape(shape)
    mask = np.fromfile(split / "loss_mask.mmap", np.uint8).reshape(shape)
    found = {}
    for row, docs in read_row_index(split / "index.jsonl.zst"):
        for span in docs:
            places = slice(span.start, span.end - 1)
            found[span.doc_id] = ids[row, places].tolist(), mask[row, places].tolist()
    return found


def slow_bits(model: Decoder, ids: list[int], learned: list[int], eos: int) -> float:
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    chances = log_chances(weights, 16, [eos, *ids])
    return -math.fsum(chances[at, id] for at, id in enumerate(ids) if learned[at]) / math.log(2)


def test_bits_are_those_of_the_ids_that_are_learned_in_the_build(run: Path, model: Decoder) -> None:
    target = open_target("a", run / "build/rows")
    texts, _ = load_held_out([target, target], whose="first", by="domain", max_bytes=1 << 20)
    assert [one.name for one in texts] == ["chat", "prose"]
    eos = target.train.facts.eos_id
    assert eos is not None
    stored = held_out_ids(run)
    said = {name: talk[1]["content"] for name, talk in TALKS.items()} | NOTES
    for judged, names in zip(texts, (TALKS, NOTES), strict=True):
        mine = [name for name in names if name in stored]
        assert len(mine) > 2
        size = sum(len(said[name].encode()) for name in mine)
        assert judged.bytes == size, "of a conversation its answers"
        bits = math.fsum(slow_bits(model, *stored[name], eos) for name in mine)
        found = bits_per_byte(model, judged, target.tokenizer, target.controls, eos, "cpu")
        assert found == pytest.approx(bits / size, rel=1e-5)
    assert sum(stored[next(name for name in TALKS if name in stored)][1]) < 30


def test_all_of_a_conversation_counts_among_the_bytes_of_a_group(run: Path) -> None:
    """What goes through the models is the whole text, of which the answers are a small part."""
    target = open_target("a", run / "build/rows")
    whole, _ = load_held_out([target, target], whose="first", by="domain", max_bytes=1 << 20)
    some, _ = load_held_out([target, target], whose="first", by="domain", max_bytes=150)
    for chosen, every in zip(some, whole, strict=True):
        sizes = [len(re.sub("[\ufdd0-\ufdd4]", "", text).encode()) for text in every.texts]
        enough = next(at for at, end in enumerate(itertools.accumulate(sizes), 1) if end >= 150)
        assert len(chosen.texts) == enough
        assert chosen.texts == every.texts[:enough]


def test_choices_have_the_control_tokens_of_the_build(run: Path, model: Decoder) -> None:
    target = open_target("a", run / "build/rows")
    encode = target.tokenizer.encode
    sep = target.tokenizer.token_id("<sep>")
    assert sep is not None
    prompt, choices = "Note 7<sep>of the", (" mill", "<sep>mill")
    (found,) = choice_nats(model, [Item(prompt, choices, 0)], target.tokenizer, target.controls, sep, "cpu")
    before = [*encode(["Note 7"]).ids.tolist(), sep]
    first = encode(["of the mill"]).ids.tolist()
    own = len(first) - len(encode(["of the"]).ids.tolist())
    second = [*encode(["of the"]).ids.tolist(), sep, *encode(["mill"]).ids.tolist()]
    for nats, ids, count in zip(found, (first, second), (own, 1 + len(encode(["mill"]).ids)), strict=True):
        whole = [*before, *ids]
        learned = [0] * (len(whole) - count) + [1] * count
        assert nats == pytest.approx(slow_bits(model, whole, learned, sep) * math.log(2), rel=1e-5)


def test_a_file_with_marks_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a\ufdd2b")
    with pytest.raises(InputError, match="noncharacter"):
        load_text(tmp_path / "mine.txt")
