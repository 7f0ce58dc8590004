"""Names of Hugging Face transformers: labels that the model shifts, and the loss that our targets give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.builds import EOS, VOCAB, documents, write_build, write_split
from tokmill.errors import EosMissing, InputError
from tokmill.loader import Batches, collate, open_dataset

PAD = 0

examples = st.lists(st.lists(st.sampled_from([EOS, 5, 6, 7]), max_size=9), max_size=5)
lengths = st.one_of(st.none(), st.integers(1, 12))


def slow_batch(rows, width, targets):
    """Place by place, from what transformers documents: nothing of ours."""
    wanted = {"input_ids": [], "labels": [], "attention_mask": [], "position_ids": []}
    for row in rows:
        row = row[:width]
        ids, labels, mask, positions, position = [], [], [], [], -1
        for c in range(width):
            is_id = c < len(row)
            is_first = c > 0 and (row[c - 1] == EOS if is_id else c == len(row))
            position = 0 if is_first else position + 1
            ids.append(row[c] if is_id else PAD)
            labels.append(row[c] if is_id and not (is_first and targets == "documents") else -100)
            mask.append(int(is_id))
            positions.append(position)
        for name, values in zip(wanted, (ids, labels, mask, positions), strict=True):
            wanted[name].append(values)
    return wanted


@given(
    rows=examples,
    length=lengths,
    targets=st.sampled_from(["stream", "documents"]),
    mask=st.sampled_from(["tokens", "documents", "none"]),
    varlen=st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_every_place_is_what_transformers_means_by_it(rows, length, targets, mask, varlen):
    how = {"targets": targets, "mask": mask, "varlen": varlen, "eos_id": EOS, "too_long": "cut"}
    batch = collate(rows, PAD, length, names="huggingface", **how)
    width = max(map(len, rows), default=0) if length is None else length
    wanted = slow_batch(rows, width, targets)
    if mask != "tokens":
        del wanted["attention_mask"]
    if mask != "documents" and not varlen:
        del wanted["position_ids"]
    bounds = {name: batch.pop(name) for name in list(batch) if name[:4] in ("cu_s", "max_")}
    assert {name: array.tolist() for name, array in batch.items()} == wanted
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}
    assert sorted(bounds) == (["cu_seq_lens_k", "cu_seq_lens_q", "max_length_k", "max_length_q"] * varlen)
    if varlen:
        first = np.flatnonzero(np.array(wanted["position_ids"], int).reshape(-1) == 0).tolist()
        assert bounds["cu_seq_lens_q"].tolist() == [*first, len(rows) * width]
        assert bounds["max_length_q"] == max(np.diff([*first, len(rows) * width]), default=0)


@pytest.mark.parametrize("format", ["memmap", "npy", "parquet", "token_cache"])
@pytest.mark.parametrize("targets", ["stream", "documents"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_labels_are_our_targets_one_column_later_in_every_format(format, targets, prefetch, tmp_path):
    write_split(tmp_path / "train", format, documents(40))
    ds = open_dataset(tmp_path / "train")
    ours = list(Batches(ds, 4, 7, targets=targets, prefetch=prefetch))
    theirs = list(Batches(ds, 4, 7, targets=targets, prefetch=prefetch, names="huggingface"))
    assert len(ours) == len(theirs) > 3
    for one, other in zip(ours, theirs, strict=True):
        assert list(other) == ["input_ids", "labels", "attention_mask"]
        assert np.array_equal(other["input_ids"], one["tokens"])
        assert np.array_equal(other["labels"][:, 1:], one["targets"][:, :-1])
        assert np.array_equal(other["labels"][:, 0], one["tokens"][:, 0])
        assert np.array_equal(other["attention_mask"], one["attn_mask"])


def test_origins_stay_beside_their_names(tmp_path):
    ds = open_dataset(write_build(tmp_path / "b", "memmap", {"train": documents(40)}))
    ds.manifest.facts["domain_of"] = {"web": "pages"}  # as a run writes it
    batch = next(iter(Batches(ds, 4, names="huggingface", origins=True)))
    assert list(batch)[:3] == ["input_ids", "labels", "attention_mask"]
    assert batch["token_source"].shape == batch["input_ids"].shape
    assert set(batch) - {"input_ids", "labels", "attention_mask"} == {
        "source",
        "domain",
        "token_source",
        "token_domain",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mask": "causal"},
            "names: mask='causal' is no mask of transformers\n  next: with Hugging Face names",
        ),
        ({"mask": "keys"}, "set one of tokens, documents, none"),
        (
            {"ignore_index": -1},
            "ignore_index is -1, and transformers leaves out -100\n  next: leave it out",
        ),
        (
            {"dtype": np.int32},
            "dtype is int32, and the losses of transformers take int64\n  next: leave dtype out",
        ),
    ],
)
def test_what_transformers_cannot_be_given_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        collate([[1, 2]], PAD, names="huggingface", **options)


def test_a_name_that_is_not_known_is_refused():
    with pytest.raises(InputError, match="names: 'hf' is not known\n  next: set one of tokmill, huggingface"):
        collate([[1, 2]], PAD, names="hf")


def test_positions_need_something_that_ends_documents():
    with pytest.raises(EosMissing, match="nothing says where documents end"):
        collate([[1, 2]], PAD, names="huggingface", mask="documents")


# -- a second way: the loss ----------------------------------------------------------------------------


class CausalModel:
    """What every causal model of transformers does with its arguments, written out: logits of a column
    depend on the ids up to it, and the loss is that of the labels shifted by one."""

    def __init__(self, torch):
        draw = torch.Generator().manual_seed(1)
        self.torch, self.weight = torch, torch.randn((VOCAB, VOCAB), generator=draw)

    def logits(self, ids):
        counts = self.torch.nn.functional.one_hot(ids, VOCAB).float().cumsum(1)
        return (counts / counts.sum(-1, keepdim=True)) @ self.weight

    def loss(self, input_ids, labels, **_):
        logits = self.logits(input_ids)[:, :-1]
        return self.torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), labels[:, 1:].reshape(-1))


def both(directory, targets, **how):
    from tokmill.loader.torch import as_tensors

    write_split(directory, "memmap", documents(45, seed=3))
    ds = open_dataset(directory)
    ours = [as_tensors(one) for one in Batches(ds, 6, 1, targets=targets, dtype=np.int64)]
    theirs = [as_tensors(one) for one in Batches(ds, 6, 1, targets=targets, names="huggingface", **how)]
    return ours, theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("targets", ["stream", "documents"])
def test_a_model_that_shifts_has_the_loss_of_our_targets_and_never_shifts_twice(targets, tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `torch`")
    model = CausalModel(torch)
    for ours, theirs in zip(*both(tmp_path / "train", targets), strict=True):
        wanted = torch.nn.functional.cross_entropy(
            model.logits(ours["tokens"]).reshape(-1, VOCAB), ours["targets"].reshape(-1)
        )
        assert torch.allclose(model.loss(**theirs), wanted, rtol=1e-5)
        twice = model.loss(theirs["input_ids"], ours["targets"])  # labels that are shifted already
        assert not torch.allclose(twice, wanted, rtol=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("targets", ["stream", "documents"])
def test_a_real_model_of_transformers_has_the_loss_of_our_targets(kind, targets, tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `torch`")
    model = tiny_model(kind)
    for ours, theirs in zip(*both(tmp_path / "train", targets), strict=True):
        with torch.no_grad():
            logits = model(input_ids=ours["tokens"], attention_mask=ours["attn_mask"].long()).logits
            wanted = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ours["targets"].reshape(-1))
            assert torch.allclose(model(**theirs).loss, wanted, rtol=1e-5)
            twice = model(input_ids=theirs["input_ids"], labels=ours["targets"]).loss
            assert not torch.allclose(twice, wanted, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_positions_keep_the_documents_of_a_row_apart_in_a_real_model(attention, tmp_path):
    """Each document by itself, through the same model, has the logits that it has in its row.
    A cache for generating would keep transformers from looking at positions: Trainer turns it off."""
    torch = pytest.importorskip("torch", reason="the extra `torch`")
    model = tiny_model("llama", attention)
    _, theirs = both(tmp_path / "train", "documents", mask="documents")
    alone, apart = 0, []
    for batch in theirs[:3]:
        with torch.no_grad():
            together = model(**batch, use_cache=False).logits
            for row, ids in enumerate(batch["input_ids"].tolist()):
                begin = 0
                for end in (place + 1 for place, id in enumerate(ids) if id == EOS):
                    single = model(input_ids=torch.tensor([ids[begin:end]])).logits[0]
                    apart.append((together[row, begin:end] - single).abs().max().item())
                    begin, alone = end, alone + 1
            masked = model(
                **batch, attention_mask=torch.ones_like(batch["input_ids"]), use_cache=False
            ).logits
        assert (masked - together).abs().max() > 1  # a mask beside positions lets them attend to each other
    assert alone > 15
    assert max(apart) < 1e-3  # logits are of the order of 5: rounding of float32


def tiny_model(kind, attention="sdpa"):
    transformers = pytest.importorskip("transformers", reason="not among our extras")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB,
            n_positions=64,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=EOS,
            eos_token_id=EOS,
        )
    else:
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            initializer_range=0.5,
            attn_implementation=attention,
        )
    return transformers.AutoModelForCausalLM.from_config(config).eval()
