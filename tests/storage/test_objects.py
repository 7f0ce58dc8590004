"""Addresses, patterns, ranges and conditional writes:
the seam itself, on memory:// and on the clients it builds."""

from __future__ import annotations

import glob
import io
import pickle
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.errors import EmptyGlob, InputChanged, InputError, MissingExtra, StorageError
from tokmill.loader import open_dataset
from tokmill.storage import cloud
from tokmill.storage.location import (
    ObjectFile,
    ObjectUrl,
    RangedBytes,
    file_sha256,
    from_url,
    is_url,
    local_path,
    open_binary,
    open_input,
    parse_url,
)
from tokmill.storage.objects import Store, open_store
from tokmill.storage.patterns import find_files, find_objects


@pytest.fixture
def bucket() -> str:
    return f"memory://{uuid.uuid4().hex}"


def plant(bucket: str, **objects: bytes) -> Store:
    store = open_store(parse_url(bucket))
    for key, data in objects.items():
        store.upload(key, [data], len(data))
    return store


def read_from(address: str, tmp_path: Path) -> None:
    """A run whose only source it is."""
    recipe = {"name": "r", "sources": [{"name": "s", "files": address}]}
    tokmill.run(recipe, tmp_path / "out", workers=1, until="ingest")


# Addresses
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["s3://b/a/c.jsonl", "gs://b/x", "az://container/x y/é", "memory://b/a#etag=1"]
)
def test_an_address_is_what_it_was_made_from(text: str) -> None:
    assert str(parse_url(text)) == text


def test_a_key_has_no_slash_before_or_after_it() -> None:
    assert parse_url("s3://b/runs/x/") == ObjectUrl("s3", "b", "runs/x")
    assert parse_url("s3://b").child("a") == ObjectUrl("s3", "b", "a")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("https://host/a", "https:// is not an object store"),
        ("s3:///a", "names no bucket"),
        ("s3://b/a/../c", "`.` or `..`"),
        ("s3://b/a//c", "an empty part"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=what):
        read_from(text, tmp_path)
    with pytest.raises(StorageError, match=what):
        tokmill.verify(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA123:hunter2@bucket/key",
        "s3://bucket/key?X-Amz-Signature=hunter2",
        "az://container/key?sv=2024-01-01&sig=hunter2",
        "gs://bucket/key?a=b&X-Goog-Signature=hunter2",
    ],
)
def test_an_address_with_a_secret_in_it_is_refused_without_repeating_it(text: str, tmp_path: Path) -> None:
    for ask in (lambda: read_from(text, tmp_path), lambda: tokmill.verify(text)):
        with pytest.raises(StorageError, match="has a secret in it") as caught:
            ask()
        assert "hunter2" not in str(caught.value)
        assert "AKIA123" not in str(caught.value)


def test_a_local_path_is_no_address() -> None:
    assert not any(is_url(path) for path in ("a/b", "/a", "C:/x", "s3", Path("s3://b/a")))


def test_an_address_that_became_a_path_is_found_out() -> None:
    with pytest.raises(StorageError, match="one slash of the two"):
        open_dataset(Path("s3://bucket/runs/x"))


# Patterns: the twin is the file system
# -----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b.jsonl", "a1.jsonl", ".hidden", "c.jsonl.zst", "é", "x[1]"])
KEYS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
WILD = st.sampled_from(["*", "**", "*.jsonl", "?", "a*", "[ab]*", ".*", "*[!t]", "a", "b.jsonl", "x[[]1]"])


@settings(max_examples=300, deadline=None)
@example(keys=["b.jsonl"], pattern="b.jsonl/**")
@given(
    keys=st.lists(KEYS, min_size=1, max_size=6), pattern=st.lists(WILD, min_size=1, max_size=3).map("/".join)
)
def test_a_pattern_finds_the_objects_that_it_finds_as_files(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], pattern: str
) -> None:
    base, bucket = tmp_path_factory.mktemp("twin"), f"memory://{uuid.uuid4().hex}"
    for key in keys:
        path = base / "data" / key
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue  # an object and a folder may share a name, a file and a directory may not
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode())
        plant(bucket, **{f"data/{key}": key.encode()})
    matched = glob.glob(f"data/{pattern}", root_dir=base, recursive=True)  # noqa: PTH207
    # "a.jsonl/**" finds "a.jsonl/" though it is a file
    expected = sorted({match for match in matched if (base / match).is_file() and not match.endswith("/")})
    found = find_objects(f"{bucket}/data/{pattern}")
    assert sorted(item.path.url.key for item in found if isinstance(item.path, ObjectFile)) == expected
    if expected:
        assert [file.name for file in find_files(f"{bucket}/data/{pattern}", base)] == [
            file.name for file in find_files(f"data/{pattern}", base)
        ]


def test_a_pattern_that_finds_nothing_is_an_error(bucket: str, tmp_path: Path) -> None:
    plant(bucket, **{"data/a.jsonl": b"{}"})
    for pattern in ("data/*.zst", "data/b.jsonl", "data/a.jsonl/*"):
        with pytest.raises(EmptyGlob) as caught:
            find_files(f"{bucket}/{pattern}", tmp_path)
        assert caught.value.where == f"{bucket}/{pattern}"


# Reading
# -----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=400_000),
    moves=st.lists(st.tuples(st.integers(0, 410_000), st.integers(-1, 200_000)), max_size=8),
)
def test_ranges_read_as_a_file_reads(data: bytes, moves: list[tuple[int, int]]) -> None:
    asked: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        assert 0 <= start < end <= len(data)
        asked.append((start, end))
        return data[start:end]

    ranged, twin = RangedBytes(len(data), fetch), io.BytesIO(data)
    for position, size in moves:
        assert ranged.seek(position) == twin.seek(position)
        assert ranged.read(size) == twin.read(size)
        assert ranged.tell() == twin.tell()


