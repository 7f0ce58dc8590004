"""Runs on nodes that share nothing but an object store, with real ones:
moto's server for S3, Dask's scheduler and workers in namespaces of their own."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tokmill as mill
from mill import small_corpus
from nodes import CACHE, Cluster, open_dask_nodes
from object_servers import Bucket, Proxy, Request, environment, make_bucket, open_moto, open_proxy
from tokmill.artifacts.progress import Silence
from tokmill.errors import TokmillError
from written import CLAIM, MANIFEST


class Expected(NamedTuple):
    recipe: Path
    digest: str
    text_bytes: int


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    directory = tmp_path_factory.mktemp("stored")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=1500, shards={"megabytes": 1}, dedup=dedup)
    out = mill.run(recipe, directory / "out", workers=1).out
    size = sum((directory / name).stat().st_size for name in ("problems.jsonl", "notes.txt"))
    return Expected(recipe, mill.verify(out).digest, size)


class Server(NamedTuple):
    endpoint: str
    proxy: Proxy  # all of the mill goes through it


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with open_moto() as endpoint, open_proxy(endpoint) as proxy:
        yield Server(endpoint, proxy)


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in environment(server.proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    server.proxy.seen.clear()
    return Bucket(server.endpoint, name)


@pytest.fixture(scope="module")
def dask(server: Server) -> Iterator[Cluster]:
    with open_dask_nodes(2, environment(server.proxy.endpoint)) as nodes:
        yield nodes


class Said(Silence):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


def check_published(bucket: Bucket, digest: str) -> dict[str, Any]:
    """What was published is the run, and there is nothing else. Its manifest's environment."""
    url = f"s3://{bucket.name}/runs/x"
    report = mill.verify(url)
    assert report.problems == []
    assert report.digest == digest
    manifest = json.loads(bucket.load(f"runs/x/{MANIFEST}") or b"")
    prefix = f"runs/x/{manifest['digest'][:32]}/"
    beside = {key for key in bucket.sizes() if not key.startswith(prefix)}
    assert beside == {f"runs/x/{MANIFEST}", f"runs/x/{CLAIM}"}
    environment: dict[str, Any] = manifest["environment"]
    return environment


def kind_of(request: Request) -> str:
    if request.method == "PUT" and "x-amz-copy-source" in request.headers:
        return "copy"
    if request.method == "GET" and "list-type=" in request.path:
        return "list"
    if request.method == "POST" and request.path.endswith("?delete"):
        return "delete"
    return request.method.lower()


def test_nodes_that_share_no_disk_make_the_same_run(
    expected: Expected, server: Server, bucket: Bucket, dask: Cluster, tmp_path: Path
) -> None:
    url, work, said = f"s3://{bucket.name}/runs/x", tmp_path / "work", Said()
    mine = {f"runs/x/work/{place}/notes.txt" for place in ("objects", "receipts", "thesis")}
    for key in mine:
        bucket.put(key, b"of somebody else")
    result = mill.run(expected.recipe, url, engine="dask", address=dask.address, work=work, progress=said)
    assert result.ran
    seen = [request for request in server.proxy.seen if CLAIM not in request.path]
    assert mine <= set(bucket.sizes())
    for key in mine:
        bucket.delete(key)
    told = check_published(bucket, expected.digest)

    # nobody saw a file of another
    for node in dask.nodes:
        assert node.sees(Path(mill.__file__)), "it can be looked into"
        assert expected.recipe.exists()
        assert not node.sees(expected.recipe)
        assert work.exists()
        assert not node.sees(work)
        assert node.files(CACHE / "files"), "it did nothing"
        assert node.files(CACHE / "tasks") == [], "a task left something behind"

    # the driver has manifests, and what it read itself: lengths and places of documents, no text and no ids
    here = {path.relative_to(work / "run").as_posix() for path in (work / "run").rglob("*") if path.is_file()}
    kinds = {Path(name).name.rstrip("0123456789").partition("-")[0] for name in here}
    assert kinds <= {MANIFEST, "ATTRIBUTION.md", "lengths", "places.npy", "journal.json", "ledger"}

    # what it cost
    traffic = told["traffic"]
    assert {"ingest/problems", "dedup", "tokens", "build/rows", "driver"} <= set(traffic)
    assert result.published is not None
    driver = result.published.traffic  # to the end, where the manifest has it until it was written
    assert driver["bytes_down"] < expected.text_bytes / 3
    every = [driver, *(one for step, one in traffic.items() if step != "driver")]
    requests = sum((Counter(one["requests"]) for one in every), Counter[str]())
    # before it begins, whether something is published; and in the claim, twice, what is unfinished
    assert requests == Counter(map(kind_of, seen)) + Counter(put=2) - Counter(get=1)
    sent = sum(len(request.body) for request in seen if kind_of(request) == "put")
    assert 0 <= sum(one["bytes_up"] for one in every) - sent < 2000
    assert any(line.startswith("sending 1 file of this machine") for line in said.said)

    # another machine: it knows nothing, and there is nothing to do
    again = mill.run(expected.recipe, url, engine="dask", address=dask.address, work=tmp_path / "other")
    assert again.ran == []
    check_published(bucket, expected.digest)


