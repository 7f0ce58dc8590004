"""Runs from and to object stores, as a user asks for them: through memory://, and through moto's server for S3."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from click.testing import CliRunner

import tokmill as mill
from mill import SHARED, digest_of, small_corpus, tokmill
from object_servers import KEY_ID, SECRET, environment, make_bucket, open_moto, open_proxy, open_uploads
from tokmill.artifacts.manifest import MANIFEST, load_manifest
from tokmill.cli import main
from tokmill.errors import InputChanged, InputError, StorageError
from tokmill.pipeline.plan import plan_steps
from tokmill.pipeline.run import RunResult
from tokmill.publish.publication import fetch
from tokmill.recipe.file import load_recipe
from tokmill.stages.ingest.stage import conduct, perform_ingest
from tokmill.storage.location import find_files, open_binary, open_input, parse_url
from tokmill.storage.objects import Store, open_store


class Server(NamedTuple):
    endpoint: str
    env: dict[str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with open_moto() as endpoint:
        yield Server(endpoint, environment(endpoint))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("local")
    return mill.run(small_corpus(directory), directory / "out", workers=1).out


@pytest.fixture
def s3(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own; this process is told where as a user would be."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    name = uuid.uuid4().hex
    make_bucket(server.endpoint, name)
    return f"s3://{name}"


def store_of(url: str) -> Store:
    return open_store(parse_url(url))


def put(url: str, data: bytes) -> None:
    store_of(url).upload(parse_url(url).key, [data], len(data))


def remote_recipe(directory: Path, bucket: str) -> Path:
    """The corpus of `small_corpus` with one source in the bucket and one beside the recipe."""
    recipe = small_corpus(directory)
    put(f"{bucket}/data/problems.jsonl", (directory / "problems.jsonl").read_bytes())
    (directory / "problems.jsonl").unlink()
    asked = yaml.safe_load(recipe.read_text())
    asked["sources"][0]["files"] = f"{bucket}/data/*.jsonl"
    recipe.write_text(json.dumps(asked))
    return recipe


# Inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_in_a_bucket_gives_what_it_gives_as_a_file(
    s3: str, local: Path, tmp_path: Path, workers: int
) -> None:
    out = mill.run(remote_recipe(tmp_path, s3), tmp_path / "out", workers=workers).out
    assert digest_of(out) == digest_of(local)
    again = mill.run(tmp_path / "recipe.yaml", tmp_path / "out", workers=1)
    assert again.ran == []


def test_an_input_in_memory_is_read_by_the_process_that_holds_it(local: Path, tmp_path: Path) -> None:
    bucket = f"memory://{uuid.uuid4().hex}"
    out = mill.run(remote_recipe(tmp_path, bucket), tmp_path / "out", workers=1).out
    assert digest_of(out) == digest_of(local)


def test_an_input_that_changes_between_two_runs_is_read_again(s3: str, tmp_path: Path) -> None:
    recipe = remote_recipe(tmp_path, s3)
    mill.run(recipe, tmp_path / "out", workers=1, until="ingest")
    lines = (store_of(s3).load("data/problems.jsonl") or pytest.fail("no object")).data.split(b"\n")
    put(f"{s3}/data/problems.jsonl", b"\n".join([lines[1], lines[0], *lines[2:]]))  # of the same size
    assert "ingest/problems" in mill.run(recipe, tmp_path / "out", workers=1, until="ingest").ran


def test_every_kind_of_file_is_read_from_a_bucket(s3: str, tmp_path: Path) -> None:
    source = small_corpus(tmp_path / "corpus")
    base = mill.run(source, tmp_path / "base", workers=1, until="ingest").out
    (shard,) = (base / "ingest/problems").glob("documents-*.parquet")
    put(f"{s3}/d/a.parquet", shard.read_bytes())
    recipe = tmp_path / "recipe.yaml"
    asked = {"name": "r", "sources": [{"name": "s", "files": f"{s3}/d/*", "fields": {"id": "doc_id"}}]}
    recipe.write_text(json.dumps(asked))
    out = mill.run(recipe, tmp_path / "out", workers=1, until="ingest").out
    assert load_manifest(out / "ingest/s").counts["kept"] == 60


def test_a_key_is_found_and_read_whatever_its_letters(server: Server, s3: str, tmp_path: Path) -> None:
    """Written by another client, so that no encoding of ours can hide behind itself."""
    names = ["a b#é[1].jsonl", "x%20y.jsonl", "x*y.jsonl", "~t.jsonl", "q?z.jsonl", "a+b=c&d.jsonl"]
    for name in names:
        address = f"{server.endpoint}/{parse_url(s3).bucket}/data/{urllib.parse.quote(name)}"
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(address, name.encode(), headers, method="PUT")
        urllib.request.urlopen(request).close()
    found = find_files(f"{s3}/data/*.jsonl", tmp_path)
    assert [file.name for file in found] == sorted(names)
    for file in found:
        with open_binary(open_input(str(file.path), file.bytes)) as stream:
            assert stream.read() == file.name.encode()


FORMATS: dict[str, tuple[str, dict[str, object]]] = {
    "wikipedia": ("wikiextractor/en/AA/wiki_00*", {}),
    "parallel": ("fr_en/europarl_2012.jsonl", {"source_key": "fr", "target_key": "en"}),
    "warc": ("warc/*.warc.gz", {}),
}


@pytest.mark.skipif(not (SHARED / "data").exists(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", FORMATS)
def test_a_source_format_reads_objects_as_it_reads_files(tmp_path: Path, name: str) -> None:
    pattern, options = FORMATS[name]
    file = min((SHARED / "data").glob(pattern))
    url = f"memory://{uuid.uuid4().hex}/{file.name}"
    put(url, file.read_bytes())
    identities = []
    for number, where in enumerate((str(file), url)):
        recipe = tmp_path / f"{number}.yaml"
        source = {"name": "s", "files": where, name: options, "max_bad_fraction": "1"}
        recipe.write_text(json.dumps({"name": "r", "sources": [source]}))
        out = mill.run(recipe, tmp_path / f"out-{number}", workers=1, until="ingest").out
        identities.append(load_manifest(out / "ingest/s").identity)
    assert identities[0] == identities[1]


def test_an_archive_that_needs_a_file_is_refused_in_a_bucket(s3: str, tmp_path: Path) -> None:
    put(f"{s3}/dump.7z", b"7z")
    recipe = tmp_path / "recipe.yaml"
    source = {"name": "s", "files": f"{s3}/dump.7z", "stackexchange": {}}
    recipe.write_text(json.dumps({"name": "r", "sources": [source]}))
    with pytest.raises(InputError, match="reads files of this machine"):
        mill.run(recipe, tmp_path / "out", workers=1)


def test_an_object_that_is_replaced_after_planning_ends_the_task(s3: str, tmp_path: Path) -> None:
    recipe = remote_recipe(tmp_path, s3)
    (step, *_) = plan_steps(load_recipe(recipe), tmp_path, tmp_path / "out")
    (task, *_) = next(conduct(step, {}))
    put(f"{s3}/data/problems.jsonl", b"{}" * 10_000)
    with pytest.raises(InputChanged, match="another one by now") as caught:
        perform_ingest(task)
    assert caught.value.where == f"{s3}/data/problems.jsonl"


# Publications ------------------------------------------------------------------------------------------------------


def test_a_run_is_published_proven_and_fetched_by_the_commands(
    server: Server, s3: str, local: Path, tmp_path: Path
) -> None:
    url, work = f"{s3}/runs/x", tmp_path / "work"
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
    assert open_uploads(server.endpoint, parse_url(s3).bucket) == 0


def test_a_run_can_be_published_to_memory(local: Path, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/runs/x"
    result = mill.run(small_corpus(tmp_path), url, workers=1, work=tmp_path / "work")
    assert result.published is not None
    assert mill.verify(url).digest == digest_of(local)
    assert fetch(url, tmp_path / "got").files > 0
    assert digest_of(tmp_path / "got") == digest_of(local)


class Memory(NamedTuple):
    url: str
    recipe: Path
    work: Path
    store: Store

    def run(self, **options: object) -> RunResult:
        return mill.run(self.recipe, self.url, workers=1, work=self.work, until="clean", **options)  # type: ignore[arg-type]

    def prefix(self) -> str:
        found = self.store.load(f"runs/x/{MANIFEST}")
        assert found is not None
        return f"runs/x/{json.loads(found.data)['digest'][:32]}"


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """A small run in memory, to the end of cleaning."""
    url = f"memory://{uuid.uuid4().hex}/runs/x"
    made = Memory(url, small_corpus(tmp_path / "corpus", problems=20), tmp_path / "work", store_of(url))
    made.run()
    return made


def test_the_same_content_from_another_machine_is_already_published(memory: Memory, tmp_path: Path) -> None:
    before = memory.store.load(f"runs/x/{MANIFEST}")
    again = memory._replace(work=tmp_path / "elsewhere").run()
    assert again.published is not None
    assert (again.published.sent, memory.store.load(f"runs/x/{MANIFEST}")) == (0, before)


def test_another_recipe_is_refused_before_any_work_and_replaces_when_told(
    memory: Memory, tmp_path: Path
) -> None:
    old = memory.prefix()
    kept = {meta.key for meta in memory.store.list(f"{old}/")}
    other = memory._replace(
        recipe=small_corpus(tmp_path / "other", problems=21, name="other"), work=tmp_path / "other-work"
    )
    with pytest.raises(
        StorageError, match=r"another run is published here \(recipe small, experiment "
    ) as caught:
        other.run()
    assert "--replace" in caught.value.next
    assert not other.work.exists(), "the work was done first, and in vain"
    assert other.run(replace=True).published.sent > 0  # type: ignore[union-attr]
    assert memory.prefix() != old
    assert mill.verify(memory.url).ok
    assert {meta.key for meta in memory.store.list(f"{old}/")} == kept, (
        "a reader of the old one sees a mixture"
    )


def test_other_inputs_are_refused_too(memory: Memory) -> None:
    notes = memory.recipe.parent / "notes.txt"
    notes.write_bytes(notes.read_bytes() + b"\n\nOne more.\n")
    with pytest.raises(StorageError, match="its inputs were others"):
        memory.run()
    assert memory.run(replace=True).published is not None


def test_a_file_of_the_work_directory_that_was_damaged_is_not_published(memory: Memory) -> None:
    fresh = memory._replace(url=f"{memory.url}2")
    path = next((memory.work / "run" / "clean").rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="is not as it was written") as caught:
        fresh.run()
    assert caught.value.where == str(path)
    assert memory.store.load(f"runs/x2/{MANIFEST}") is None


def test_every_damage_to_every_object_is_found_and_named(memory: Memory) -> None:
    prefix = memory.prefix()
    keys = [meta.key for meta in memory.store.list(f"{prefix}/") if meta.key != f"{prefix}/{MANIFEST}"]
    assert len(keys) > 10
    for key in keys:
        original = memory.store.load(key)
        assert original is not None
        flipped = bytes([original.data[0] ^ 1]) + original.data[1:]
        for damaged in (None, original.data[:-1], original.data + b"\0", flipped):
            if damaged is None:
                memory.store.delete(key)
            else:
                memory.store.upload(key, [damaged], len(damaged))
            report = mill.verify(memory.url)
            assert not report.ok
            assert [p.where.removeprefix(f"{prefix[7:]}/") for p in report.problems] == [
                key.removeprefix(f"{prefix}/")
            ]
        memory.store.upload(key, [original.data], len(original.data))
    assert mill.verify(memory.url).ok


def test_an_edited_manifest_is_found(memory: Memory) -> None:
    key = f"runs/x/{MANIFEST}"
    found = memory.store.load(key)
    assert found is not None
    data = found.data.replace(b'"seed": 7', b'"seed": 8')
    memory.store.upload(key, [data], len(data))
    assert [p.where for p in mill.verify(memory.url).problems] == [MANIFEST]


def test_where_nothing_is_published_it_is_said(s3: str, tmp_path: Path) -> None:
    for ask in (lambda: mill.verify(f"{s3}/none"), lambda: fetch(f"{s3}/none", tmp_path / "x")):
        with pytest.raises(StorageError, match="nothing is published here"):
            ask()
    assert not (tmp_path / "x").exists()


def test_a_fetch_that_was_cut_short_goes_on(memory: Memory, tmp_path: Path) -> None:
    target = tmp_path / "got"
    prefix = memory.prefix()
    victim = max(memory.store.list(f"{prefix}/clean"), key=lambda meta: meta.key)
    whole = memory.store.load(victim.key)
    assert whole is not None
    memory.store.upload(victim.key, [b"damaged"], 7)
    with pytest.raises(InputError, match="truncated"):
        fetch(memory.url, target)
    assert not (target / MANIFEST).exists()
    memory.store.upload(victim.key, [whole.data], len(whole.data))
    result = fetch(memory.url, target)
    assert result.reused > 0
    assert mill.verify(target).problems == []
    assert fetch(memory.url, target).reused == result.files


def test_a_directory_with_something_else_in_it_is_not_fetched_into(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all I have")
    with pytest.raises(StorageError, match="is not empty"):
        fetch(memory.url, tmp_path / "mine")
    with pytest.raises(StorageError, match="has no build rows") as caught:
        fetch(memory.url, tmp_path / "new", build="rows")
    assert "no build at all" in caught.value.next


def test_a_run_needs_a_key_of_its_own(memory: Memory) -> None:
    bucket = memory.url.split("/runs")[0]
    with pytest.raises(StorageError, match="needs a key of its own"):
        mill.run(memory.recipe, bucket, workers=1)


# Doctor, and secrets -----------------------------------------------------------------------------------------------


def test_a_store_that_keeps_its_word_is_found_well_and_left_clean(s3: str) -> None:
    shown = CliRunner().invoke(main, ["doctor", "--storage", f"{s3}/runs", "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)["sections"][f"storage {s3}/runs"]
    assert set(found.values()) == {"ok"}
    assert len(found) == 7
    assert list(store_of(s3).list("")) == []


def test_a_store_that_only_pretends_is_found_out(server: Server, s3: str, tmp_path: Path) -> None:
    with open_proxy(server.endpoint) as proxy:
        proxy.pretend = True
        env = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        shown = tokmill("doctor", "--storage", f"{s3}/runs", "--json", env=env)
        assert shown.returncode == 1
        found = json.loads(shown.stdout)["sections"][f"storage {s3}/runs"]
        assert {what for what, outcome in found.items() if outcome.startswith("pretends")} == {
            "create if absent",
            "replace by etag",
            "read by etag",
        }
        work = tmp_path / "work"
        refused = tokmill("run", small_corpus(tmp_path), "--out", f"{s3}/runs/x", "--work", work, env=env)
        assert refused.returncode == 1
        assert "does not keep their condition" in " ".join(refused.stderr.split())
        assert not work.exists()
    assert store_of(s3).load(f"runs/x/{MANIFEST}") is None


def test_no_secret_is_in_any_output_file_or_message(server: Server, s3: str, tmp_path: Path) -> None:
    url, work = f"{s3}/runs/x", tmp_path / "work"
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
    written += [store_of(s3).load(meta.key).data for meta in store_of(s3).list("")]  # type: ignore[union-attr]
    written += [(done.stdout + done.stderr).encode() for done in shown]
    assert len(written) > 40
    for secret in (KEY_ID, SECRET):
        assert not any(secret.encode() in data for data in written)


def test_a_local_copy_of_a_prefix_is_a_run(memory: Memory, tmp_path: Path) -> None:
    """What `aws s3 cp --recursive` would bring: no tokmill is needed to read a publication."""
    prefix = memory.prefix()
    for meta in memory.store.list(f"{prefix}/"):
        path = tmp_path / "copy" / meta.key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(memory.store.read(meta.key, 0, meta.size, None))
    assert mill.verify(tmp_path / "copy").digest == mill.verify(memory.url).digest
