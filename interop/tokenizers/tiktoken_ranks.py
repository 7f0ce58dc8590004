"""A rank file with the pattern of cl100k_base: python interop/tokenizers/tiktoken_ranks.py TEXTS OUT"""

import base64
import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import tiktoken
from tiktoken._educational import bpe_train
from tiktoken_ext import openai_public

TOKENIZER = {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"}


def main(texts: Path, out: Path) -> None:
    documents = [json.loads(line)["text"] for line in texts.read_bytes().split(b"\n") if line]
    openai_public.load_tiktoken_bpe = (
        lambda *_, **__: {}
    )  # only the pattern and the tokens; nothing is fetched
    published = openai_public.cl100k_base()
    with contextlib.redirect_stdout(io.StringIO()):
        ranks = bpe_train("\n".join(documents), 400, published["pat_str"], visualise=None)
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (out / "ranks.tiktoken").write_bytes(b"".join(lines))
    theirs = tiktoken.Encoding(
        "cl100k_base",
        pat_str=published["pat_str"],
        mergeable_ranks=ranks,
        special_tokens=published["special_tokens"],
    )
    ids = [theirs.encode(text, disallowed_special=()) for text in documents]
    np.savez(
        out / "ids.npz", ids=np.concatenate(ids), lengths=[len(one) for one in ids], eos=theirs.eot_token
    )
    compared = "`Encoding.encode`, nothing disallowed"
    print(json.dumps({"package": "tiktoken", "version": tiktoken.__version__, "compared": compared}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