HOOKS = """
from pathlib import Path
import loudness
INPUTS = ["limits/words.txt"]

def loud(columns):
    words = Path(__file__).with_name("limits").joinpath("words.txt").read_text().split()
    return [loudness.count(text, words) for text in columns["text"]]
"""
BESIDE = "def count(text, words):\n    return sum(text.count(word) for word in words)\n"


def hooked_corpus(directory: Path, files: str, **sections: Any) -> Path:
    """A source where `files` says, a measure in Python files beside the recipe, and what these read."""
    rule = {"measure": "hooks.py:loud", "max": 3, "reason": "too_loud"}
    recipe = small_corpus(directory, problems=1000, filters=[rule], **sections)
    problems = directory / "problems.jsonl"  # the driver looks at the first megabyte of a source
    problems.write_bytes(problems.read_bytes() * 20)
    (directory / "hooks.py").write_text(HOOKS)
    (directory / "loudness.py").write_text(BESIDE)
    (directory / "limits").mkdir(exist_ok=True)
    (directory / "limits/words.txt").write_text("the\nmany\n")
    asked = json.loads(recipe.read_text())
    asked["sources"][0]["files"] = files
    recipe.write_text(json.dumps(asked))
    return recipe


def test_hooks_travel_objects_are_read_in_place_and_an_edit_takes_the_rest_from_what_is_published(
    server: Server, bucket: Bucket, dask: Cluster, tmp_path: Path
) -> None:
    here = hooked_corpus(tmp_path / "here", "problems.jsonl")
    bucket.put("data/problems.jsonl", here.with_name("problems.jsonl").read_bytes())
    there = hooked_corpus(tmp_path / "there", f"s3://{bucket.name}/data/*.jsonl")
    there.with_name("problems.jsonl").unlink()
    expected = mill.run(here, tmp_path / "out", workers=1)
    assert expected.artifacts["clean/problems"].manifest.counts["dropped"]["too_loud"] > 10

    url, said = f"s3://{bucket.name}/runs/x", Said()
    cluster: dict[str, Any] = {"engine": "dask", "address": dask.address}
    first = mill.run(there, url, work=tmp_path / "one", progress=said, **cluster)
    bucket.delete("data/problems.jsonl")  # so that nothing is beside the run
    traffic = check_published(bucket, mill.verify(expected.out).digest)["traffic"]
    # read by nodes: once to know what it is, once for its text; nobody sent it
    size = here.with_name("problems.jsonl").stat().st_size
    assert traffic["hashing of sources"]["bytes_down"] == size
    assert traffic["ingest/problems"]["bytes_down"] >= size
    assert first.published is not None
    assert first.published.traffic["bytes_down"] < size / 2
    assert not [request for request in server.proxy.seen if len(request.body) == size]
    assert any(line == "hashing 1 object, once per version" for line in said.said)

    # on another machine, which knows nothing: what is before the split is neither made nor moved
    bucket.put("data/problems.jsonl", here.with_name("problems.jsonl").read_bytes())
    changed = {"split": {"valid_fraction": "0.3"}}
    wanted = mill.run(here, tmp_path / "out", workers=1, set={"split.valid_fraction": "0.3"})
    hooked_corpus(tmp_path / "there", f"s3://{bucket.name}/data/*.jsonl", **changed)
    again = mill.run(there, url, work=tmp_path / "two", replace=True, **cluster)
    assert sorted(again.ran) == sorted(wanted.ran)
    assert not any(step.startswith(("ingest", "clean", "dedup")) for step in again.ran)
    report = mill.verify(url)
    assert (report.problems, report.digest) == ([], mill.verify(wanted.out).digest)
    assert not [key for key in bucket.sizes() if "/work/" in key]


@pytest.mark.parametrize(
    ("url", "options", "sections", "told"),
    [
        ("memory://x/run", {}, {}, "do not see the memory of this process"),
        ("s3://x/run", {"verify": True}, {}, "the shards of this run are in a store"),
        ("s3://x/run", {"keep_previous": True}, {}, "the shards of this run are in a store"),
        (
            "s3://x/run",
            {},
            {"sources": [{"name": "code", "directory": {"path": "."}}]},
            "a directory of this machine is read in place",
        ),
        ("s3://x/run", {}, {"dedup": {"reference": ["./old"]}}, "indexes of earlier corpora are directories"),
    ],
)
def test_what_needs_a_shared_disk_is_refused_before_anything_is_asked_of_a_store(
    tmp_path: Path, url: str, options: dict[str, Any], sections: dict[str, Any], told: str
) -> None:
    recipe = small_corpus(tmp_path, problems=5, **sections)
    with pytest.raises(TokmillError) as caught:
        mill.run(recipe, url, engine="dask", work=tmp_path / "work", **options)
    assert told in " ".join(str(caught.value).split())
    assert not (tmp_path / "work").exists()
