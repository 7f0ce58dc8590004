"""Publishing to S3 while everything goes wrong:
moto's server, and a proxy that fails, lies and kills as it is told.

kill    the writer dies at a request, which arrives or does not: nothing is published, and the next run
        completes
race    two runs for one URL: one wins, the other says who
fault   500, 503, resets, answers that are lost: the same objects as ever, or an error of ours
list    what a listing leaves out or adds changes nothing of what is read
memory  a file of any size goes through a few parts
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill as mill
from forked import run_forked
from mill import small_corpus
from object_servers import (
    SECRET,
    Bucket,
    Proxy,
    Request,
    environment,
    make_bucket,
    open_moto,
    open_proxy,
    open_uploads,
)
from tokmill import fetch
from tokmill.errors import StorageError
from tokmill.storage import cloud
from written import CLAIM, MANIFEST, load_manifest

QUICK, WHOLE = 4, 50

# What `tokmill run --out URL` does when the milling is done:
# a process that loads in a moment, to be killed in one.
WRITER = """
import sys
from pathlib import Path
from tokmill.errors import TokmillError
from tokmill.artifacts.manifest import load_manifest
from tokmill.publish.target import open_target
url, work = sys.argv[1], Path(sys.argv[2])
made = load_manifest(work / "run")
say = lambda text: print(text, file=sys.stderr)
try:
    with open_target(url, made.step, made.config, work=work, replace=False, wait=False, say=say) as target:
        print(target.publish(say).sent)
except TokmillError as error:
    say(f"{type(error).__name__} {error}")
    sys.exit(1)
"""


class Scene(NamedTuple):
    endpoint: str
    proxy: Proxy
    milled: list[Path]  # the same recipe twice: equal content, other times, so other digests of the manifest
    digest: str


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    base = tmp_path_factory.mktemp("milled")
    recipe = small_corpus(base, problems=20)
    milled = [mill.run(recipe, base / f"out-{n}", workers=1, until="split").out for n in range(2)]
    assert len({load_manifest(out).digest for out in milled}) == 2
    with open_moto() as endpoint, open_proxy(endpoint) as proxy:
        yield Scene(endpoint, proxy, milled, mill.verify(milled[0]).digest)


@pytest.fixture
def scene(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A proxy that behaves; this process asks the server itself."""
    for name, value in environment(stage.endpoint).items():
        monkeypatch.setenv(name, value)
    stage.proxy.before, stage.proxy.edit = lambda request: None, lambda request, body: body
    stage.proxy.seen.clear()
    return stage


