"""Documents end to end in shards, as llm.c's `write_datafile` writes them.

    train_000000.bin …      every shard but the last has 10^8 tokens; a document may go on in the next
    documents.index         where each document ends, in tokens from the first shard on, uint64
    meta.json               format, n_seqs, n_tokens, arrays, and where they come from

.bin    offset      bytes  what (little-endian)
        0               4  magic, int32: 20240520 (GPT-2), 20240801 (Llama 3)
        4               4  version, int32: 1, 7
        8               4  tokens in this shard, int32
        12           1012  253 int32 that are 0
        1024               ids: uint16 (GPT-2), uint32 (Llama 3)

`dtype: uint16` is what `train_gpt2` reads (`-i "build/NAME/train/train_*.bin"`), and int32 what
`train_llama3.py` does. A shard needs a whole batch of tokens and one more; a smaller last one stops llm.c.
"""

import numpy as np

from tokmill.formats.streams import Layout, file_split, index_of, stream_format

# As many as its own data scripts put into one; the count is an int32.
SHARD_TOKENS = 10**8

_KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def _header(tokens: int, kind: str) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = (*_KINDS[kind], tokens)
    return header.tobytes()


LLMC = stream_format(
    Layout(
        "llmc",
        array=lambda split, number: f"{file_split(split)}_{number:06d}.bin",
        index=index_of,
        max_tokens=SHARD_TOKENS,
        is_cut=True,
        header=_header,
    ),
    shapes=("documents",),
    dtypes=("uint16", "int32"),
)
