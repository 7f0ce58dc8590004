"""mini-translation without a recipe: pairs drawn once, a vocabulary learnt from them,
one batch learnt by heart.

python recipes/mini_translation.py pairs.jsonl out        a record is {"translation": {"en": …, "fr": …}}
"""

import sys
from pathlib import Path

import tokmill
from tokmill.loader import Batches, open_dataset
from tokmill.loader.tiny import overfit

files, out = sys.argv[1], Path(sys.argv[2])
pair = {"source_key": "translation.fr", "target_key": "translation.en", "min_chars": 2, "max_chars": 256}
splits = {"train": 96, "valid": 12, "test": 12}
sample = tokmill.materialize_sample(files, out=out / "sample", k=120, seed=42, splits=splits, **pair)
listing = '{name: pairs, files: manifest.jsonl, where: {split: train}, template: "{src_text}\\n{tgt_text}"}'
(out / "sample" / "mixture.yaml").write_text(f"datasets: [{listing}]\n", encoding="utf-8")
texts = {"manifest": out / "sample" / "mixture.yaml", "out": out / "tok"}
options = {"model": "unigram", "vocab_size": 2000, "byte_fallback": True, "hard_vocab_limit": False}
model = tokmill.tokenizer_train(**texts, **options, eos="</s>", workers=1).path
cache = tokmill.encode(sample.path, tokenizer=model, out=out / "cache", workers=1).directory
train = open_dataset(cache, "train")
batch = next(iter(Batches(train, batch_size=4, seed=42, length=64, too_long="cut", mask="causal")))
losses = overfit(batch["tokens"], batch["targets"], batch["attn_mask"], steps=300, lr=1e-3)
steps, loss = next((step, loss) for step, loss in enumerate(losses, 1) if loss < 0.1)
print({name: array.shape for name, array in batch.items()}, f"loss {loss:.3f} after {steps} steps")
