from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import pytest

import tokmill
from tokmill.errors import EmptyGlob, InputError, StorageError
from tokmill.storage.location import file_sha256, open_binary, read_whole
from tokmill.storage.patterns import find_files
from written import load_manifest, load_tables


def plant(base: Path, *names: str) -> None:
    """Files of one record each, whose text is the name."""
    for name in names:
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n")


def found(pattern: str, base: Path) -> list[str]:
    """The names by which a run over a recipe in `base` knows the files,
    in the order in which it reads them."""
    with tempfile.TemporaryDirectory() as place:
        base.mkdir(exist_ok=True)
        recipe = base / "recipe.yaml"
        recipe.write_text(json.dumps({"name": "one", "sources": [{"name": "s", "files": pattern}]}))
        step = tokmill.run(recipe, Path(place) / "out", workers=1, until="ingest/s").out / "ingest/s"
        manifest = load_manifest(step)
        texts = [text for table in load_tables(step, "documents") for text in table["text"].to_pylist()]
    names = {sha256: name.removeprefix("file ") for name, sha256 in manifest.inputs.items()}
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    assert len(names) == len(lines) == len(manifest.inputs)
    return [names[hashlib.sha256(line.encode()).hexdigest()] for line in lines]


def test_files_come_sorted_by_name_however_they_were_made(tmp_path):
    plant(tmp_path, "b.jsonl", "a10.jsonl", "é.jsonl", "a2.jsonl", "B.jsonl")
    assert found("*.jsonl", tmp_path) == ["B.jsonl", "a10.jsonl", "a2.jsonl", "b.jsonl", "é.jsonl"]


def test_names_are_relative_to_the_fixed_part_of_the_pattern(tmp_path):
    plant(tmp_path, "data/2023/a.jsonl", "data/2024/a.jsonl")
    assert found("data/*/a.jsonl", tmp_path) == ["2023/a.jsonl", "2024/a.jsonl"]
    assert found("data/2024/*.jsonl", tmp_path) == ["a.jsonl"]
    assert found("data/2024/a.jsonl", tmp_path) == ["a.jsonl"]
    assert found("*/2024/a.jsonl", tmp_path) == ["data/2024/a.jsonl"]


def test_names_are_the_same_for_a_relative_an_absolute_and_a_winding_pattern(tmp_path):
    plant(tmp_path, "data/x/a.jsonl", "data/b.jsonl", "recipes/recipe.yaml")
    for pattern in ("../data/**/*.jsonl", "./../data/**/*.jsonl", f"{tmp_path}/data/**/*.jsonl"):
        assert found(pattern, tmp_path / "recipes") == ["b.jsonl", "x/a.jsonl"]


def test_a_file_carries_its_size_and_its_time(tmp_path):
    plant(tmp_path, "a.jsonl")
    (file,) = find_files("a.jsonl", tmp_path)
    stat = (tmp_path / "a.jsonl").stat()
    assert (file.path, file.bytes, file.modified_ns) == (tmp_path / "a.jsonl", stat.st_size, stat.st_mtime_ns)


def test_two_stars_go_down_any_number_of_directories(tmp_path):
    plant(tmp_path, "a.jsonl", "x/b.jsonl", "x/y/c.jsonl", "x/y/c.txt")
    assert found("**/*.jsonl", tmp_path) == ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]
    assert found("**/**/*.jsonl", tmp_path) == ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]


def test_hidden_files_and_directories_are_found_only_by_their_dot(tmp_path):
    plant(tmp_path, "a.jsonl", ".tmp-1-0-b.jsonl", ".cache/c.jsonl")
    assert found("**/*.jsonl", tmp_path) == ["a.jsonl"]
    assert found(".*.jsonl", tmp_path) == [".tmp-1-0-b.jsonl"]
    assert found(".cache/*", tmp_path) == ["c.jsonl"]


