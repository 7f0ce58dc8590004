"""Trainer of Hugging Face transformers, one epoch over the Parquet shards: every token that its model is
called with. Labels are not shifted, and padding is in neither."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import load_dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from compare import given, report, require

BUILD = {"format": "parquet", "columns": "huggingface", "rows_per_shard": 20}

seen: list[torch.Tensor] = []


class Recorded(LlamaForCausalLM):
    def forward(self, input_ids, labels, attention_mask, **more):  # type: ignore[no-untyped-def]
        require(torch.equal(labels, input_ids), "labels are not the ids themselves")
        require(bool(attention_mask.all()), "rows without padding have it in attention_mask")
        seen.append(input_ids.clone())
        return super().forward(input_ids=input_ids, labels=labels, attention_mask=attention_mask, **more)


class InOrder(Trainer):
    def _get_train_sampler(self, dataset=None):  # type: ignore[no-untyped-def]
        return None  # rows as they are in the files


with tempfile.TemporaryDirectory() as folder:
    files = sorted(map(str, given().train.glob("*.parquet")))
    rows = load_dataset("parquet", data_files=files, split="train", cache_dir=f"{folder}/cache")
    config = LlamaConfig(
        vocab_size=int(given().ids.max()) + 1,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    args = TrainingArguments(
        f"{folder}/out",
        num_train_epochs=1,
        per_device_train_batch_size=16,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    InOrder(Recorded(config), args, train_dataset=rows).train()
report("transformers", "`Trainer`, one epoch: every id that its model is called with, and its labels", seen)
