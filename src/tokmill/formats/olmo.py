"""Raw ids under names that end in .npy, as the Dolma toolkit writes them and OLMo-core maps them.

    ids/part-00000.npy …    ids, uint16 or uint32, little-endian, NO header: np.load refuses them
    documents.index         of documents: where each ends, in tokens from the first part on, uint64
    meta.json               format, n_seqs, n_tokens, seq_len, dtype, arrays, and where they come from

`NumpyFSLDataset(*paths, dtype=np.uint16)` is told the dtype that `meta.json` has, and cuts every file into
its own windows: those of a build in rows are the rows, where `sequence_length` is the length of a row. Its
other datasets find documents by their EOS, so a part holds whole ones. A file of `npy` has a header, which
OLMo-core takes for tokens without a word: the two are not one format.

The parts have a directory of their own, so that `ids/*.npy` is all of them and nothing else.
"""

from tokmill.formats.streams import Layout, index_of, stream_format

# 512 MB of uint16, 1 GB of uint32: OLMo-core drops what is left of a file after its last whole window.
PART_TOKENS = 1 << 28

OLMO = stream_format(
    Layout(
        "olmo",
        array=lambda split, number: f"ids/part-{number:05d}.npy",
        index=index_of,
        max_tokens=PART_TOKENS,
    ),
    shapes=("rows", "documents"),
    dtypes=("uint16", "int32"),
)
