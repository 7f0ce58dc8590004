"""OLMo-core's raw arrays: no header, whatever their names say, and never taken for `npy`."""

from __future__ import annotations

import numpy as np
import pytest

from few_tokens import FewTokens
from tokmill.errors import CorruptFile
from tokmill.formats import find_format, recognize
from tokmill.formats.npy import list_bare

OLMO = find_format("olmo")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 50_256, 65, 35, 7]]
FLAT = [id for document in DOCUMENTS for id in document]


@pytest.mark.parametrize(("dtype", "theirs"), [("uint16", np.uint16), ("int32", np.uint32)])
def test_a_part_is_the_ids_and_nothing_else(dtype, theirs, tmp_path):
    OLMO.write(tmp_path, FewTokens(DOCUMENTS, dtype))
    assert (tmp_path / "ids/part-00000.npy").read_bytes() == np.array(FLAT, theirs).tobytes()
    assert [path.name for path in sorted((tmp_path / "ids").iterdir())] == ["part-00000.npy"]


def test_rows_are_windows_of_the_file(tmp_path):
    rows = np.arange(12).reshape(3, 4).tolist()
    OLMO.write(tmp_path, FewTokens(rows, "uint16", seq_len=4))
    assert np.memmap(tmp_path / "ids/part-00000.npy", np.uint16, "r").reshape(-1, 4).tolist() == rows


def test_a_build_of_one_is_never_taken_for_the_other(tmp_path):
    rows = np.arange(12).reshape(3, 4).tolist()
    OLMO.write(tmp_path / "olmo", FewTokens(rows, seq_len=4))
    find_format("npy").write(tmp_path / "npy", FewTokens(rows, seq_len=4))
    assert recognize(tmp_path / "olmo") is OLMO
    assert recognize(tmp_path / "npy") is find_format("npy")


def test_raw_ids_without_their_description_are_told_from_shards_of_numpy(tmp_path):
    OLMO.write(tmp_path, FewTokens(DOCUMENTS))
    parts = tmp_path / "ids"
    assert list_bare(parts)
    bare = recognize(parts)
    with pytest.raises(
        CorruptFile, match=r"part-00000.npy: is not a NumPy file(.|\n)*the format olmo: give its"
    ):
        bare.open_store(parts, None)
