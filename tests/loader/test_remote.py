"""A build in a bucket is read as the same build on the disk is: moto's server, real objects, a bounded cache.

same      order, batches, states, lengths, origins of every format; published, copied, or a split alone
cache     its bound, shared by processes, killed in the middle, temporary
errors    what is cut, changed, gone, forbidden; a network that fails now and then
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tokmill as mill
from loader.builds import EOS, FORMATS, SHA, documents, write_build, write_split
from mill import small_corpus
from object_servers import (
    KEY_ID,
    SECRET,
    Bucket,
    Proxy,
    Request,
    environment,
    make_bucket,
    open_moto,
    open_proxy,
)
from tokmill.errors import CorruptFile, InputChanged, InputError, ManifestDamaged, StorageError
from tokmill.formats.memmap import write_memmap
from tokmill.loader import Batches, Bucketing, list_splits, open_dataset
from tokmill.loader.remote import open_location

BLOCK = 4 << 20
EVERY = (
    *("memmap", "npy", "olmo", "parquet", "mds", "litdata", "arrow", "levanter"),  # rows
    *("megatron", "token_cache", "nanogpt", "llmc", "nanotron"),  # documents
)
LISTS = ("arrow-lists", "levanter-lists")


class Server(NamedTuple):
    endpoint: str
    proxy: Proxy


class Place(NamedTuple):
    bucket: Bucket
    proxy: Proxy

    def url(self, key: str) -> str:
        return f"s3://{self.bucket.name}/{key}"

    def copy(self, directory: Path, key: str) -> str:
        """Every file, as any other tool would."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.bucket.put(f"{key}/{path.relative_to(directory)}", path.read_bytes())
        return self.url(key)

    def reads(self) -> list[Request]:
        """Of ranges, as blocks are read."""
        return [one for one in self.proxy.seen if one.method == "GET" and "range" in one.headers]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with open_moto() as endpoint, open_proxy(endpoint) as proxy:
        yield Server(endpoint, proxy)


