"""nanotron's .ds files: the three that datatrove's tokenizer writes."""

from __future__ import annotations

import struct

import pytest

from few_tokens import FewTokens
from tokmill.formats import find_format
from tokmill.formats.nanotron import for_people

NANOTRON = find_format("nanotron")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 50_256, 65, 35, 7]]
FLAT = [id for document in DOCUMENTS for id in document]


@pytest.mark.parametrize(("dtype", "code", "size"), [("uint16", "H", 2), ("int32", "I", 4)])
def test_the_three_files_have_these_bytes(dtype, code, size, tmp_path):
    NANOTRON.write(tmp_path, FewTokens(DOCUMENTS, dtype))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "meta.json"} == {
        "tokens.ds": struct.pack(f"<10{code}", *FLAT),
        "tokens.ds.index": struct.pack("<3Q", 4, 5, 10),
        "tokens.ds.metadata": f"tok.json|{size}\n10\n10.0 T".encode(),
    }


# What humanize.metric(count, unit="T") says, version 4.16.
HUMANIZED = {
    0: "0.00 T",
    1: "1.00 T",
    999: "999 T",
    1000: "1.00 kT",
    12_345: "12.3 kT",
    999_499: "999 kT",
    999_500: "1.00 MT",
    999_999: "1.00 MT",
    123_456_789: "123 MT",
    15_000_000_000_000: "15.0 TT",
}


@pytest.mark.parametrize(("count", "said"), HUMANIZED.items())
def test_a_count_for_people_is_spelled_as_there(count, said):
    assert for_people(count) == said
