"""A tekken.json: python interop/tokenizers/mistral_tekken.py TEXTS OUT"""

import base64
import contextlib
import importlib.metadata
import io
import json
import sys
from pathlib import Path

import numpy as np
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tiktoken._educational import bpe_train

TOKENIZER = {"path": "tekken.json", "eos": "</s>"}
# of the files that Mistral publishes
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main(texts: Path, out: Path) -> None:
    documents = [json.loads(line)["text"] for line in texts.read_bytes().split(b"\n") if line]
    with contextlib.redirect_stdout(io.StringIO()):
        ranks = bpe_train("\n".join(documents), 400, PATTERN, visualise=None)
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + 64 - 20,  # the last 20 are left out
        "default_num_special_tokens": 64,
        "version": "v3",
    }
    content = {"config": config, "vocab": vocabulary, "version": 1, "type": "Tekken"}
    (out / "tekken.json").write_text(json.dumps(content))
    theirs = Tekkenizer.from_file(out / "tekken.json")
    ids = [theirs.encode(text, bos=False, eos=False) for text in documents]
    np.savez(out / "ids.npz", ids=np.concatenate(ids), lengths=[len(one) for one in ids], eos=theirs.eos_id)
    version = importlib.metadata.version("mistral-common")
    print(json.dumps({"package": "mistral-common", "version": version, "compared": "`Tekkenizer.encode`"}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