class Place(NamedTuple):
    scene: Scene
    bucket: str
    url: str
    work: Path
    objects: Bucket

    def start(self, endpoint: str | None = None, work: Path | None = None) -> subprocess.Popen[str]:
        env = {**os.environ, **environment(endpoint or self.scene.proxy.endpoint)}
        command = [sys.executable, "-c", WRITER, self.url, str(work or self.work)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def publish(self, work: Path | None = None) -> tuple[int, str]:
        settings = {**os.environ, **environment(self.scene.proxy.endpoint)}
        done = run_forked([self.url, str(work or self.work)], settings, code=WRITER)
        return done.returncode, " ".join(f"{done.stdout} {done.stderr}".split())

    def is_published(self) -> bool:
        return self.objects.load(f"runs/x/{MANIFEST}") is not None

    def digest(self) -> str:
        """Of the manifest that is published."""
        digest: str = json.loads(self.objects.load(f"runs/x/{MANIFEST}") or b"")["digest"]
        return digest

    def check_whole(self) -> None:
        """Published, proven, and nothing beside it."""
        report = mill.verify(self.url)
        assert report.problems == []
        assert report.digest == self.scene.digest
        prefix = f"runs/x/{self.digest()[:32]}/"
        beside = {key for key in self.objects.sizes() if not key.startswith(prefix)}
        assert beside == {f"runs/x/{MANIFEST}", f"runs/x/{CLAIM}"}


@pytest.fixture
def place(scene: Scene, tmp_path: Path) -> Place:
    return new_place(scene, tmp_path)


def new_place(scene: Scene, base: Path) -> Place:
    bucket = uuid.uuid4().hex
    make_bucket(scene.endpoint, bucket)
    work = copied(scene.milled[0], base / bucket)
    url = f"s3://{bucket}/runs/x"
    return Place(scene, bucket, url, work, Bucket(scene.endpoint, bucket))


def copied(run: Path, work: Path) -> Path:
    shutil.copytree(run, work / "run")
    return work


def is_manifest(request: Request) -> bool:
    return request.method == "PUT" and request.path.endswith(f"/runs/x/{MANIFEST}")


# Kills
# --------------------------------------------------------------------------------------------------


def count_writes(scene: Scene, base: Path) -> int:
    place = new_place(scene, base)
    scene.proxy.seen.clear()
    assert place.publish()[0] == 0
    place.check_whole()
    return sum(request.is_write for request in scene.proxy.seen)


def kill_at(scene: Scene, base: Path, number: int, arrives: bool) -> None:
    """The writer dies at its `number`th write; that request arrives, or it does not."""
    place = new_place(scene, base)
    lock, seen, committed = threading.Lock(), [0], [False]
    started: list[subprocess.Popen[str]] = []

    def before(request: Request) -> str | None:
        with lock:
            seen[0] += request.is_write
            if seen[0] < number:
                committed[0] |= is_manifest(request)
                return None
            started[0].send_signal(signal.SIGKILL)
            started[0].wait()
            if seen[0] == number and request.is_write and arrives:
                committed[0] |= is_manifest(request)
                return "lose"
            return "reset"

    ready = threading.Event()
    scene.proxy.before = lambda request: (ready.wait(), before(request))[1]
    with place.start() as writer:
        started.append(writer)
        ready.set()
        writer.communicate(timeout=300)
    assert writer.returncode == -signal.SIGKILL, "it was over before it could be killed"
    scene.proxy.await_quiet()
    scene.proxy.before = lambda request: None
    assert place.is_published() == committed[0]
    if not committed[0]:
        with pytest.raises(StorageError, match="nothing is published here"):
            mill.verify(place.url)
    status, said = place.publish()
    assert status == 0, said
    place.check_whole()


def test_a_writer_that_is_killed_publishes_nothing_and_the_next_one_completes(
    scene: Scene, tmp_path: Path
) -> None:
    last = count_writes(scene, tmp_path)
    # the lease, the first upload, somewhere, the manifest; the very last write releases the lease
    points = [2, 4, last // 2, last - 2]
    assert len(points) == QUICK
    for index, number in enumerate(points):
        kill_at(scene, tmp_path, number, arrives=index % 2 == 0)


@pytest.mark.slow_faults
@pytest.mark.parametrize("arrives", [True, False])
def test_fifty_kills(scene: Scene, tmp_path: Path, arrives: bool) -> None:
    last = count_writes(scene, tmp_path)
    for index in range(WHOLE // 2):
        kill_at(scene, tmp_path, 1 + index * (last - 1) // (WHOLE // 2 - 1), arrives)


def test_what_a_killed_writer_left_is_swept_by_the_next_from_another_machine(
    place: Place, tmp_path: Path
) -> None:
    """Its work directory is gone, so its objects are of no use to anybody."""
    uploads = [0]
    started: list[subprocess.Popen[str]] = []

    def before(request: Request) -> str | None:
        uploads[0] += "/runs/x/" in request.path and request.method == "PUT" and CLAIM not in request.path
        if uploads[0] > 10:
            started[0].kill()
            started[0].wait()
            return "reset"
        return None

    place.scene.proxy.before = before
    with place.start() as writer:
        started.append(writer)
        writer.communicate(timeout=300)
    place.scene.proxy.await_quiet()
    place.scene.proxy.before = lambda request: None
    assert len(place.objects.sizes("runs/x/")) > 5
    status, said = place.publish(work=copied(place.scene.milled[1], tmp_path / "other"))
    assert status == 0, said
    assert "a run was killed here (recipe small, pid " in said
    place.check_whole()


# Races
# --------------------------------------------------------------------------------------------------


def test_of_two_runs_for_one_url_one_wins_and_the_other_says_who(place: Place, tmp_path: Path) -> None:
    other = copied(place.scene.milled[1], tmp_path / "other")
    reached, may_go_on = threading.Event(), threading.Event()

    def before(request: Request) -> None:
        if request.path.endswith("ATTRIBUTION.md") and request.method == "PUT":
            reached.set()
            may_go_on.wait()

    place.scene.proxy.before = before
    with place.start() as first:
        assert reached.wait(300), first.stderr
        with place.start(place.scene.endpoint, other) as second:
            said = " ".join(second.communicate(timeout=300)[1].split())
        may_go_on.set()
        first.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 1)
    assert (
        f"RunLocked {place.url}: another tokmill run publishes here (recipe small, pid {first.pid} on "
        in said
    )
    place.check_whole()


def test_a_run_that_lost_its_lease_cannot_publish_over_the_winner(place: Place, tmp_path: Path) -> None:
    """The first is held up at its manifest for so long that another has taken its place, and was quicker."""
    other = copied(place.scene.milled[1], tmp_path / "other")
    reached, may_go_on = threading.Event(), threading.Event()

    def before(request: Request) -> None:
        if is_manifest(request):
            reached.set()
            may_go_on.wait()

    place.scene.proxy.before = before
    with place.start() as first:
        assert reached.wait(300), first.stderr
        place.objects.put(f"runs/x/{CLAIM}", json.dumps({"is_held": False}).encode())
        with place.start(place.scene.endpoint, other) as second:
            second.communicate(timeout=300)
        may_go_on.set()
        said = " ".join(first.communicate(timeout=300)[1].split())
    assert (first.returncode, second.returncode) == (1, 0)
    assert "another run is published here (recipe small, experiment " in said
    assert place.digest() == load_manifest(other / "run").digest
    place.check_whole()


def test_the_lease_names_no_run_when_all_is_done(place: Place) -> None:
    assert place.publish()[0] == 0
    note = json.loads(place.objects.load(f"runs/x/{CLAIM}") or b"")
    assert (note["is_held"], note["unfinished"]) == (False, [])


# Faults
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [500, 503, "reset", "lose"])
def test_every_request_may_fail_once(place: Place, fault: int | str) -> None:
    """`lose`: it was done, and the answer did not come. A conditional write then meets itself."""
    failed: set[tuple[str, str]] = set()
    lock = threading.Lock()

    def before(request: Request) -> int | str | None:
        with lock:
            asked = request.method, request.path
            if asked in failed:
                return None
            failed.add(asked)
            return fault

    place.scene.proxy.before = before
    status, said = place.publish()
    assert status == 0, said
    assert len(failed) > 40
    place.check_whole()


def test_a_write_that_the_store_refuses_for_a_moment_is_asked_for_again(place: Place) -> None:
    refused: list[str] = []

    def before(request: Request) -> tuple[int, str] | None:
        if request.method == "PUT" and "if-none-match" in request.headers and request.path not in refused:
            refused.append(request.path)
            return 409, "ConditionalRequestConflict"
        return None

    place.scene.proxy.before = before
    status, said = place.publish()
    assert status == 0, said
    assert any(path.endswith(MANIFEST) for path in refused)
    place.check_whole()


def test_a_manifest_that_is_refused_where_there_is_none_is_told(place: Place) -> None:
    place.scene.proxy.before = lambda request: (
        (409, "ConditionalRequestConflict") if is_manifest(request) else None
    )
    status, said = place.publish()
    assert status == 1
    assert f"{place.url}/{MANIFEST}: the store refuses to create this object, and there is none" in said
    assert not place.is_published()


def test_what_is_published_may_go_while_it_is_to_be_replaced(place: Place) -> None:
    assert place.publish()[0] == 0
    other = mill.run(small_corpus(place.work, problems=21), place.work / "run", workers=1, until="split").out

    def before(request: Request) -> None:
        if is_manifest(request):
            place.objects.delete(f"runs/x/{MANIFEST}")

    place.scene.proxy.before = before
    replacing = WRITER.replace("replace=False", "replace=True")
    settings = {**os.environ, **environment(place.scene.proxy.endpoint)}
    done = run_forked([place.url, str(other.parent)], settings, code=replacing)
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert f"StorageError {place.url}: the store refused the manifest, and nothing is published here" in said
    place.scene.proxy.before = lambda request: None
    assert place.publish()[0] == 0


@pytest.mark.parametrize(
    ("status", "code", "what", "next"),
    [
        (400, "ExpiredToken", "the token of the credentials has expired", "get new credentials"),
        (400, "InvalidToken", "the token of the credentials is not valid", "check AWS_SESSION_TOKEN"),
        (403, "RequestTimeTooSkewed", "the clock of this machine differs too much", "set the clock"),
        (403, "AccessDenied", "the store refuses access (403)", "check the credentials"),
        (400, "InvalidRequest", "the store does not understand what was asked", "check the credentials"),
    ],
)
def test_what_a_store_says_of_credentials_and_clocks_is_told(
    place: Place, status: int, code: str, what: str, next: str
) -> None:
    place.scene.proxy.before = lambda request: (status, code)
    ended, said = place.publish()
    assert ended == 1
    assert f"StorageError {place.url}" in said
    assert what in said
    assert f"next: {next}" in said
    assert SECRET not in said


def test_a_store_that_stays_away_is_told_and_nothing_is_published(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "MAX_RETRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.scene.proxy.endpoint)
    for answer, told in (
        (503, "answers with an error (503)"),
        (403, "refuses access (403)"),
        ("reset", "cannot be reached"),
    ):
        place.scene.proxy.before = lambda request, answer=answer: answer  # type: ignore[misc]
        client = cloud.open_cloud("s3", place.bucket)
        for ask in (
            lambda client=client: client.head("k"),
            lambda client=client: client.put_if("k", b"x", None),
            lambda client=client: client.upload("k", [b"x"], 1),
            lambda client=client: list(client.list("k")),
        ):
            with pytest.raises(StorageError) as caught:
                ask()
            assert told in caught.value.what
            assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@pytest.mark.slow_faults
def test_an_outage_in_the_middle_ends_with_an_error_and_the_next_run_completes(place: Place) -> None:
    count = [0]

    def before(request: Request) -> int | None:
        count[0] += 1
        return 503 if count[0] > 40 else None

    place.scene.proxy.before = before
    status, said = place.publish()
    assert status == 1
    assert "the store answers with an error (503)" in said
    assert "Traceback" not in said
    place.scene.proxy.before = lambda request: None
    assert not place.is_published()
    assert place.publish()[0] == 0
    place.check_whole()


# Listings
# ----------------------------------------------------------------------------------------------------------

NOTHING = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
STALE = (
    b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
    b"<Contents><Key>runs/x/manifest.json</Key>"
    b"<LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>&quot;old&quot;</ETag><Size>3</Size>"
    b"<StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"
)


@pytest.mark.parametrize("lie", [NOTHING, STALE], ids=["empty", "stale"])
def test_a_listing_that_lies_changes_nothing_of_what_is_published(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: bytes
) -> None:
    proxy = place.scene.proxy
    proxy.edit = lambda request, body: lie if "list-type" in request.path else body
    assert place.publish()[0] == 0
    code = (
        "import sys, tokmill; from tokmill.publish.publication import fetch; r = "
        "tokmill.verify(sys.argv[1]); fetch(sys.argv[1], sys.argv[2]); print(r.digest, len(r.problems))"
    )
    proxy.seen.clear()
    env = {**os.environ, **environment(proxy.endpoint)}
    command = [sys.executable, "-c", code, place.url, str(tmp_path / "got")]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [place.scene.digest, "0"]
    assert len(proxy.seen) > 40
    assert not any("list-type" in request.path for request in proxy.seen), "a listing was asked for"
    assert mill.verify(tmp_path / "got").digest == place.scene.digest
    place.check_whole()


def test_a_fetch_that_is_killed_leaves_no_run_and_goes_on(place: Place, tmp_path: Path) -> None:
    assert place.publish()[0] == 0
    target, count = tmp_path / "got", [0]
    started: list[subprocess.Popen[bytes]] = []
    ready = threading.Event()

    def before(request: Request) -> str | None:
        ready.wait()
        count[0] += 1
        if count[0] > 40:
            started[0].kill()
            started[0].wait()
            return "reset"
        return None

    place.scene.proxy.before = before
    code = "import sys; from tokmill.publish.publication import fetch; fetch(sys.argv[1], sys.argv[2])"
    env = {**os.environ, **environment(place.scene.proxy.endpoint)}
    with subprocess.Popen([sys.executable, "-c", code, place.url, str(target)], env=env) as reader:
        started.append(reader)
        ready.set()
        reader.wait()
    assert reader.returncode == -signal.SIGKILL
    assert target.is_dir()
    assert not (target / MANIFEST).exists()
    assert fetch(place.url, target).reused > 0
    assert mill.verify(target).problems == []


# Parts
# --------------------------------------------------------------------------------------------------

UPLOAD = """
import os, resource, sys
from tokmill.storage.objects import open_store
from tokmill.storage.location import parse_url
url, size, fail_at = parse_url(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = open_store(url)
store.upload("first", [b"x"], 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def pieces():
    for start in range(0, size, 4 << 20):
        if fail_at and start >= fail_at:
            raise ValueError("the file is damaged")
        yield os.urandom(min(4 << 20, size - start))  # bytes of their own: the client does not copy
store.upload(url.key, pieces(), size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def upload(place: Place, size: int, fail_at: int = 0) -> subprocess.Popen[str]:
    env = {**os.environ, **environment(place.scene.proxy.endpoint)}
    command = [sys.executable, "-c", UPLOAD, f"s3://{place.bucket}/big", str(size), str(fail_at)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_upload_that_fails_in_the_middle_is_taken_back(place: Place) -> None:
    with upload(place, 60 << 20, fail_at=40 << 20) as writer:
        assert "the file is damaged" in writer.communicate(timeout=300)[1]
    assert "big" not in place.objects.sizes()
    assert open_uploads(place.scene.endpoint, place.bucket) == 0


def test_an_upload_that_is_killed_shows_nothing_and_leaves_parts_for_a_lifecycle_rule(place: Place) -> None:
    started: list[subprocess.Popen[str]] = []
    ready = threading.Event()

    def before(request: Request) -> str | None:
        ready.wait()
        if "partNumber=3" in request.path:
            with contextlib.suppress(ProcessLookupError):
                started[0].kill()
            started[0].wait()
            return "reset"
        return None

    place.scene.proxy.before = before
    with upload(place, 80 << 20) as writer:
        started.append(writer)
        ready.set()
        writer.communicate(timeout=300)
    place.scene.proxy.await_quiet()
    assert writer.returncode == -signal.SIGKILL
    assert "big" not in place.objects.sizes()
    assert open_uploads(place.scene.endpoint, place.bucket) == 1  # docs/object-storage.md says how it goes


@pytest.mark.slow_faults
def test_a_file_of_600_mb_goes_through_less_than_200_mb(place: Place) -> None:
    size = 600 << 20
    with upload(place, size) as writer:
        shown, wrong = writer.communicate(timeout=1200)
    assert writer.returncode == 0, wrong
    assert int(shown) * 1024 < 200 << 20
    assert place.objects.sizes()["big"] == size
