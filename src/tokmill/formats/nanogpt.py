"""Documents end to end in one file, as nanoGPT's `prepare.py` writes it and `train.py` maps it.

    train.bin · val.bin     ids, uint16, little-endian, no header; an EOS ends each document
    documents.index         where each document ends, in tokens, uint64
    meta.json               format, n_seqs, n_tokens, and where they come from

`train.py` wants both files in one directory: `cp build/NAME/*/*.bin nanoGPT/data/mine/`. A `meta.pkl` is
never written: it is a pickle, and nanoGPT takes the vocabulary of GPT-2 without one.
"""

from tokmill.formats.streams import Layout, file_split, index_of, stream_format

NANOGPT = stream_format(
    Layout("nanogpt", array=lambda split, number: f"{file_split(split)}.bin", index=index_of),
    shapes=("documents",),
    dtypes=("uint16",),
)
