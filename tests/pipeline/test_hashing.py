"""Files of sources are hashed beside the examination, once, and nobody waits for those that it refuses."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

import tokmill
from cleaned import rows_of
from tokmill.errors import StorageError
from tokmill.pipeline.hashing import hashing_files
from tokmill.storage.location import InputFile


def written(path: Path, size: int) -> InputFile:
    path.write_bytes(os.urandom(1 << 10) * (size >> 10))
    there = path.stat()
    return InputFile(path.name, path, there.st_size, there.st_mtime_ns)


@pytest.mark.parametrize("size", [1 << 10, 9 << 20])
def test_a_digest_is_that_of_the_bytes_begun_before_or_not(tmp_path: Path, size: int) -> None:
    begun, not_begun = written(tmp_path / "a", size), written(tmp_path / "b", size)
    with hashing_files() as hashing:
        hashing.begin([begun])
        for file in (begun, not_begun):
            assert hashing.digest(file) == hashlib.sha256(Path(str(file.path)).read_bytes()).hexdigest()


def test_a_file_that_goes_meanwhile_is_an_error_of_who_asks(tmp_path: Path) -> None:
    file = written(tmp_path / "a", 9 << 20)
    (tmp_path / "a").unlink()
    with hashing_files() as hashing:
        hashing.begin([file])
        with pytest.raises(StorageError, match="cannot be read"):
            hashing.digest(file)


def test_nobody_waits_for_a_large_file_that_is_not_asked_for(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # a hole: an hour of SHA-256
    with hashing_files() as hashing:
        hashing.begin([InputFile("large", tmp_path / "large", 1 << 40, 0)])


@pytest.mark.parametrize("way", ["files", "directory", "link"])
def test_a_file_of_another_place_is_read_though_name_size_and_time_are_the_same(
    tmp_path: Path, way: str
) -> None:
    """As they come out of archives and images, where every file has one time."""
    for place, word in (("one", "here"), ("two", "away")):
        (tmp_path / place).mkdir()
        text = tmp_path / place / "a.txt"
        text.write_text(f"The mill is {word}.")
        os.utime(text, (1, 1))
    out = tmp_path / "out"

    def texts_of(place: str) -> list[str]:
        if way == "link":
            (tmp_path / "current").unlink(missing_ok=True)
            (tmp_path / "current").symlink_to(place)
            place = "current"
        source = {"directory": {"path": place}} if way == "directory" else {"files": f"{place}/a.txt"}
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps({"name": "t", "sources": [{"name": "a", **source}]}))
        tokmill.run(recipe, out, workers=1)
        assert tokmill.run(recipe, out, workers=1).ran == []
        return [row["text"] for row in rows_of(out, "ingest/a", "documents")]

    assert texts_of("one") == ["The mill is here."]
    assert texts_of("two") == ["The mill is away."]
    assert texts_of("one") == ["The mill is here."]