def test_directories_are_no_files_whatever_their_name(tmp_path):
    plant(tmp_path, "a.jsonl", "b.jsonl/c.txt")
    assert found("*.jsonl", tmp_path) == ["a.jsonl"]


def test_a_link_is_read_as_the_file_it_points_to(tmp_path):
    plant(tmp_path, "store/1", "data/x")
    (tmp_path / "data" / "a.jsonl").symlink_to("../store/1")
    assert found("data/*.jsonl", tmp_path) == ["a.jsonl"]


def test_a_link_to_nothing_is_an_error_and_not_a_missing_file_more(tmp_path):
    plant(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("gone")
    with pytest.raises(StorageError, match="link to a file that is not there") as caught:
        found("*.jsonl", tmp_path)
    assert caught.value.where.endswith(f"recipe.yaml, line 1: sources[0].files: {tmp_path / 'b.jsonl'}")


@pytest.mark.parametrize("directory", ["run[1]", "what?", "a*b", "[x"])
def test_wildcards_in_the_name_of_the_recipes_directory_are_letters(tmp_path, directory):
    plant(tmp_path, f"{directory}/data/a.jsonl")
    assert found("data/*.jsonl", tmp_path / directory) == ["a.jsonl"]
    assert found("data/a.jsonl", tmp_path / directory) == ["a.jsonl"]


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    plant(tmp_path, "home/a.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert found("~/*.jsonl", tmp_path / "elsewhere") == ["a.jsonl"]


def test_an_empty_pattern_result_tells_what_is_in_the_directory(tmp_path):
    plant(tmp_path, "data/a.json", "data/b.json")
    with pytest.raises(EmptyGlob) as caught:
        found("data/*.jsonl", tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/recipe.yaml, line 1: sources[0].files: data/*.jsonl: the pattern matches no file"
        "\n  next: data/ holds 2 entries: a.json, b.json"
    )


def test_a_name_that_is_nearly_there_is_told(tmp_path):
    plant(tmp_path, "data/topics.parquet", "data/other.parquet")
    with pytest.raises(EmptyGlob) as caught:
        found("data/topics.parqet", tmp_path)
    assert caught.value.next == "did you mean data/topics.parquet?"


def test_an_empty_pattern_result_in_a_full_directory_tells_some_of_it(tmp_path):
    plant(tmp_path, *(f"data/{n}.json" for n in range(9)))
    with pytest.raises(EmptyGlob) as caught:
        found("data/*.jsonl", tmp_path)
    assert caught.value.next == "data/ holds 9 entries: 0.json, 1.json, 2.json, 3.json, 4.json, …"


def test_an_empty_pattern_result_tells_of_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(EmptyGlob) as caught:
        found("dta/*.jsonl", tmp_path)
    assert caught.value.next == "there is no directory dta/; paths are relative to the recipe"


def test_an_empty_directory_is_told_as_empty(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(EmptyGlob) as caught:
        found("data/*", tmp_path)
    assert caught.value.next == "data/ holds 0 entries"


def test_a_location_of_another_kind_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(StorageError) as caught:
        found("https://example.org/a.jsonl", tmp_path)
    assert caught.value.where == "https://example.org/a.jsonl"
    assert caught.value.what == "https:// is not an object store that tokmill knows"
    assert "s3://" in caught.value.next


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(StorageError) as caught:
            open_binary(path)
        assert str(caught.value).startswith(f"{path}: cannot be read ({why})")


def test_the_sha256_of_a_file_is_that_of_its_bytes(tmp_path):
    plant(tmp_path, "a")
    assert file_sha256(tmp_path / "a") == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest()


def test_a_small_file_is_read_whole_and_a_larger_one_than_expected_is_refused(tmp_path):
    (tmp_path / "four").write_bytes(b"four")
    assert read_whole(tmp_path / "four", 4) == b"four"
    with pytest.raises(InputError, match="4 bytes is more than the 3 expected here") as caught:
        read_whole(tmp_path / "four", 3)
    assert caught.value.where == str(tmp_path / "four")
