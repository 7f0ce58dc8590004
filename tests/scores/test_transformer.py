"""A transformer as a score: equal to transformers' own forward pass, text by text; every damage told."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="the extra `transformer` is not installed")
pytest.importorskip("transformers", reason="the extra `transformer` is not installed")

from scores.tiny_transformer import (
    BAD,
    GOOD,
    build_bert,
    build_classifier,
    build_tokenizer,
    forward,
    save_model,
)
from tokmill.errors import CorruptFile, InputError, MissingExtra, RecipeError, TokmillError
from tokmill.schema import StringColumn, string_column
from tokmill.scores.transformer import BATCHING, TransformerOptions, TransformerScorer, open_transformer
from tokmill.scores.transformerfile import model_digest, model_files, most_tokens

TEXTS = [
    "the good bright day",
    "the bad murky day",
    "a fine problem of many bad days",
    "",
    "How many passengers can cross in a day? " * 40,
    "ça tourne — \U0001f600 naïve",
    "good",
    *(f"{'good ' * (number % 7)}{'dull ' * (number % 5)}day {number}" for number in range(40)),
]
# float32 sums of 64 products; a score is rounded to 1/10,000, so half of that and the last bits beside
TOLERANCE = 6e-5


def column(texts: list[str]) -> StringColumn:
    return string_column(pa.array(texts, pa.large_string()))


def opened(directory: Path, **options: Any) -> TransformerScorer:
    names = model_files(directory)
    options = {"names": names, "device": "cpu", **options}
    return open_transformer(TransformerOptions(**options), [directory / name for name in names])


@pytest.fixture(scope="module")
def value(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("value"), ["LABEL_0"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("pair"), ["poor", "rich"])


def test_a_value_is_that_of_transformers_on_the_text_alone(value: Path) -> None:
    found = opened(value).score(column(TEXTS))
    assert found.dtype == np.float64
    for text, own in zip(TEXTS, found.tolist(), strict=True):
        assert own == pytest.approx(forward(value, text)[0], abs=TOLERANCE)
    assert len(set(found.tolist())) > 20
    good, bad = (opened(value).score(column([f"the {word} day" for word in words])) for words in (GOOD, BAD))
    assert good.min() > bad.max()  # it was trained to tell them apart


@pytest.mark.parametrize("label", ["rich", "1"])
def test_a_label_is_named_or_numbered(pair: Path, label: str) -> None:
    found = opened(pair, label=label).score(column(TEXTS))
    logits = opened(pair, label=label, output="logit").score(column(TEXTS))
    for text, own, logit in zip(TEXTS, found.tolist(), logits.tolist(), strict=True):
        poor, rich = forward(pair, text)
        assert own == pytest.approx(1 / (1 + math.exp(poor - rich)), abs=TOLERANCE)
        assert logit == pytest.approx(rich, abs=TOLERANCE)


def test_any_batch_gives_the_same_scores(value: Path) -> None:
    scorer = opened(value)
    whole = scorer.score(column(TEXTS))
    single = np.concatenate([scorer.score(column([text])) for text in TEXTS])
    turned = scorer.score(column(TEXTS[::-1]))[::-1]
    assert np.array_equal(whole, turned)
    # what a batch changes is far below the step that scores are rounded to: at most a seam lies between
    assert np.abs(whole - single).max() <= 1.01e-4
    assert (whole != single).mean() < 0.05
    assert scorer.score(column([])).shape == (0,)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2", "gpt2"])
def test_rows_padded_as_for_a_gpu_give_what_each_text_gives_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, by the batches of a GPU: groups, large batches, rows that are filled up; decoders are not."""
    build_classifier(kind).save_pretrained(tmp_path)
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    alone = [forward(tmp_path, text, 60)[1] for text in TEXTS]
    monkeypatch.setitem(BATCHING, "cpu", replace(BATCHING["cuda"], group=11))
    scorer = opened(tmp_path, label="1", output="logit", max_tokens=60)
    found = scorer.values(column(TEXTS))
    assert np.abs(found - alone).max() < 2e-6
    assert np.std(found) > 1e-3


def test_a_long_text_is_tokenized_as_if_it_were_whole(value: Path) -> None:
    """Most of a long text is not tokenized; what is looked at is what the tokenizer says of all of it."""
    shapes = ["good day ", "x" * 70 + " ", " " * 50 + "bad", "abcdefgh", "é—", "\n" * 30 + "clear "]
    texts = [(shape * 4000)[:size] for shape in shapes for size in (399, 400, 401, 480, 481, 3000, 20_000)]
    scorer = opened(value, max_tokens=50)
    plain = build_tokenizer()
    plain.enable_truncation(50)
    assert [list(ids) for ids in scorer.tokens(column(texts))] == [plain.encode(text).ids for text in texts]


