"""Small classifiers, built and trained on the spot and saved as the hub lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GOOD, BAD = ["good", "fine", "bright", "clear"], ["bad", "dull", "murky", "broken"]
OTHERS = "the a of problem solution is in and to many how day answer first each from"
WORDS = [*GOOD, *BAD, *OTHERS.split()]


def build_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{one}" for one in letters)]
    tokenizer = Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def build_bert(labels: list[str], **sizes: Any) -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=build_tokenizer().get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=dict(enumerate(labels)),
        label2id={label: at for at, label in enumerate(labels)},
        **sizes,
    )
    return BertForSequenceClassification(config)


def build_classifier(kind: str) -> Any:
    """Of another family, with random weights and two outputs."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(7)
    config = AutoConfig.for_model(
        kind,
        vocab_size=build_tokenizer().get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,  # RoBERTa counts from two
        pad_token_id=None if kind == "gpt2" else 0,
        num_labels=2,
    )
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 2:
                weights.mul_(4)  # or all outputs are nearly the same
    return model


def train(model: Any, steps: int = 60) -> None:
    """To tell good words from bad ones: as the second of two labels, or as a value."""
    import torch

    tokenizer = build_tokenizer()
    texts = [f"the {a} {b} of a day" for a in (*GOOD, *BAD) for b in (*GOOD, *BAD)]
    rows = torch.tensor([one.ids for one in tokenizer.encode_batch(texts)])
    counts = [sum(word in GOOD for word in text.split()) - 1.0 for text in texts]
    wanted = torch.tensor(counts)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        logits = model(input_ids=rows).logits
        if logits.shape[1] == 1:
            loss = ((logits[:, 0] - wanted) ** 2).mean()
        else:
            loss = torch.nn.functional.cross_entropy(logits, (wanted > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def save_model(directory: Path, labels: list[str], *, trained: bool = True) -> Path:
    model = build_bert(labels)
    if trained:
        train(model)
    model.save_pretrained(directory)
    build_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def forward(directory: Path, text: str, max_tokens: int = 64) -> list[float]:
    """The logits of one text, by transformers' own tokenizer and model: no batch, no sorting."""
    import torch
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    model = AutoModelForSequenceClassification.from_pretrained(directory, local_files_only=True).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    given = tokenizer(text, truncation=True, max_length=max_tokens, return_tensors="pt")
    with torch.no_grad():
        return model(**given).logits[0].tolist()  # type: ignore[no-any-return]
