"""Runs from and to object stores, as a user asks for them:
through memory://, and through moto's server for S3."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

import tokmill as mill
from mill import SHARED, digest_of, small_corpus, tokmill
from object_servers import (
    KEY_ID,
    SECRET,
    Bucket,
    Request,
    environment,
    make_bucket,
    open_moto,
    open_proxy,
    open_uploads,
)
from tokmill import fetch, load_recipe
from tokmill.cli import main
from tokmill.errors import InputChanged, InputError, StorageError
from tokmill.pipeline.plan import plan_steps
from tokmill.stages.ingest.stage import conduct, perform_ingest
from tokmill.storage.location import parse_url
from tokmill.storage.objects import Store, open_store
from written import MANIFEST, load_manifest, load_tables


class Server(NamedTuple):
    endpoint: str
    env: dict[str, str]


class S3(Bucket):
    @property
    def url(self) -> str:
        return f"s3://{self.name}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with open_moto() as endpoint:
        yield Server(endpoint, environment(endpoint))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("local")
    return mill.run(small_corpus(directory), directory / "out", workers=1).out


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A bucket of its own; this process is told where as a user would be."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    return S3(server.endpoint, name)


def store_of(url: str) -> Store:
    return open_store(parse_url(url))


def put(url: str, data: bytes) -> None:
    store_of(url).upload(parse_url(url).key, [data], len(data))


def remote_recipe(directory: Path, place: str, write: Callable[[str, bytes], None]) -> Path:
    """The corpus of `small_corpus` with one source in the bucket and one beside the recipe."""
    recipe = small_corpus(directory)
    write("data/problems.jsonl", (directory / "problems.jsonl").read_bytes())
    (directory / "problems.jsonl").unlink()
    asked = yaml.safe_load(recipe.read_text())
    asked["sources"][0]["files"] = f"{place}/data/*.jsonl"
    recipe.write_text(json.dumps(asked))
    return recipe


# Inputs
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_in_a_bucket_gives_what_it_gives_as_a_file(
    s3: S3, local: Path, tmp_path: Path, workers: int
) -> None:
    out = mill.run(remote_recipe(tmp_path, s3.url, s3.put), tmp_path / "out", workers=workers).out
    assert digest_of(out) == digest_of(local)
    again = mill.run(tmp_path / "recipe.yaml", tmp_path / "out", workers=1)
    assert again.ran == []


def test_an_input_in_memory_is_read_by_the_process_that_holds_it(local: Path, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    recipe = remote_recipe(tmp_path, url, lambda key, data: put(f"{url}/{key}", data))
    out = mill.run(recipe, tmp_path / "out", workers=1).out
    assert digest_of(out) == digest_of(local)


def test_an_input_that_changes_between_two_runs_is_read_again(s3: S3, tmp_path: Path) -> None:
    recipe = remote_recipe(tmp_path, s3.url, s3.put)
    mill.run(recipe, tmp_path / "out", workers=1, until="ingest")
    lines = (s3.load("data/problems.jsonl") or pytest.fail("no object")).split(b"\n")
    s3.put("data/problems.jsonl", b"\n".join([lines[1], lines[0], *lines[2:]]))  # of the same size
    assert "ingest/problems" in mill.run(recipe, tmp_path / "out", workers=1, until="ingest").ran


def test_every_kind_of_file_is_read_from_a_bucket(s3: S3, tmp_path: Path) -> None:
    source = small_corpus(tmp_path / "corpus")
    base = mill.run(source, tmp_path / "base", workers=1, until="ingest").out
    (shard,) = (base / "ingest/problems").glob("documents-*.parquet")
    s3.put("d/a.parquet", shard.read_bytes())
    recipe = tmp_path / "recipe.yaml"
    asked = {"name": "r", "sources": [{"name": "s", "files": f"{s3.url}/d/*", "fields": {"id": "doc_id"}}]}
    recipe.write_text(json.dumps(asked))
    out = mill.run(recipe, tmp_path / "out", workers=1, until="ingest").out
    assert load_manifest(out / "ingest/s").counts["kept"] == 60


def test_a_key_is_found_and_read_whatever_its_letters(s3: S3, tmp_path: Path) -> None:
    """Written by another client, so that no encoding of ours can hide behind itself."""
    names = ["a b#é[1].jsonl", "x%20y.jsonl", "x*y.jsonl", "~t.jsonl", "q?z.jsonl", "a+b=c&d.jsonl"]
    for name in names:
        s3.put(f"data/{name}", json.dumps({"text": name}).encode())
    asked = {"name": "r", "sources": [{"name": "s", "files": f"{s3.url}/data/*.jsonl"}]}
    out = mill.run(asked, tmp_path / "out", workers=1, until="ingest").out / "ingest/s"
    texts = [text for table in load_tables(out, "documents") for text in table.column("text").to_pylist()]
    assert texts == sorted(names)
    assert load_manifest(out).inputs.keys() == {f"file {name}" for name in names}


FORMATS: dict[str, tuple[str, dict[str, object]]] = {
    "wikipedia": ("wikiextractor/en/AA/wiki_00*", {}),
    "parallel": ("fr_en/europarl_2012.jsonl", {"source_key": "fr", "target_key": "en"}),
    "warc": ("warc/*.warc.gz", {}),
}


@pytest.mark.skipif(not (SHARED / "data").exists(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", FORMATS)
def test_a_source_format_reads_objects_as_it_reads_files(s3: S3, tmp_path: Path, name: str) -> None:
    pattern, options = FORMATS[name]
    file = min((SHARED / "data").glob(pattern))
    s3.put(file.name, file.read_bytes())
    identities = []
    for number, where in enumerate((str(file), f"{s3.url}/{file.name}")):
        recipe = tmp_path / f"{number}.yaml"
        source = {"name": "s", "files": where, name: options, "max_bad_fraction": "1"}
        recipe.write_text(json.dumps({"name": "r", "sources": [source]}))
        out = mill.run(recipe, tmp_path / f"out-{number}", workers=1, until="ingest").out
        identities.append(load_manifest(out / "ingest/s").identity)
    assert identities[0] == identities[1]


def test_an_archive_that_needs_a_file_is_refused_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    s3.put("dump.7z", b"7z")
    recipe = tmp_path / "recipe.yaml"
    source = {"name": "s", "files": f"{s3.url}/dump.7z", "stackexchange": {}}
    recipe.write_text(json.dumps({"name": "r", "sources": [source]}))
    with pytest.raises(InputError, match="reads files of this machine"):
        mill.run(recipe, tmp_path / "out", workers=1)


def test_an_object_that_is_replaced_after_planning_ends_the_task(s3: S3, tmp_path: Path) -> None:
    recipe = remote_recipe(tmp_path, s3.url, s3.put)
    (step, *_) = plan_steps(load_recipe(recipe), tmp_path, tmp_path / "out")
    (task, *_) = next(conduct(step, {}))
    s3.put("data/problems.jsonl", b"{}" * 10_000)
    with pytest.raises(InputChanged, match="another one by now") as caught:
        perform_ingest(task)
    assert caught.value.where == f"{s3.url}/data/problems.jsonl"


# Publications
# ------------------------------------------------------------------------------------------------------


def test_a_run_is_published_proven_and_fetched_by_the_commands(
    server: Server, s3: S3, local: Path, tmp_path: Path
) -> None:
    url, work = f"{s3.url}/runs/x", tmp_path / "work"
    recipe = small_corpus(tmp_path / "corpus")
    ran = tokmill("run", recipe, "--out", url, "--work", work, "--json", env=server.env)
    assert ran.returncode == 0, ran.stderr
    published = json.loads(ran.stdout)["published"]
    assert (published["url"], published["sent"]) == (url, published["files"])

    again = tokmill("run", recipe, "--out", url, "--work", work, env=server.env)
    assert again.returncode == 0, again.stderr
    assert "was there already" in again.stdout

    proven = tokmill("verify", url, "--json", env=server.env)
    assert proven.returncode == 0, proven.stderr
    assert json.loads(proven.stdout)["digest"] == digest_of(local)

    for arguments in ([url, tmp_path / "whole"], [url, tmp_path / "one", "--build", "rows"]):
        shown = CliRunner().invoke(main, ["fetch", *(str(a) for a in arguments)])
        assert shown.exit_code == 0, shown.output
    assert digest_of(tmp_path / "whole") == digest_of(local)
    assert [path.name for path in sorted((tmp_path / "one" / "build").iterdir())] == ["rows"]
    assert mill.verify(tmp_path / "one").problems == []
    assert open_uploads(server.endpoint, s3.name) == 0


def test_a_run_can_be_published_to_memory(local: Path, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/runs/x"
    result = mill.run(small_corpus(tmp_path), url, workers=1, work=tmp_path / "work")
    assert result.published is not None
    assert mill.verify(url).digest == digest_of(local)
    assert fetch(url, tmp_path / "got").files > 0
    assert digest_of(tmp_path / "got") == digest_of(local)


class Published(NamedTuple):
    url: str
    recipe: Path
    work: Path
    objects: S3

    def run(self, **options: object) -> Any:
        return mill.run(self.recipe, self.url, workers=1, work=self.work, until="clean", **options)  # type: ignore[arg-type]

    def prefix(self) -> str:
        return f"runs/x/{json.loads(self.objects.load(f'runs/x/{MANIFEST}') or b'')['digest'][:32]}"


@pytest.fixture
def published(s3: S3, tmp_path: Path) -> Published:
    """A small run in a bucket, to the end of cleaning."""
    recipe = small_corpus(tmp_path / "corpus", problems=20)
    made = Published(f"{s3.url}/runs/x", recipe, tmp_path / "work", s3)
    made.run()
    return made


def test_the_same_content_from_another_machine_is_already_published(
    published: Published, tmp_path: Path
) -> None:
    before = published.objects.load(f"runs/x/{MANIFEST}")
    again = published._replace(work=tmp_path / "elsewhere").run()
    assert again.published is not None
    assert (again.published.sent, published.objects.load(f"runs/x/{MANIFEST}")) == (0, before)


def test_another_recipe_is_refused_before_any_work_and_replaces_when_told(
    published: Published, tmp_path: Path
) -> None:
    old = published.prefix()
    kept = published.objects.sizes(f"{old}/")
    other = published._replace(
        recipe=small_corpus(tmp_path / "other", problems=21, name="other"), work=tmp_path / "other-work"
    )
    with pytest.raises(
        StorageError, match=r"another run is published here \(recipe small, experiment "
    ) as caught:
        other.run()
    assert "--replace" in caught.value.next
    assert not other.work.exists(), "the work was done first, and in vain"
    assert other.run(replace=True).published.sent > 0  # type: ignore[union-attr]
    assert published.prefix() != old
    assert mill.verify(published.url).ok
    assert published.objects.sizes(f"{old}/") == kept, "a reader of the old one sees a mixture"


def test_a_run_that_ended_at_an_earlier_step_is_published_to_its_end_by_the_same_command(
    published: Published, tmp_path: Path
) -> None:
    old = published.prefix()
    kept = published.objects.sizes(f"{old}/")
    whole = mill.run(published.recipe, published.url, workers=1, work=tmp_path / "elsewhere")
    assert whole.published is not None
    steps = json.loads(published.objects.load(f"runs/x/{MANIFEST}") or b"")["inputs"]
    assert set(steps) == set(whole.artifacts) > {"ingest/notes", "clean/notes"}
    assert mill.verify(published.url).ok
    assert published.objects.sizes(f"{old}/") == kept, "a reader of the old one sees a mixture"
    with pytest.raises(
        StorageError, match=r": with build/mega, build/rows, dedup and 3 more steps, which this one has not"
    ):
        published._replace(work=tmp_path / "third").run()


def test_other_inputs_are_refused_too(published: Published) -> None:
    notes = published.recipe.parent / "notes.txt"
    notes.write_bytes(notes.read_bytes() + b"\n\nOne more.\n")
    with pytest.raises(StorageError, match="with other content in clean/notes, ingest/notes"):
        published.run()
    assert published.run(replace=True).published is not None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_file_of_the_work_directory_that_was_damaged_is_made_again_before_it_is_published(
    published: Published,
) -> None:
    path = next((published.work / "run" / "clean").rglob("*.parquet"))
    flip(path)
    result = published._replace(url=f"{published.url}2").run()
    assert result.ran == [f"clean/{path.parent.name}"]
    assert mill.verify(f"{published.url}2").digest == mill.verify(published.url).digest


def test_a_file_that_is_damaged_while_others_are_sent_is_not_published(
    server: Server, s3: S3, tmp_path: Path
) -> None:
    work, damaged = tmp_path / "work", []

    def damage_the_next(request: Request) -> None:
        if request.method == "PUT" and "/ingest/" in request.path and not damaged:
            damaged.extend((work / "run" / "clean").rglob("*.parquet"))
            for path in damaged:
                flip(path)

    with open_proxy(server.endpoint) as proxy:
        proxy.before = damage_the_next
        done = tokmill(
            *("run", small_corpus(tmp_path), "--out", f"{s3.url}/runs/x", "--work", work, "--until", "clean"),
            env={**server.env, "AWS_ENDPOINT_URL": proxy.endpoint},
        )
    assert done.returncode == 1
    assert "is not as it was written, and was not published" in " ".join(done.stderr.split())
    assert any(str(path) in done.stderr for path in damaged)
    assert s3.load(f"runs/x/{MANIFEST}") is None


def test_every_damage_to_every_object_is_found_and_named(published: Published) -> None:
    prefix = published.prefix()
    keys = published.objects.sizes(f"{prefix}/").keys() - {f"{prefix}/{MANIFEST}"}
    assert len(keys) > 10
    for key in keys:
        original = published.objects.load(key)
        assert original is not None
        flipped = bytes([original[0] ^ 1]) + original[1:]
        for damaged in (None, original[:-1], original + b"\0", flipped):
            if damaged is None:
                published.objects.delete(key)
            else:
                published.objects.put(key, damaged)
            report = mill.verify(published.url)
            assert not report.ok
            assert [p.where.removeprefix(f"{prefix[7:]}/") for p in report.problems] == [
                key.removeprefix(f"{prefix}/")
            ]
        published.objects.put(key, original)
    assert mill.verify(published.url).ok


def test_an_edited_manifest_is_found(published: Published) -> None:
    key = f"runs/x/{MANIFEST}"
    manifest = published.objects.load(key) or b""
    assert manifest.count(b'"seed": 7') == 1
    published.objects.put(key, manifest.replace(b'"seed": 7', b'"seed": 8'))
    assert [p.where for p in mill.verify(published.url).problems] == [MANIFEST]


def test_where_nothing_is_published_it_is_said(s3: S3, tmp_path: Path) -> None:
    for ask in (lambda: mill.verify(f"{s3.url}/none"), lambda: fetch(f"{s3.url}/none", tmp_path / "x")):
        with pytest.raises(StorageError, match="nothing is published here"):
            ask()
    assert not (tmp_path / "x").exists()


def test_a_fetch_that_was_cut_short_goes_on(published: Published, tmp_path: Path) -> None:
    target = tmp_path / "got"
    prefix = published.prefix()
    victim = max(published.objects.sizes(f"{prefix}/clean"))
    whole = published.objects.load(victim)
    assert whole is not None
    published.objects.put(victim, b"damaged")
    with pytest.raises(InputError, match="truncated"):
        fetch(published.url, target)
    assert not (target / MANIFEST).exists()
    published.objects.put(victim, whole)
    result = fetch(published.url, target)
    assert result.reused > 0
    assert mill.verify(target).problems == []
    assert fetch(published.url, target).reused == result.files


def test_a_directory_with_something_else_in_it_is_not_fetched_into(
    published: Published, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all I have")
    with pytest.raises(StorageError, match="is not empty"):
        fetch(published.url, tmp_path / "mine")
    with pytest.raises(StorageError, match="has no build rows") as caught:
        fetch(published.url, tmp_path / "new", build="rows")
    assert "no build at all" in caught.value.next


def test_a_run_needs_a_key_of_its_own(published: Published) -> None:
    bucket = published.url.split("/runs")[0]
    with pytest.raises(StorageError, match="needs a key of its own"):
        mill.run(published.recipe, bucket, workers=1)


# Doctor, and secrets
# -----------------------------------------------------------------------------------------------


def test_a_store_that_keeps_its_word_is_found_well_and_left_clean(s3: S3) -> None:
    shown = CliRunner().invoke(main, ["doctor", "--storage", f"{s3.url}/runs", "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)["sections"][f"storage {s3.url}/runs"]
    assert set(found.values()) == {"ok"}
    assert len(found) == 7
    assert s3.sizes() == {}


def test_a_store_that_only_pretends_is_found_out(server: Server, s3: S3, tmp_path: Path) -> None:
    with open_proxy(server.endpoint) as proxy:
        proxy.pretend = True
        env = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        shown = tokmill("doctor", "--storage", f"{s3.url}/runs", "--json", env=env)
        assert shown.returncode == 1
        found = json.loads(shown.stdout)["sections"][f"storage {s3.url}/runs"]
        assert {what for what, outcome in found.items() if outcome.startswith("pretends")} == {
            "create if absent",
            "replace by etag",
            "read by etag",
        }
        work = tmp_path / "work"
        refused = tokmill("run", small_corpus(tmp_path), "--out", f"{s3.url}/runs/x", "--work", work, env=env)
        assert refused.returncode == 1
        assert "does not keep their condition" in " ".join(refused.stderr.split())
        assert not work.exists()
    assert s3.load(f"runs/x/{MANIFEST}") is None


def test_no_secret_is_in_any_output_file_or_message(server: Server, s3: S3, tmp_path: Path) -> None:
    url, work = f"{s3.url}/runs/x", tmp_path / "work"
    recipe = small_corpus(tmp_path / "corpus", problems=20)
    shown = [
        tokmill("run", recipe, "--out", url, "--work", work, "--until", "clean", env=server.env),
        tokmill("verify", url, env=server.env),
        tokmill("doctor", "--storage", url, env=server.env),
        tokmill("run", recipe, "--out", "s3://no-such-bucket/x", env=server.env),
        tokmill("run", recipe, "--out", f"s3://{KEY_ID}:{SECRET}@bucket/x", env=server.env),
    ]
    assert [done.returncode for done in shown] == [0, 0, 0, 1, 1]
    written = [path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    written += [s3.load(key) or b"" for key in s3.sizes()]
    written += [(done.stdout + done.stderr).encode() for done in shown]
    assert len(written) > 40
    for secret in (KEY_ID, SECRET):
        assert not any(secret.encode() in data for data in written)


def test_a_local_copy_of_a_prefix_is_a_run(published: Published, tmp_path: Path) -> None:
    """What `aws s3 cp --recursive` would bring: no tokmill is needed to read a publication."""
    prefix = published.prefix()
    for key, size in published.objects.sizes(f"{prefix}/").items():
        path = tmp_path / "copy" / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        assert path.write_bytes(published.objects.load(key) or b"") == size
    assert mill.verify(tmp_path / "copy").digest == mill.verify(published.url).digest