def test_bfloat16_is_near_and_rounded(value: Path) -> None:
    found = opened(value, precision="bfloat16").score(column(TEXTS))
    assert np.abs(found - opened(value).score(column(TEXTS))).max() < 0.1
    assert np.array_equal(found, found.round(2))


def test_only_the_first_tokens_are_looked_at(value: Path) -> None:
    scorer = opened(value, max_tokens=10)
    long = "good " * 8
    assert scorer.score(column([long + "bad " * 50])) == scorer.score(column([long]))
    # 64 positions are all that the model has
    assert opened(value).score(column(["day " * 62 + "bad " * 9])) == opened(value).score(
        column(["day " * 62])
    )
    assert scorer.score(column(["x" * 5_000_000])).shape == (1,)  # not a second: it is cut before


def test_a_decoder_without_padding_and_in_parts_is_read_too(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=build_tokenizer().get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        num_labels=3,
        pad_token_id=None,
        bos_token_id=2,
        eos_token_id=3,
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path, max_shard_size="20KB")
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert len(model_files(tmp_path)) > 4
    found = opened(tmp_path, label="LABEL_2", output="logit").score(column(TEXTS))
    for text, own in zip(TEXTS, found.tolist(), strict=True):
        assert own == pytest.approx(forward(tmp_path, text, 128)[2], abs=TOLERANCE)


def test_the_digest_is_what_sha256sum_tells_of_its_own_lines(value: Path) -> None:
    names = model_files(value)
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    digests = [hashlib.sha256((value / name).read_bytes()).hexdigest() for name in names]
    lines = "".join(f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True))
    assert model_digest(names, digests) == hashlib.sha256(lines.encode()).hexdigest()


def test_the_most_tokens_are_those_of_the_model_or_its_tokenizer() -> None:
    assert most_tokens({"model_type": "bert", "max_position_embeddings": 512}, {}) == 512
    roberta = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert most_tokens(roberta, {"model_max_length": 1e30}) == 512
    assert most_tokens({}, {"model_max_length": 100}) == 100
    assert most_tokens({}, {}) is None


# --- faults ---


def copied(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


def _pickle(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _no_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def _no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def _cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _nan(directory: Path) -> None:
    model = build_bert(["LABEL_0"])
    model.bert.encoder.layer[1].output.dense.weight.data[3, 4] = float("nan")
    model.save_pretrained(directory)


def _headless(directory: Path) -> None:
    build_bert(["LABEL_0"]).bert.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))


def _wider(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 65}))


def _other_kind(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (directory / "mine.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\n")
    (directory / "config.json").write_text(json.dumps({**config, **own}))


def _no_json(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def _no_words(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (_pickle, InputError, "pytorch_model.bin, a pickle"),
        (_no_tokenizer, InputError, "has no tokenizer.json"),
        (_no_config, InputError, "has no config.json"),
        (_cut, CorruptFile, "cannot be opened"),
        (_nan, CorruptFile, "encoder.layer.1.output.dense.weight hold NaN"),
        (_headless, CorruptFile, "have no classifier"),
        (_wider, CorruptFile, "intermediate|shape|size"),
        (_other_kind, InputError, "no sequence classifier of the kind 'mine'.*code that comes"),
        (_no_json, CorruptFile, "no JSON object"),
        (_no_words, CorruptFile, "is no tokenizer"),
    ],
)
def test_a_damaged_model_is_told(value: Path, tmp_path: Path, damage: Any, error: Any, told: str) -> None:
    directory = copied(value, tmp_path)
    damage(directory)
    with pytest.raises(error, match=told) as caught:
        opened(directory)
    assert str(directory) in str(caught.value)
    assert "tokmill-model-" not in str(caught.value)
    assert caught.value.next
    assert not (directory / "ran").exists()


def test_an_index_that_leads_elsewhere_is_refused(value: Path, tmp_path: Path) -> None:
    directory = copied(value, tmp_path)
    (directory / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"weight_map": {"classifier.weight": "../outside.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptFile, match="names no files of weights"):
        opened(directory)


@pytest.mark.parametrize("label", ["best", "2", None, "-1"])
def test_a_label_that_is_not_there_is_told_with_those_that_are(pair: Path, label: str | None) -> None:
    with pytest.raises(RecipeError, match=r"(no label|more than one)(.|\n)*poor, rich"):
        opened(pair, label=label)


def test_a_gpu_that_is_not_there_is_told(value: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(TokmillError, match="there is no GPU"):
        opened(value, device="cuda").score(column(["a"]))


def test_without_the_extra_it_is_told_what_to_install(value: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as where it is not installed
    with pytest.raises(MissingExtra, match=r"pip install '\.\[transformer\]'"):
        opened(value)
