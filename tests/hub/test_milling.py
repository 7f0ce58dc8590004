"""A hub dataset through the command line: pinned once, offline after, the same however it was interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forked import run_forked
from hub.loopback import LoopbackHub
from mill import digest_of, write_recipe
from tokmill.demo.problems import generate_problems
from tokmill.manifest import load_manifest

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


COMMAND = [sys.executable, "-c", "from tokmill.cli import main; main()"]


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


def parquet(rows: list[dict[str, str]], group: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=group)
    return sink.getvalue()


@pytest.fixture
def published(hub: LoopbackHub) -> str:
    rows = generate_problems(600, 5)
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
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(generate_problems(5, 6), 5)})
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
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(generate_problems(5, 6), 5)})
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
        driver = subprocess.Popen(
            [*COMMAND, "run", str(recipe), "--workers", "1"],
            env=environment(hub, tmp_path / "rough"),
            cwd=tmp_path / "rough",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while driver.poll() is None and len(hub.seen("GET", "/resolve/")) - before < asked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(timeout=0.02)
        driver.kill()
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
        "--root",
        tmp_path / "root",
    ]
    first = tokmill(hub, tmp_path, *command, "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["revision"], report["invariants"]["rows"]) == (published, 600)
    assert Path(report["manifest"]).name == f"mills--problems_{published}.json"
    asked = len(hub.seen())
    hub.commit(DATASET, {"data/train-00000-of-00001.parquet": parquet(generate_problems(5, 6), 5)})
    assert tokmill(hub, tmp_path, *command, "--json").stdout == first.stdout
    assert len(hub.seen()) == asked
