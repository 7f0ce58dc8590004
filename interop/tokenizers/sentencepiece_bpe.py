"""A SentencePiece model with byte fallback: python interop/tokenizers/sentencepiece_bpe.py TEXTS OUT"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece

TOKENIZER = {"path": "tokenizer.model", "eos": "</s>"}


def main(texts: Path, out: Path) -> None:
    documents = [json.loads(line)["text"] for line in texts.read_bytes().split(b"\n") if line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (out / "tokenizer.model").write_bytes(model.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    ids = [theirs.encode(text) for text in documents]
    np.savez(out / "ids.npz", ids=np.concatenate(ids), lengths=[len(one) for one in ids], eos=theirs.eos_id())
    compared = "`SentencePieceProcessor.encode`"
    told = {"package": "sentencepiece", "version": sentencepiece.__version__, "compared": compared}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