def test_an_object_is_known_to_a_task_by_its_text_alone(bucket: str, tmp_path: Path) -> None:
    plant(bucket, **{"d/a.jsonl": b"hello"})
    (file,) = find_files(f"{bucket}/d/*", tmp_path)
    told, size = str(file.path), file.bytes
    again = open_input(pickle.loads(pickle.dumps(told)), size)  # noqa: S301
    assert isinstance(again, ObjectFile)
    assert (again.name, again.suffixes, again.stat().st_size) == ("a.jsonl", [".jsonl"], 5)
    with open_binary(again) as stream:
        assert stream.read() == b"hello"
    assert file_sha256(again) == file_sha256(file.path)


def test_an_object_that_changed_since_it_was_found_is_an_error_that_names_it(
    bucket: str, tmp_path: Path
) -> None:
    store = plant(bucket, a=b"hello")
    (file,) = find_files(f"{bucket}/a", tmp_path)
    store.upload("a", [b"HELLO"], 5)
    with open_binary(file.path) as stream, pytest.raises(InputChanged) as caught:
        stream.read()
    assert caught.value.where == f"{bucket}/a"
    (changed,) = find_files(f"{bucket}/a", tmp_path)
    assert changed.modified_ns != file.modified_ns, "a run would take its old sha256"


def test_what_needs_a_file_says_so_of_an_object(bucket: str, tmp_path: Path) -> None:
    plant(bucket, a=b"")
    (file,) = find_files(f"{bucket}/a", tmp_path)
    with pytest.raises(InputError, match="not on this machine") as caught:
        local_path(file.path)
    assert caught.value.where.startswith(f"{bucket}/a")


def test_an_object_of_another_process_memory_is_told_as_such() -> None:
    file = from_url(f"memory://{uuid.uuid4().hex}/a#etag=x", 3)
    with open_binary(file) as stream, pytest.raises(StorageError, match="memory of this process") as caught:
        stream.read()
    assert "one worker" in caught.value.next


# Conditional writes
# ------------------------------------------------------------------------------------------------


def test_of_two_creations_one_is_refused(bucket: str) -> None:
    store = plant(bucket)
    first = store.create("k", b"one")
    assert first is not None
    assert store.create("k", b"two") is None
    assert store.create("k", b"one") == first, "an answer that was lost: it was us"
    assert store.replace("k", b"two", '"wrong"') is None
    second = store.replace("k", b"two", first)
    assert second not in (None, first)
    assert store.replace("k", b"three", first) is None
    loaded = store.load("k")
    assert loaded is not None
    assert (loaded.data, loaded.etag) == (b"two", second)
    store.delete("k")
    store.delete("k")
    assert store.load("k") is None
    assert store.replace("k", b"x", first) is None


# The clients
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "kind", "variables"),
    [
        (
            "s3",
            "S3Store",
            {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"},
        ),
        ("gs", "GCSStore", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        ("az", "AzureStore", {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"}),
    ],
)
def test_a_scheme_is_given_the_client_of_its_store(
    monkeypatch: pytest.MonkeyPatch, scheme: str, kind: str, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = cloud.open_cloud(scheme, "bucket")
    assert type(client._store).__name__ == kind
    assert client._store.retry_config["max_retries"] == cloud.MAX_RETRIES


def test_google_replaces_by_generation_and_reads_by_etag() -> None:
    found = {"e_tag": '"abc"', "version": "17", "path": "k", "size": 1}
    assert cloud._etag(found, "gs") == '"abc"@17'
    assert cloud._tag_and_version('"abc"@17', "gs") == ('"abc"', "17")
    assert cloud._tag_and_version('"abc"', "gs") == ('"abc"', "")
    assert cloud._etag(found, "s3") == '"abc"'
    assert cloud._tag_and_version('"a@b"', "s3") == ('"a@b"', "")


def test_a_profile_is_used_where_the_environment_has_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    credentials.write_text("[work]\naws_access_key_id = FROMPROFILE\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert cloud._needs_profile()
    assert cloud._profile()()["access_key_id"] == "FROMPROFILE"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert not cloud._needs_profile()


@pytest.mark.parametrize(
    ("scheme", "gone", "extra"),
    [("s3", "obstore", "s3"), ("gs", "obstore", "gs"), ("az", "obstore", "az"), ("memory", "fsspec", "s3")],
)
def test_without_its_package_a_scheme_says_which_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str, gone: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == gone] + [gone, f"{gone}.store"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtra) as caught:
        read_from(f"{scheme}://{uuid.uuid4().hex}/data/*.jsonl", tmp_path)
    assert gone in caught.value.what
    assert caught.value.next.startswith(f"pip install '.[{extra}]' in the clone")


def test_no_word_of_a_client_is_repeated() -> None:
    """obstore quotes the request, and Azure signs in its URL."""
    quoted = (
        "Error performing PUT https://me.blob/c/k?sv=1&sig=hunter2 - Server returned non-2xx status code: "
        "503: no"
    )
    for error in (RuntimeError(quoted), FileNotFoundError(quoted), PermissionError(quoted)):
        told = cloud._told(error, "az", "az://c/k")
        assert "hunter2" not in f"{told} {told.__cause__} {told.__context__}"
    assert "(503)" in cloud._told(RuntimeError(quoted), "az", "az://c/k").what


def test_help_and_local_runs_do_not_load_the_clients() -> None:
    code = (
        "import sys, tokmill; from tokmill.cli import main\n"
        "tokmill.run, tokmill.verify, tokmill.fetch, tokmill.status\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('obstore', 'fsspec', 'boto3')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
