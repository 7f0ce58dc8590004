"""BPE with byte fallback and Gemma's cuts: python interop/tokenizers/transformers_fallback.py TEXTS OUT"""

import json
import sys
from pathlib import Path

import numpy as np
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

TOKENIZER = {"path": "./"}


def main(texts: Path, out: Path) -> None:
    documents = [json.loads(line)["text"] for line in texts.read_bytes().split(b"\n") if line]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training alone
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=60, special_tokens=special, show_progress=False
    )
    trained.train_from_iterator(documents, trainer)
    config = json.loads(trained.to_str())
    vocabulary = config["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    config["model"] |= {"byte_fallback": True, "fuse_unk": True}
    config["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    made = Tokenizer.from_str(json.dumps(config))
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    whole.save_pretrained(out)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    ids = [theirs.encode(text, add_special_tokens=False, split_special_tokens=True) for text in documents]
    np.savez(
        out / "ids.npz", ids=np.concatenate(ids), lengths=[len(one) for one in ids], eos=theirs.eos_token_id
    )
    compared = "`AutoTokenizer` of the directory, byte fallback"
    told = {"package": "transformers", "version": transformers.__version__, "compared": compared}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
