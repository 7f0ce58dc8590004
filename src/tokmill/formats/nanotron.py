"""Documents end to end in one file, as datatrove's tokenizer writes it and nanotron reads it.

    tokens.ds               ids, uint16 or uint32, little-endian, no header; an EOS ends each document
    tokens.ds.index         where each document ends, in tokens, uint64
    tokens.ds.metadata      tokenizer|bytes of a token, tokens, the same for people: three lines
    meta.json               format, n_seqs, n_tokens, dtype, and where they come from

nanotron takes windows of `seq_len` + 1 tokens out of every `.ds` in `dataset_folder`. Nothing in the files
says how many bytes an id has: nanotron goes by the vocabulary, 2 up to 65,536 ids and 4 above, which is
`dtype: smallest`; datatrove's own datasets take 2 where no `token_size` is given.
"""

import math

from tokmill.formats import Tokens
from tokmill.formats.ids import smallest_dtype
from tokmill.formats.streams import Layout, stream_format

NAME = "tokens.ds"


def _beside(tokens: Tokens, total: int) -> dict[str, bytes]:
    size = 2 if tokens.dtype == "uint16" else 4
    lines = (f"{tokens.tokenizer['file']}|{size}", str(total), for_people(total))
    return {f"{NAME}.metadata": "\n".join(lines).encode()}


def for_people(count: int) -> str:
    """Three digits and a prefix, as the package humanize spells a metric number: 12.9 kT."""
    exponent = math.floor(math.log10(count)) if count else 0
    digits = 2 - exponent % 3
    if round(count / 10 ** (exponent // 3 * 3), digits) >= 1000:  # 999,999 is 1.00 M
        exponent, digits = exponent // 3 * 3 + 3, 2
    return f"{count / 10 ** (exponent // 3 * 3):.{digits}f} {'_kMGTPE'[exponent // 3].strip('_')}T"


NANOTRON = stream_format(
    Layout(
        "nanotron",
        array=lambda split, number: NAME,
        index=lambda split: f"{NAME}.index",
        beside=_beside,
    ),
    shapes=("documents",),
    dtypes=("uint16", "int32"),
    read_as=smallest_dtype,
)
