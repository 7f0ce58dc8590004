"""`tokmill export --push`: the real client against a hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokmill
from hub.conftest import Client
from hub.loopback import LoopbackHub
from mill import tokmill as command
from stages.test_texts import corpus, read_texts, recipe

TOKEN = "hf_thisTokenMayWrite"
PUSH = """
import tokmill
shown["refused"] = told(tokmill.export, {run!r}, out={to!r}, format={format!r}, replace=True,
                        push={push!r}, workers=1)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pushed")
    corpus(directory, documents=200)
    return tokmill.run(recipe(directory, builds=None), directory / "out", workers=1).out


def push(client: Client, run: Path, to: Path, format: str = "jsonl", name: str = "org/texts", **env: str):
    script = PUSH.format(run=str(run), to=str(to), format=format, push=name)
    return client(script, **{"HF_TOKEN": TOKEN, **env})


def files_of(hub: LoopbackHub) -> dict[str, bytes]:
    repository = hub.repositories["org/texts"]
    return repository.commits[repository.branches["main"]]


def test_every_file_of_an_export_is_on_the_hub_byte_by_byte(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    hub.token = TOKEN
    found = push(client, run, tmp_path / "texts", "webdataset")
    assert found["refused"] is None
    local = {
        path.relative_to(tmp_path / "texts").as_posix(): path.read_bytes()
        for path in (tmp_path / "texts").rglob("*")
        if path.is_file()
    }
    assert files_of(hub) == local
    assert {"README.md", "manifest.json"} < set(local)
    assert any(len(data) >= 10_000 for data in local.values()), "one of them is large"
    assert TOKEN not in found["output"]


def test_datasets_loads_what_was_pushed_with_its_splits(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    push(client, run, tmp_path / "texts", "parquet")
    found = client(
        """
        import datasets
        both = datasets.load_dataset("org/texts")
        show(ids={name: list(part["doc_id"]) for name, part in both.items()})
        """
    )
    for split, name in (("train", "train"), ("valid", "validation")):
        assert found["ids"][name] == [r["doc_id"] for r in read_texts(tmp_path / "texts", split)]


def test_files_of_an_earlier_push_that_are_no_more_go_and_others_stay(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    hub.commit("org/texts", {"train/texts-00099.jsonl.zst": b"old", "LICENSE": b"MIT"})
    push(client, run, tmp_path / "texts")
    files = files_of(hub)
    assert "train/texts-00099.jsonl.zst" not in files
    assert files["LICENSE"] == b"MIT"
    push(client, run, tmp_path / "texts", "parquet")
    assert not [path for path in files_of(hub) if path.endswith(".jsonl.zst")]


def test_a_token_that_may_not_write_is_told_and_never_shown(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    hub.token = TOKEN
    found = push(client, run, tmp_path / "texts", HF_TOKEN="hf_wrongOne")
    kind, said, whole = found["refused"]
    assert kind == "InputError"
    assert "the hub refuses to be written to (401)" in said
    assert "check that HF_TOKEN is valid, and may write" in said
    assert "hf_wrongOne" not in whole + found["output"]
    assert "org/texts" not in hub.repositories


def test_a_hub_that_is_busy_is_asked_again(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    hub.reject(2, 503, only="/api/repos/create")
    found = push(client, run, tmp_path / "texts")
    assert found["refused"] is None
    assert files_of(hub)


def test_a_hub_that_does_not_take_the_dataset_is_told(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    hub.reject(1, 422, only="/commit/")
    _, said, _ = push(client, run, tmp_path / "texts")["refused"]
    assert "the hub does not take the dataset (422)" in said


def test_without_a_token_or_with_no_name_nothing_is_made(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    to = tmp_path / "texts"
    done = command("export", run, "--out", to, "--push", "org/texts", env={"HF_TOKEN": ""})
    assert done.returncode == 1
    assert "no token to push with" in done.stderr
    assert "set HF_TOKEN" in done.stderr
    done = command("export", run, "--out", to, "--push", "texts", env={"HF_TOKEN": TOKEN})
    assert "'texts' is no name of a dataset" in done.stderr
    assert not to.exists()


def test_the_command_says_which_commit_it_made(
    run: Path, hub: LoopbackHub, client: Client, tmp_path: Path
) -> None:
    script = """
    import tokmill
    made = tokmill.export({run!r}, out={to!r}, push="org/texts", workers=1)
    show(pushed=made.as_json()["pushed"])
    """.format(run=str(run), to=str(tmp_path / "texts"))
    told = client(script, HF_TOKEN=TOKEN)["pushed"]
    assert told["revision"] == hub.repositories["org/texts"].branches["main"]
    assert told["dataset"] == "org/texts"
    assert json.dumps(told).count(TOKEN) == 0
