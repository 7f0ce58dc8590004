"""Code as somebody else would write it, one of each kind:
a module of their package, or a hooks.py beside a recipe."""

import numpy as np
import pyarrow.compute as pc

from tokmill.artifacts.manifest import file_entry
from tokmill.errors import CorruptFile
from tokmill.formats import Format
from tokmill.formats.ids import Sequences
from tokmill.formats.stores import Part, PartStore
from tokmill.storage.disk import open_commit
from tokmill.storage.location import file_sha256


def read_box(path, separator="%%"):
    """id, a blank line, text, a line with the separator; and so on."""
    for number, part in enumerate(path.read_text().split(f"{separator}\n")):
        doc_id, _, text = part.partition("\n\n")
        record = {"name": doc_id, "body": text, "number": number}
        yield record if text else {"name": doc_id}


def exclamations(columns):
    return pc.count_substring(columns["text"], "!").to_numpy(zero_copy_only=False)


def without_footer(columns):
    return pc.replace_substring(columns["text"], "\n-- \nsent from the mill", "")


class Letters:
    """A byte is a token; one more ends a document."""

    def __init__(self, end="<end>"):
        self.vocab_size, self.end = 257, end
        self.specials = {end: 256}

    def encode_batch(self, texts):
        return [list(text.encode()) for text in texts]

    def decode(self, ids):
        return "".join(self.end if id == 256 else chr(id) for id in ids)

    def token_id(self, token):
        return self.specials.get(token)


NAME = "ids.txt"


def write(directory, tokens):
    with open_commit(directory / NAME) as file:
        for batch in tokens.read_sequences():
            for ids in np.split(batch.ids, np.cumsum(batch.lengths)[:-1]):
                file.write((" ".join(map(str, ids.tolist())) + "\n").encode())
        file.write(f"{tokens.rows} rows of {tokens.seq_len}\n".encode())
    return [file_entry(NAME, "lines", file.written, rows=tokens.rows)]


def load(directory):
    *lines, last = (directory / NAME).read_text().splitlines()
    if int(last.split()[0]) != len(lines):
        raise CorruptFile(f"{len(lines)} lines, and it says {last}", where=str(directory / NAME))
    return [np.array(line.split(), np.int32) for line in lines], int(last.split()[-1])


def open_store(directory, split):
    rows, seq_len = load(directory)
    path = directory / NAME
    sequences = Sequences(np.concatenate(rows), np.full(len(rows), seq_len, np.int64))
    part = Part(path, len(rows), len(sequences.ids), file_sha256(path))
    return PartStore("lines", {}, [part], lambda number: sequences, is_mapped=True, seq_len=seq_len)


LINES = Format(
    name="lines",
    recognizes=lambda directory: (directory / NAME).is_file(),
    open_store=open_store,
    check=load,
    write=write,
    shapes=("rows",),
)
