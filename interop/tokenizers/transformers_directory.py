"""A directory that transformers saved: python interop/tokenizers/transformers_directory.py TEXTS OUT"""

import json
import sys
from pathlib import Path

import numpy as np
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TOKENIZER = {"path": "./"}


def main(texts: Path, out: Path) -> None:
    documents = [json.loads(line)["text"] for line in texts.read_bytes().split(b"\n") if line]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(documents, trainer)
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<s>", eos_token="</s>")
    whole.save_pretrained(out)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    ids = [theirs.encode(text, add_special_tokens=False, split_special_tokens=True) for text in documents]
    assert theirs.eos_token_id == 1, theirs.eos_token_id
    np.savez(
        out / "ids.npz", ids=np.concatenate(ids), lengths=[len(one) for one in ids], eos=theirs.eos_token_id
    )
    compared = "`AutoTokenizer` of the directory, `split_special_tokens`"
    told = {"package": "transformers", "version": transformers.__version__, "compared": compared}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
