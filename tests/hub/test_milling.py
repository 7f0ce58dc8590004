"""A hub dataset through the command line: pinned once, offline after, the same however it was interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from cleaned import prose
from forked import MAIN, run_forked, start_forked
from hub.loopback import LoopbackHub
from mill import digest_of, write_recipe
from written import load_manifest

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("datasets") and importlib.util.find_spec("huggingface_hub")),
    reason="the extra `hub` is not installed",
)

DATASET = "mills/problems"
SOURCE = {
    "name": "problems",
    "hub": {"dataset": DATASET, "split": "train", "revision": "main"},
    "template": "{question} {answer}",
}


def environment(hub: LoopbackHub, home: Path) -> dict[str, str]:
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")
    }
    return {
        **inherited,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "TOKMILL_WORKERS": "1",
    }


def tokmill(
    hub: LoopbackHub, home: Path, *arguments: str | Path, **more: str
) -> subprocess.CompletedProcess[str]:
    return run_forked(list(map(str, arguments)), {**environment(hub, home), **more}, home)


def problems(count: int, seed: int) -> list[dict[str, str]]:
    return [
        {"id": f"p{seed}-{n}", "question": prose(1000 * seed + n, 2), "answer": f"Answer: {n}"}
        for n in range(count)
    ]


def parquet(rows: list[dict[str, str]], group: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=group)
    return sink.getvalue()


@pytest.fixture
def published(hub: LoopbackHub) -> str:
    rows = problems(600, 5)
    for number, row in enumerate(rows):
        row["language"] = "en" if number % 3 else "fr"
    files = {
        f"data/train-{n:05d}-of-00003.parquet": parquet(rows[n * 200 : n * 200 + 200], 60) for n in range(3)
    }
    return hub.commit(DATASET, files)


def recipe_in(directory: Path, **source: object) -> Path:
    return write_recipe(
        directory, sources=[{**SOURCE, **source}], tokenizer=None, builds=None, shards={"megabytes": 1}
    )


def test_a_branch_is_resolved_once_and_nothing_is_asked_again(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    recipe = recipe_in(tmp_path)
    first = tokmill(hub, tmp_path, "run", recipe, HF_TOKEN="hf_secretsecretsecret")
    assert first.returncode == 0, first.stderr
    manifest = load_manifest(tmp_path / "out/small/ingest/problems")
    assert manifest.config["hub"]["revision"] == published
    assert manifest.counts["kept"] == 600
    asked = len(hub.seen())
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(problems(5, 6), 5)})
    second = tokmill(hub, tmp_path, "run", recipe)
    assert "nothing to do" in second.stdout
    # another filter on the text needs no network either
    (tmp_path / "recipe.yaml").write_text(
        (tmp_path / "recipe.yaml").read_text().replace('"min": 5', '"min": 50')
    )
    assert tokmill(hub, tmp_path, "run", recipe).returncode == 0
    assert len(hub.seen()) == asked
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hf_secret" in p.read_bytes()]


def test_the_pin_stays_when_the_branch_moves_and_the_recipe_changes(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    assert tokmill(hub, tmp_path, "run", recipe_in(tmp_path)).returncode == 0
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(problems(5, 6), 5)})
    limited = recipe_in(tmp_path, limit={"docs": 450})
    assert tokmill(hub, tmp_path, "run", limited).returncode == 0
    manifest = load_manifest(tmp_path / "out/small/ingest/problems")
    assert manifest.config["hub"]["revision"] == published
    assert manifest.counts["kept"] == 450


def test_a_dropped_connection_and_a_rate_limit_change_nothing(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    (tmp_path / "calm").mkdir()
    assert tokmill(hub, tmp_path / "calm", "run", recipe_in(tmp_path / "calm")).returncode == 0
    hub.drop("data/train-00001-of-00003.parquet", after_bytes=3000, times=1)
    hub.rate_limit(2, retry_after="0", only="resolve")
    (tmp_path / "rough").mkdir()
    rough = tokmill(hub, tmp_path / "rough", "run", recipe_in(tmp_path / "rough"), "--workers", "2")
    assert rough.returncode == 0, rough.stderr
    assert "429" in rough.stderr
    assert "parquet: the hub cannot be reached or the connection broke" in rough.stderr  # by a worker
    assert digest_of(tmp_path / "rough/out/small") == digest_of(tmp_path / "calm/out/small")


def test_a_run_killed_in_the_middle_of_the_stream_resumes_without_a_duplicate_or_a_gap(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    (tmp_path / "calm").mkdir()
    assert tokmill(hub, tmp_path / "calm", "run", recipe_in(tmp_path / "calm")).returncode == 0
    (tmp_path / "rough").mkdir()
    recipe = recipe_in(tmp_path / "rough")
    for asked in (1, 3, 5):  # killed when the hub has been asked for so many pieces of data files
        before = len(hub.seen("GET", "/resolve/"))
        with Path(os.devnull).open("wb") as nowhere:
            driver = start_forked(
                [MAIN, "run", str(recipe), "--workers", "1"],
                environment(hub, tmp_path / "rough"),
                tmp_path / "rough",
                nowhere.fileno(),
                nowhere.fileno(),
            )
        while driver.poll() is None and len(hub.seen("GET", "/resolve/")) - before < asked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(timeout=0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert tokmill(hub, tmp_path / "rough", "run", recipe).returncode == 0
    assert load_manifest(tmp_path / "rough/out/small/ingest/problems").counts["kept"] == 600
    assert digest_of(tmp_path / "rough/out/small") == digest_of(tmp_path / "calm/out/small")


def test_a_field_filter_on_a_column_that_is_nowhere_is_an_error_before_anything_is_downloaded(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    recipe = recipe_in(tmp_path, where={"language": "en"})
    assert tokmill(hub, tmp_path, "run", recipe).returncode == 0
    manifest = load_manifest(tmp_path / "out/small/ingest/problems")
    assert manifest.counts["dropped"] == {"other_language": 200}
    assert manifest.facts["presence"] == {"records": 600, "where.language": 600}
    (tmp_path / "typo").mkdir()
    done = tokmill(hub, tmp_path, "run", recipe_in(tmp_path / "typo", where={"langauge": "en"}))
    assert done.returncode == 1
    assert "did you mean `language`?" in done.stderr
    assert not list((tmp_path / "typo").rglob("documents-*"))


def test_columns_that_only_some_files_of_a_dataset_have_are_asked_of_all_of_them(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    def columns(**columns: list[str]) -> bytes:
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue()

    hub.commit(
        "mills/mixed",
        {
            "data/train-00000-of-00002.parquet": columns(text=["free one", "free two"]),
            "data/train-00001-of-00002.parquet": columns(text=["not for sale"], license=["CC-BY-NC-4.0"]),
        },
    )
    recipe = recipe_in(tmp_path, hub={"dataset": "mills/mixed"}, template=None, license="MIT")
    content = json.loads(recipe.read_text())
    recipe.write_text(json.dumps({**content, "license": {"allow": ["MIT"], "unknown": "drop"}}))
    done = tokmill(hub, tmp_path, "run", recipe, "--until", "clean")
    assert done.returncode == 0, done.stderr
    assert load_manifest(tmp_path / "out/small/clean/problems").counts["dropped"] == {
        "license_not_allowed": 1
    }


def test_ingest_hub_needs_no_recipe(hub: LoopbackHub, published: str, tmp_path: Path) -> None:
    arguments = ["--template", "{question} {answer}", "--limit", "docs=120", "--out", "here", "--json"]
    done = tokmill(hub, tmp_path, "ingest", "hub", DATASET, *arguments)
    report = json.loads(done.stdout)
    assert (done.returncode, report["revision"]) == (0, published)
    assert report["steps"]["ingest/problems"]["counts"]["kept"] == 120
    assert digest_of(tmp_path / "here")


def test_require_pin_refuses_a_branch_without_a_request(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    done = tokmill(
        hub, tmp_path, "ingest", "hub", DATASET, "--revision", "main", "--require-pin", "--out", "here"
    )
    assert done.returncode == 1
    assert "40 hex digits" in done.stderr
    assert hub.seen() == []


def test_remote_code_is_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.commit("mills/script", {"script.py": b"print('no')", "data.jsonl": b'{"text": "a"}\n'})
    recipe = recipe_in(tmp_path, hub={"dataset": "mills/script"}, template=None)
    done = tokmill(hub, tmp_path, "run", recipe)
    assert done.returncode == 1
    assert "script.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_configs_are_listed_by_tag(hub: LoopbackHub, tmp_path: Path) -> None:
    card = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files: {name}/*.jsonl\n"
        for name in ("eng_Latn", "asm_Beng", "fra_Latn")
    )
    files = {f"{name}/a.jsonl": b'{"text": "a"}\n' for name in ("eng_Latn", "asm_Beng", "fra_Latn")}
    hub.commit("mills/many", {"README.md": f"{card}---\n".encode(), **files})
    done = tokmill(hub, tmp_path, "hub", "configs", "mills/many", "--lang", "eng", "--json")
    assert json.loads(done.stdout)["configs"] == ["eng_Latn"]
    loose = tokmill(hub, tmp_path, "hub", "configs", "mills/many", "--contains", "en")
    assert loose.stdout.split() == ["asm_Beng", "eng_Latn"]
    assert "compares letters, not languages" in loose.stderr


def test_a_dataset_is_materialized_once_and_offline_after(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    command = [
        "materialize",
        "hub",
        DATASET,
        "--template",
        "{question} {answer}",
        "--out",
        tmp_path / "root",
    ]
    first = tokmill(hub, tmp_path, *command, "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["revision"], report["invariants"]["rows"]) == (published, 600)
    assert Path(report["manifest"]).name == f"mills--problems_{published}.json"
    asked = len(hub.seen())
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(problems(5, 6), 5)})
    assert tokmill(hub, tmp_path, *command, "--json").stdout == first.stdout
    assert len(hub.seen()) == asked


def bytes_asked(hub: LoopbackHub) -> dict[str, int]:
    """By data file, from the ranges of the requests."""
    asked: dict[str, int] = {}
    for request in hub.seen("GET", "/resolve/"):
        path = request.path.partition("/resolve/")[2].partition("/")[2]
        start, end = request.headers["range"].removeprefix("bytes=").split("-")
        asked[path] = asked.get(path, 0) + int(end) - int(start) + 1
    return asked


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("bound", [{"limit": {"docs": 1000}}, {"sample": {"method": "head", "k": 1000}}])
def test_a_head_of_a_dataset_of_many_files_asks_for_no_byte_of_the_others(
    hub: LoopbackHub, tmp_path: Path, ending: str, bound: dict[str, object]
) -> None:
    rows = problems(400, 5)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    data = parquet(rows, 100) if ending == "parquet" else lines
    few, many = "mills/few", "mills/many"
    hub.commit(few, {f"data/train-{n:05d}.{ending}": data for n in range(3)})
    hub.commit(many, {f"data/train-{n:05d}.{ending}": data for n in range(60)})
    kept, questions = {}, {}
    for dataset in (few, many):
        home = tmp_path / dataset.rpartition("/")[2]
        home.mkdir()
        before = len(hub.log)
        recipe = recipe_in(home, hub={"dataset": dataset, "split": "train"}, **bound)
        done = tokmill(hub, home, "run", recipe)
        assert done.returncode == 0, done.stderr
        manifest = load_manifest(home / "out/small/ingest/problems")
        kept[dataset] = [entry.content_sha256 for entry in manifest.entries("documents")]
        questions[dataset] = [r.method for r in hub.log[before:] if "/api/" in r.path]
        assert manifest.counts["kept"] == 1000
    assert kept[few] == kept[many]
    assert questions[few] == questions[many], "files are listed at once, however many there are"
    asked = bytes_asked(hub)
    assert set(asked) == {f"data/train-{n:05d}.{ending}" for n in range(3)}
    # for two datasets: the files themselves, their footers (64 KiB at a time),
    # and the last of them once more up to what was left
    assert sum(asked.values()) <= 2 * 4 * (len(data) + 3 * (64 << 10))


def test_a_shuffled_part_and_a_mixture_file_with_max_records_leave_the_other_files_alone(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    rows = problems(400, 5)
    hub.commit(DATASET, {f"data/train-{n:05d}.parquet": parquet(rows, 100) for n in range(40)})
    shuffled = recipe_in(tmp_path, sample={"method": "shuffle_buffer", "k": 300, "buffer": 50})
    assert tokmill(hub, tmp_path, "run", shuffled).returncode == 0
    assert set(bytes_asked(hub)) == {"data/train-00000.parquet"}
    (tmp_path / "mixture.yaml").write_text(
        f"datasets: [{{name: p, dataset: {DATASET}, template: '{{question}} {{answer}}', max_records: 500}}]"
    )
    arguments = ["--manifest", tmp_path / "mixture.yaml", "--vocab-size", "300", "--model", "byte_bpe"]
    trained = tokmill(hub, tmp_path, "tokenizer", "train", *arguments, "--out", tmp_path / "tok", "--json")
    assert trained.returncode == 0, trained.stderr
    assert set(bytes_asked(hub)) == {"data/train-00000.parquet", "data/train-00001.parquet"}
    (dataset,) = json.loads(trained.stdout)["datasets"]
    assert dataset["samples"] == 500


LANGUAGES = "mills/languages"


@pytest.fixture
def languages(hub: LoopbackHub) -> str:
    names = ["asm_Beng", "deu_Latn", "fra_Latn", "fra_Latn_removed", "srp_Cyrl", "srp_Latn"]
    return publish_languages(hub, names)


def publish_languages(hub: LoopbackHub, names: list[str]) -> str:
    """A config for each language, and none is the default: as FineWeb-2 is."""
    card = {
        "configs": [
            {"config_name": name, "data_files": [{"split": "train", "path": f"data/{name}/*.jsonl"}]}
            for name in names
        ]
    }
    texts = {
        name: json.dumps({"id": name, "text": f"A page of {name}.", "language": name[:2]}) for name in names
    }
    files = {f"data/{name}/0.jsonl": f"{text}\n".encode() for name, text in texts.items()}
    return hub.commit(LANGUAGES, {"README.md": f"---\n{json.dumps(card)}\n---\n".encode(), **files})


def of_languages(directory: Path, keep: list[str], **hub: str) -> Path:
    source = {"name": "pages", "hub": {"dataset": LANGUAGES, **hub}, "fields": {"language": "language"}}
    language = {"method": "field", "keep": keep}
    return write_recipe(
        directory, sources=[source], language=language, filters=None, tokenizer=None, builds=None
    )


def ids_read(out: Path) -> list[str]:
    directory = out / "ingest/pages"
    entries = load_manifest(directory).entries("documents")
    return [i for entry in entries for i in pq.read_table(directory / entry.path)["doc_id"].to_pylist()]


def test_of_many_languages_the_one_that_is_kept_is_read_and_a_notice_says_so(
    hub: LoopbackHub, languages: str, tmp_path: Path
) -> None:
    out = tmp_path / "out/small"
    done = tokmill(hub, tmp_path, "run", of_languages(tmp_path, ["fr"]), "--until", "ingest")
    assert done.returncode == 0, done.stderr
    assert (
        "mills/languages has 6 configs and no default: fra_Latn is read, for the language fr" in done.stderr
    )
    assert ids_read(out) == ["fra_Latn"]
    asked = len(hub.log)
    again = tokmill(hub, tmp_path, "run", of_languages(tmp_path, ["fr"]), "--until", "ingest")
    assert again.returncode == 0, again.stderr
    assert len(hub.log) == asked, "it is known what was read"
    german = tokmill(hub, tmp_path, "run", of_languages(tmp_path, ["de"]), "--until", "ingest")
    assert german.returncode == 0, german.stderr
    assert ids_read(out) == ["deu_Latn"]
    named = tokmill(
        hub, tmp_path, "run", of_languages(tmp_path, ["de"], config="asm_Beng"), "--until", "ingest"
    )
    assert "no default" not in named.stderr
    assert ids_read(out) == ["asm_Beng"]


def test_an_estimate_reads_the_config_of_the_language_that_is_kept(
    hub: LoopbackHub, languages: str, tmp_path: Path
) -> None:
    done = tokmill(hub, tmp_path, "plan", of_languages(tmp_path, ["fr"]), "--estimate", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("configs and no default: fra_Latn is read") == 1
    (source,) = json.loads(done.stdout)["estimate"]["sources"].values()
    assert source["documents"] == source["kept"][0] == 1


@pytest.mark.parametrize("keep", [[], ["en"], ["sr"], ["fr", "de"]])
def test_where_it_is_not_clear_which_language_the_configs_are_listed(
    hub: LoopbackHub, languages: str, tmp_path: Path, keep: list[str]
) -> None:
    done = tokmill(hub, tmp_path, "run", of_languages(tmp_path, keep), "--until", "ingest")
    assert done.returncode == 1
    assert "several configs, and none is the default" in done.stderr
    assert "asm_Beng, deu_Latn, fra_Latn" in done.stderr


def test_of_many_languages_english_is_ingested_where_none_is_asked_for(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    publish_languages(hub, ["asm_Beng", "eng_Latn", "fra_Latn"])
    hub.moved["languages"] = LANGUAGES
    done = tokmill(hub, tmp_path, "ingest", "hub", "languages", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    said = "has 3 configs and no default: eng_Latn is read, as no language is asked for; `config` chooses"
    assert said in done.stderr
    assert done.stderr.count(f"languages is {LANGUAGES} on the hub") == 1
    (directory,) = (tmp_path / "out/ingest").iterdir()
    (entry,) = load_manifest(directory).entries("documents")
    assert pq.read_table(directory / entry.path)["doc_id"].to_pylist() == ["eng_Latn"]


def test_other_options_are_refused_before_anything_is_fetched_and_another_name_keeps_both(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    command = [
        "materialize",
        "hub",
        DATASET,
        "--template",
        "{question} {answer}",
        "--out",
        tmp_path / "root",
    ]
    first = tokmill(hub, tmp_path, *command)
    assert first.returncode == 0, first.stderr
    held = {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()}
    fetched = len(hub.seen(containing="/resolve/"))
    other = tokmill(hub, tmp_path, *command, "--limit", "docs=5")
    assert other.returncode == 1
    assert "was materialized with other options: `source.limit` added" in other.stderr
    assert len(hub.seen(containing="/resolve/")) == fetched
    assert {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()} == held
    named = tokmill(hub, tmp_path, *command, "--limit", "docs=5", "--name", "five", "--json")
    assert named.returncode == 0, named.stderr
    report = json.loads(named.stdout)
    assert (report["dataset"], report["revision"], report["invariants"]["rows"]) == ("five", published, 5)
    assert all(path.read_bytes() == data for path, data in held.items())


def test_every_verb_that_reads_an_unpinned_dataset_records_the_commit_that_it_read(
    hub: LoopbackHub, published: str, tmp_path: Path
) -> None:
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(
        f'datasets: [{{name: problems, dataset: {DATASET}, template: "{{question}} {{answer}}"}}]\n'
    )

    def run(*arguments: str | Path) -> str:
        done = tokmill(hub, tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        assert f"{DATASET}: main is commit {published} now" in done.stderr
        return done.stdout

    options = ("--model", "byte_bpe", "--vocab-size", "300", "--out", tmp_path / "tok")
    run("tokenizer", "train", "--manifest", mixture, *options)
    log = json.loads((tmp_path / "tok/tokenizer.log.json").read_text())
    assert [item["revision"] for item in log["datasets"]] == [published]

    model = ("--tokenizer", tmp_path / "tok/tokenizer.json")
    run("shard", mixture, *model, "--out", tmp_path / "shards", "--stats", tmp_path / "log.json")
    assert json.loads((tmp_path / "log.json").read_text())["stats"][0]["revision"] == published
    run("build", "megatron", "--manifest", mixture, *model, "--out", tmp_path / "mega")
    run("pack", "--manifest", mixture, *model, "--length", "64", "--out", tmp_path / "rows")
    read = {"dataset": DATASET, "config": None, "split": "train", "revision": published}
    for built in ("shards/problems", "mega", "rows"):
        manifest = json.loads((tmp_path / built / "manifest.json").read_text())
        assert manifest["facts"]["hub"] == {"problems": read}
    run("encode", mixture, "--tokenizer", tmp_path / "tok/tokenizer.json", "--out", tmp_path / "cache")
    assert json.loads((tmp_path / "cache/ENCODE.meta.json").read_text())["hub"] == {"problems": read}
    for directory in ("shards", "mega", "rows", "cache"):
        assert tokmill(hub, tmp_path, "verify", tmp_path / directory).returncode == 0


def test_licence_date_language_id_and_more_are_taken_from_the_fields_that_are_named(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    rows = [
        {
            "body": f"text number {n}",
            "key": f"k{n}",
            "rights": "MIT",
            "day": f"2024-01-{n:02d}",
            "lang": "en",
            "n": n,
        }
        for n in range(1, 10)
    ]
    rows[3]["rights"] = None
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    sha = hub.commit("mills/noted", {"data/train.jsonl": data})
    options = [
        *("--text", "body", "--id-field", "key", "--license-field", "rights", "--created-at-field", "day"),
        *("--language-field", "lang", "--meta", "n", "--license", "CC0-1.0"),
    ]
    done = tokmill(hub, tmp_path, "ingest", "hub", "mills/noted", *options, "--out", tmp_path / "in")
    assert done.returncode == 0, done.stderr
    (shard,) = (tmp_path / "in").rglob("documents-*.parquet")
    made = tokmill(hub, tmp_path, "materialize", "hub", "mills/noted", *options, "--out", tmp_path / "root")
    assert made.returncode == 0, made.stderr
    (packed,) = (tmp_path / "root/corpora").rglob("*.zst")
    with zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()) as reader:
        lines = [json.loads(line) for line in reader.readall().splitlines()]
    for documents in (pq.read_table(shard).to_pylist(), lines):
        for row, document in zip(rows, documents, strict=True):
            assert (document["text"], document["doc_id"]) == (row["body"], row["key"])
            assert document["license_tag"] == (row["rights"] or "CC0-1.0")
            assert document["created_at"] == row["day"]
            meta = document["meta"]
            assert (json.loads(meta) if isinstance(meta, str) else meta) == {"n": row["n"], "lang": "en"}
    assert f"{sha}" in made.stdout


def test_a_dataset_that_is_not_there_leaves_nothing_behind(hub: LoopbackHub, tmp_path: Path) -> None:
    done = tokmill(hub, tmp_path, "materialize", "hub", "mills/nowhere", "--out", tmp_path / "root")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert not list((tmp_path / "root").glob("*"))