@pytest.fixture
def place(server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A bucket of its own, which this process reaches through a proxy that behaves."""
    server.proxy.before, server.proxy.edit = lambda request: None, lambda request, body: body
    server.proxy.seen.clear()
    for name, value in environment(server.proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    return Place(Bucket(server.endpoint, name), server.proxy)


@pytest.fixture(scope="module")
def milled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a build of every format."""
    directory = tmp_path_factory.mktemp("milled")
    builds: list[dict[str, Any]] = [{"name": name, "format": name} for name in EVERY]
    lists = {"pack": {"layout": "indexed"}}
    builds += [{"name": name, "format": name.removesuffix("-lists"), **lists} for name in LISTS]
    recipe = small_corpus(directory, builds=builds)
    return mill.run(recipe, directory / "out", workers=1).out


def large_split(directory: Path, blocks: int = 5) -> Path:
    """Rows of 2,048 ids that fill so many blocks and a little more."""
    rows = np.random.default_rng(3).integers(3, 500, (blocks * 1024 + 5, 2048)).astype(np.uint16)
    meta = {"tokenizer_sha256": SHA, "eos_id": EOS, "pad_id": None, "vocab_size": 500, "split": "train"}
    write_memmap(directory, [rows], seq_len=2048, dtype="uint16", meta=meta)
    return directory


def cached_bytes(directory: Path) -> int:
    """Of all files but the locks, as `du` counts them; one that goes while we look is not there."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            if name != "lock" and not name.startswith("claim-"):
                try:
                    total += (Path(folder) / name).stat().st_size
                except FileNotFoundError:
                    continue
    return total


def same_batches(one: Batches, other: Batches) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert np.array_equal(value, theirs[name]), name
        assert one.state_dict() == other.state_dict()


def test_many_small_objects_are_not_all_held_in_memory(place: Place, tmp_path: Path) -> None:
    """A build of small Parquet shards is read object by object; the cache on the disk has them."""
    rng = np.random.default_rng(1)
    content = [rng.bytes(1 << 20) for _ in range(32)]
    for number, data in enumerate(content):
        place.bucket.put(f"build/train/{number:02d}.parquet", data)
    opened = open_location(place.url("build/train"), tmp_path / "cache", 1 << 30)
    tracemalloc.start()
    try:
        for _ in range(2):
            for number, data in enumerate(content):
                assert (opened / f"{number:02d}.parquet").read_bytes() == data
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 << 20


# The same as the local build
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [*EVERY, *LISTS])
def test_a_published_build_gives_the_batches_and_states_of_the_local_one(
    format: str, milled: Path, published: str, place: Place, tmp_path: Path
) -> None:
    local = open_dataset(milled / "build" / format, "train")
    for url, split in ((f"{published}/build/{format}", "train"), (f"{published}/build/{format}/train", None)):
        remote = open_dataset(
            url, split, cache=tmp_path / "cache", verify="hashes", eos_id=local.facts.eos_id
        )
        assert remote.facts == local.facts
        assert remote.fingerprint == local.fingerprint
        assert [one["ids"].tolist() for one in remote] == [one["ids"].tolist() for one in local]
        assert remote.lengths().tolist() == local.lengths().tolist()
    how: dict[str, Any] = {
        "bucketing": Bucketing(16, 4),
        "origins": True,
        "mask": "documents",
        "length": None,
    }
    same_batches(Batches(remote, 4, 1), Batches(local, 4, 1))
    same_batches(Batches(remote, 4, 1, **how), Batches(local, 4, 1, **how))
    assert list_splits(f"{published}/build/{format}") == list_splits(milled / "build" / format)


@pytest.fixture(scope="module")
def published(milled: Path, server: Server) -> str:
    """The same recipe, run into a bucket."""
    before = dict(os.environ)
    os.environ.update(environment(server.endpoint))
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    url = f"s3://{name}/runs/demo"
    mill.run(milled.parent / "recipe.yaml", url, work=milled.parent / "work", workers=1)
    os.environ.clear()
    os.environ.update(before)
    return url


@pytest.mark.parametrize("format", FORMATS)
def test_a_copied_build_and_a_split_copied_alone_are_read(format: str, place: Place, tmp_path: Path) -> None:
    docs = documents(40)
    build = write_build(tmp_path / "b", format, {"train": docs, "valid": documents(5, seed=1)})
    local, url = open_dataset(build), place.copy(build, "copied/b")
    alone = place.copy(build / "train", "elsewhere/mine")
    for one in (open_dataset(url), open_dataset(f"{url}/train"), open_dataset(alone)):
        assert [example["ids"].tolist() for example in one] == [example["ids"].tolist() for example in local]
        assert one.fingerprint == local.fingerprint
    assert len(open_dataset(url, "val")) == len(open_dataset(build, "val"))
    assert not any("list-type" in one.path and "copied" in one.path for one in place.proxy.seen)


def test_documents_by_the_index_are_those_of_the_local_build(place: Place, tmp_path: Path) -> None:
    build = write_build(tmp_path / "b", "memmap", {"train": documents(60)})
    remote = open_dataset(place.copy(build, "b"), boundaries="index")
    local = open_dataset(build, boundaries="index")
    assert [one["starts"].tolist() for one in remote] == [one["starts"].tolist() for one in local]


def test_a_bare_folder_of_shards_is_read_by_their_headers(place: Place, tmp_path: Path) -> None:
    for number in range(11):
        np.save(tmp_path / f"s_{number}.npy", np.full((number + 1, 5), number, np.int32))
    remote, local = open_dataset(place.copy(tmp_path, "bare")), open_dataset(tmp_path)
    assert [one["ids"].tolist() for one in remote] == [one["ids"].tolist() for one in local]


def test_a_state_goes_from_the_local_build_to_the_bucket_and_back(place: Place, tmp_path: Path) -> None:
    build = write_build(tmp_path / "b", "megatron", {"train": documents(50)})
    url = place.copy(build, "b")
    whole = [batch["tokens"].tolist() for batch in Batches(open_dataset(build), 4, 7)]
    for first, second in ((build, url), (url, build)):
        one, got = Batches(open_dataset(first), 4, 7), []
        for batch in one:
            got.append(batch["tokens"].tolist())
            if len(got) == 5:
                break
        two = Batches(open_dataset(second), 4, 7)
        two.load_state_dict(one.state_dict())
        assert got + [batch["tokens"].tolist() for batch in two] == whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow_faults)])
def test_workers_of_a_data_loader_share_the_cache(start: str, place: Place, tmp_path: Path) -> None:
    """Forked ones have none of the threads that a client needs."""
    pytest.importorskip("torch", reason="the extra `torch`")
    from torch.utils.data import DataLoader

    from tokmill.loader.torch import Feed, Stream

    split = large_split(tmp_path / "train", 2)
    local = Batches(open_dataset(split), 512, 1)
    wanted = [batch["tokens"].tolist() for batch in local]
    cache = tmp_path / "cache"
    url = place.copy(split, "train")
    remote = Batches(open_dataset(url, cache=cache), 512, 1)
    remote.state_dict()  # which asks the store, in this process
    place.proxy.seen.clear()
    how: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": start}
    loader = DataLoader(Stream(remote), batch_size=None, **how)
    assert [batch["tokens"].tolist() for batch in loader] == wanted
    assert len([one for one in place.reads() if "input_ids" in one.path]) == 3  # each block once
    feed = Feed(Batches(open_dataset(url, cache=cache), 512, 1), **how)
    assert [batch["tokens"].tolist() for batch in feed] == wanted


# The cache
# ------------------------------------------------------------------------------------------------------------


def test_the_cache_never_holds_more_than_it_may_and_a_large_one_is_filled_once(
    place: Place, tmp_path: Path
) -> None:
    split = large_split(tmp_path / "train")
    url, local = place.copy(split, "train"), open_dataset(split)
    small = open_dataset(url, cache=tmp_path / "small", cache_bytes=2 * BLOCK + 5)
    most = 0
    for mine, theirs in zip(Batches(small, 1024, 2), Batches(local, 1024, 2), strict=True):
        assert np.array_equal(mine["tokens"], theirs["tokens"])
        most = max(most, cached_bytes(tmp_path / "small"))
    assert BLOCK < most <= 2 * BLOCK + 5
    large = open_dataset(url, cache=tmp_path / "large")
    place.proxy.seen.clear()
    for _ in range(2):
        same_batches(Batches(large, 1024, 2), Batches(local, 1024, 2))
    blocks = [one.headers["range"] for one in place.reads() if "input_ids" in one.path]
    whole = [one for one in blocks if one.endswith(("4194303", "8388607"))]
    assert sorted(whole) == ["bytes=0-4194303", "bytes=4194304-8388607"]
    assert cached_bytes(tmp_path / "large") == (split / "input_ids.mmap").stat().st_size


READER = """
import sys, hashlib
from tokmill.loader import Batches, open_dataset
url, cache, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
digest = hashlib.sha256()
for batch in Batches(open_dataset(url, cache=cache, cache_bytes=size), 1024, seed):
    digest.update(batch["tokens"].tobytes())
print(digest.hexdigest())
"""


def start_reader(place: Place, url: str, cache: Path, size: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, url, str(cache), str(size), str(seed)]
    env = {**os.environ, **environment(place.proxy.endpoint)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def digest_of_reading(path: Path, seed: int) -> str:
    import hashlib

    digest = hashlib.sha256()
    for batch in Batches(open_dataset(path), 1024, seed):
        digest.update(batch["tokens"].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("blocks", [2, 9])
def test_two_processes_share_a_cache_in_its_bound(blocks: int, place: Place, tmp_path: Path) -> None:
    """In 9 blocks there is room for all: each is then sent once, whoever wanted it first."""
    split, cache = large_split(tmp_path / "train", 4), tmp_path / "cache"
    url = place.copy(split, "train")
    readers = [start_reader(place, url, cache, blocks * BLOCK, seed) for seed in (1, 2)]
    most = 0
    while any(one.poll() is None for one in readers):
        most = max(most, cached_bytes(cache))
    for seed, one in zip((1, 2), readers, strict=True):
        out, told = one.communicate()
        assert (one.returncode, out.strip()) == (0, digest_of_reading(split, seed)), told
    assert 0 < most <= blocks * BLOCK
    if blocks == 9:
        asked = [one.headers["range"] for one in place.reads() if "input_ids" in one.path]
        assert len(asked) == len(set(asked)) == 5


def test_a_process_that_is_killed_in_a_download_leaves_nothing_that_is_taken_for_whole(
    place: Place, tmp_path: Path
) -> None:
    split, cache = large_split(tmp_path / "train", 3), tmp_path / "cache"
    url = place.copy(split, "train")
    reader: list[subprocess.Popen[str]] = []
    started, seen = threading.Event(), []

    def kill(request: Request) -> str | None:
        if request.method == "GET" and "range" in request.headers and "input_ids" in request.path:
            seen.append(request)
            if len(seen) == 3:
                started.wait()
                reader[0].send_signal(signal.SIGKILL)
                return "lose"
        return None

    place.proxy.before = kill
    reader.append(start_reader(place, url, cache, 2 * BLOCK, 1))
    started.set()
    reader[0].communicate()
    assert reader[0].returncode == -signal.SIGKILL
    place.proxy.before = lambda request: None
    names = [path for path in cache.rglob("*") if path.is_file() and path.name.isdecimal()]
    data = (split / "input_ids.mmap").read_bytes()
    for path in names:
        assert path.read_bytes() == data[int(path.name) * BLOCK : (int(path.name) + 1) * BLOCK]
    same_batches(
        Batches(open_dataset(url, cache=cache, cache_bytes=2 * BLOCK), 1024, 1),
        Batches(open_dataset(split), 1024, 1),
    )
    assert cached_bytes(cache) <= 2 * BLOCK


def test_without_a_directory_the_cache_is_temporary(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    write_split(tmp_path / "train", "memmap", documents(20))
    url = place.copy(tmp_path / "train", "train")
    assert list_splits(place.url("train")) == []
    assert not list((tmp_path / "tmp").iterdir())
    dataset = open_dataset(url)
    assert dataset[0]["length"]
    (made,) = (tmp_path / "tmp").iterdir()
    assert cached_bytes(made)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert again[0]["ids"].tolist() == dataset[0]["ids"].tolist()
    assert list((tmp_path / "tmp").iterdir()) == [made]  # the other one shares it
    del dataset, again
    gc.collect()
    assert not list((tmp_path / "tmp").iterdir())
    code = f"from tokmill.loader import open_dataset; ds = open_dataset({url!r}); ds[0]; print(ds)"
    env = {**os.environ, **environment(place.proxy.endpoint), "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    assert not list((tmp_path / "tmp").iterdir())


def test_no_secret_is_in_the_cache(place: Place, tmp_path: Path) -> None:
    write_split(tmp_path / "train", "megatron", documents(20))
    dataset = open_dataset(place.copy(tmp_path / "train", "train"), cache=tmp_path / "cache")
    assert dataset.lengths().sum()
    sent = pickle.dumps(dataset) + repr(dataset).encode()
    for path in (tmp_path / "cache").rglob("*"):
        sent += str(path).encode() + (path.read_bytes() if path.is_file() else b"")
    assert KEY_ID.encode() not in sent
    assert SECRET.encode() not in sent


# Errors
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_an_object_that_is_cut_is_an_error_that_names_it(format: str, place: Place, tmp_path: Path) -> None:
    build = write_build(tmp_path / "b", format, {"train": documents(40)})
    url = place.copy(build, "b")
    largest = max(
        (build / "train").rglob("*"), key=lambda path: (path.suffix != ".zst") * path.stat().st_size
    )
    key = f"b/{largest.relative_to(build)}"
    place.bucket.put(key, largest.read_bytes()[:-1])
    with pytest.raises(CorruptFile) as caught:
        open_dataset(url)
    assert caught.value.where == place.url(key)
    place.bucket.delete(key)
    with pytest.raises(CorruptFile, match="the object is missing") as caught:
        open_dataset(url)
    assert caught.value.where == place.url(key)


def test_other_bytes_of_the_same_size_are_found_by_their_hash(place: Place, tmp_path: Path) -> None:
    build = write_build(tmp_path / "b", "memmap", {"train": documents(40)})
    url, ids = place.copy(build, "b"), (build / "train/input_ids.mmap").read_bytes()
    place.bucket.put("b/train/input_ids.mmap", ids[::-1])
    with pytest.raises(CorruptFile, match="sha256 differs") as caught:
        open_dataset(url, verify="hashes")
    assert caught.value.where == place.url("b/train/input_ids.mmap")


def test_an_object_that_is_replaced_while_it_is_read_is_an_error_that_names_it(
    place: Place, tmp_path: Path
) -> None:
    split = large_split(tmp_path / "train", 2)
    url = place.copy(split, "train")
    batches = Batches(open_dataset(url, cache=tmp_path / "cache"), 4, shuffle="none")
    reading = iter(batches)
    next(reading)
    place.bucket.put("train/input_ids.mmap", (split / "input_ids.mmap").read_bytes()[::-1])
    with pytest.raises(InputChanged, match="another one by now") as caught:
        list(reading)
    assert caught.value.where == place.url("train/input_ids.mmap")
    with pytest.raises(InputChanged, match="another one by now") as caught:
        next(iter(batches))  # before an epoch all are looked at
    assert caught.value.where == place.url("train/input_ids.mmap")
    place.bucket.delete("train/input_ids.mmap")
    with pytest.raises(InputChanged, match="the object is gone"):
        next(iter(batches))


def test_a_network_that_fails_now_and_then_changes_nothing(place: Place, tmp_path: Path) -> None:
    split = large_split(tmp_path / "train", 2)
    url, turns = place.copy(split, "train"), iter(range(10**6))
    answers: list[int | str | None] = [503, None, "reset", None, 500, None, None]
    place.proxy.before = lambda request: answers[next(turns) % len(answers)]
    same_batches(
        Batches(open_dataset(url, cache=tmp_path / "cache"), 512, 1), Batches(open_dataset(split), 512, 1)
    )


def test_a_bucket_that_is_not_there_and_one_that_is_closed_say_so(place: Place) -> None:
    with pytest.raises(StorageError, match="no such object, or no such bucket") as caught:
        open_dataset(f"s3://{uuid.uuid4().hex}/run/build/rows")
    assert "check the URL" in caught.value.next
    place.proxy.before = lambda request: 403
    with pytest.raises(StorageError, match=r"the store refuses access \(403\)") as caught:
        open_dataset(place.url("run/build/rows"))
    assert "AWS_ACCESS_KEY_ID" in caught.value.next
    assert SECRET not in str(caught.value)


def test_a_url_of_nothing_of_a_run_and_of_no_split_say_what_to_give(
    place: Place, published: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no object is here, and no run is published above"):
        open_dataset(place.url("nothing/here"))
    with pytest.raises(InputError, match="is a run, not a build of one") as caught:
        open_dataset(published)
    assert f"{published}/build/memmap" in caught.value.next
    with pytest.raises(InputError, match="no object is here"):
        open_dataset(f"{published}/build/none")
    with pytest.raises(InputError, match="has no split 'tests'"):
        open_dataset(f"{published}/build/memmap", "tests")
    with pytest.raises(InputError, match="1,000 bytes do not hold one block of 4,194,304"):
        open_dataset(f"{published}/build/memmap", cache_bytes=1000)
    place.bucket.put("x/readme.txt", b"hello")
    with pytest.raises(InputError, match="holds no split of a build"):
        open_dataset(place.url("x"))


def test_a_manifest_of_somebody_else_above_is_in_nobodys_way(place: Place, tmp_path: Path) -> None:
    write_split(tmp_path / "train", "npy", documents(20))
    place.bucket.put("manifest.json", b'{"of": "a web site"}')
    assert len(open_dataset(place.copy(tmp_path / "train", "my/own/train")))
    with pytest.raises(ManifestDamaged, match="not a manifest") as caught:
        open_dataset(place.url("my/run/build/rows"))
    assert caught.value.where == place.url("manifest.json")


def test_a_reader_that_asks_for_files_says_to_fetch_first(place: Place) -> None:
    """A format of somebody else's that maps files itself, as NumPy does."""
    place.bucket.put("x/ids.raw", b"0123")
    directory = open_location(place.url("x"), None, None)
    with pytest.raises(StorageError, match="the reader of its format asks for a file") as caught:
        np.memmap(directory / "ids.raw")
    assert "tokmill fetch" in caught.value.next
    assert caught.value.where == place.url("x/ids.raw")


def test_the_clients_are_loaded_where_a_url_is_opened_and_nowhere_else(tmp_path: Path) -> None:
    build = write_build(tmp_path / "b", "memmap", {"train": documents(20)})
    code = (
        "import sys; from tokmill.loader import Batches, open_dataset\n"
        f"next(iter(Batches(open_dataset({str(build)!r}), 2)))\n"
        "print([n for n in sys.modules if n.split('.')[0] in ('obstore', 'fsspec', 'boto3')\n"
        "       or n in ('tokmill.loader.remote', 'tokmill.storage.cached', 'tokmill.storage.relay')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
