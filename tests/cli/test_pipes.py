"""`-`: JSON lines come in by a pipe and go on by one, and nothing else is on stdout."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from trained import train
from written import ZstdFile

WORDS = ["the", "mill", "stands", "by", "the", "river", "and", "turns", "all", "day", "long"]
RECORDS = [
    {"id": f"d{n}", "text": " ".join([*WORDS[n % 5 :], f"number {n % 20}."]), "license": "MIT"}
    for n in range(60)
]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def run(
    *words: str | Path, given: bytes = LINES, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from tokmill.cli import main; main()", *map(str, words)]
    environment = {**os.environ, "TOKMILL_WORKERS": "1"}
    return subprocess.run(command, input=given, capture_output=True, check=False, env=environment, cwd=cwd)


def documents(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_filter_between_pipes_keeps_what_it_keeps_of_a_file(tmp_path: Path) -> None:
    rule = ("--rule", "chars>=45")
    done = run("filter", "-", *rule)
    kept = documents(done)
    assert [row["doc_id"] for row in kept] == [r["id"] for r in RECORDS if len(r["text"]) >= 45]
    assert all(row["text"] == RECORDS[int(row["doc_id"][1:])]["text"] for row in kept)
    assert f"{len(kept)} of 60 documents" in done.stderr.decode()
    assert "tokmill-pipe-" not in done.stderr.decode()
    (tmp_path / "in.jsonl").write_bytes(LINES)
    assert run("filter", tmp_path / "in.jsonl", *rule, "--out", tmp_path / "out").returncode == 0
    with ZstdFile(tmp_path / "out/files-00000.jsonl.zst") as file:
        assert file.read() == done.stdout


def test_a_pipe_of_steps_has_the_ids_and_licences_of_its_beginning() -> None:
    normal = run("normalize", "-", "--unicode", "NFC")
    once = documents(run("dedup", "-", "--mode", "exact", given=normal.stdout))
    assert len(once) == len({record["text"] for record in RECORDS})
    first = {record["text"]: record["id"] for record in reversed(RECORDS)}
    assert [row["doc_id"] for row in once] == [i for i in (r["id"] for r in RECORDS) if i in first.values()]
    assert Counter(row["license_tag"] for row in once) == {"MIT": len(once)}


def test_a_sample_and_an_ingest_go_to_standard_output_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES)
    drawn = documents(run("sample", "-", "--k", "7", "--seed", "3"))
    again = documents(run("sample", tmp_path / "in.jsonl", "--k", "7", "--seed", "3", "--out", "-"))
    assert (drawn, len(drawn)) == (again, 7)
    read = documents(run("ingest", "files", tmp_path / "in.jsonl", "--out", "-"))
    assert [row["text"] for row in read] == [record["text"] for record in RECORDS]


def test_texts_become_ids_in_a_pipe(tmp_path: Path) -> None:
    trained = train((str(record["text"]) for record in RECORDS), eos="<|endoftext|>", vocab_size=300)
    model = tmp_path / trained.name
    model.write_bytes(trained.data)
    rows = documents(run("encode", "-", "--tokenizer", model))
    other = tokenizers.Tokenizer.from_file(str(model))
    end = other.token_to_id("<|endoftext|>")
    expected = {str(r["id"]): [*other.encode(str(r["text"])).ids, end] for r in RECORDS}
    assert {row["doc_id"]: row["input_ids"] for row in rows} == expected


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_what_comes_in_may_be_compressed(pack: str, tmp_path: Path) -> None:
    if pack == "gzip":
        given = gzip.compress(LINES)
    else:
        with ZstdFile(tmp_path / "in.zst", "w") as file:
            file.write(LINES)
        given = (tmp_path / "in.zst").read_bytes()
    assert len(documents(run("filter", "-", "--rule", "chars>=1", given=given))) == 60


def test_standard_input_can_go_to_a_directory(tmp_path: Path) -> None:
    done = run("filter", "-", "--rule", "chars>=1", "--out", tmp_path / "out", "--json")
    assert json.loads(done.stdout)["docs"] == 60
    assert (tmp_path / "out/files-00000.manifest.json").is_file()


def test_with_json_the_figures_go_to_stderr_and_documents_to_stdout() -> None:
    done = run("-q", "filter", "-", "--rule", "chars>=45", "--json")
    assert len(documents(done)) == json.loads(done.stderr)["docs"] > 0


def test_quiet_prints_nothing_but_documents() -> None:
    done = run("dedup", "-", "--mode", "exact", "-q")
    assert done.stderr == b""
    assert documents(done)


def test_an_error_says_standard_input_and_leaves_stdout_empty() -> None:
    for more in ((), ("--json",)):
        done = run("filter", "-", "--rule", "chars>=1", *more, given=gzip.compress(LINES)[:-20])
        assert (done.returncode, done.stdout) == (1, b"")
        told = done.stderr.decode()
        assert "standard input" in told
        assert "tokmill-pipe-" not in told


def test_who_reads_no_further_ends_the_command_without_a_word(tmp_path: Path) -> None:
    """As `| head -n 1` does."""
    (tmp_path / "in.jsonl").write_bytes(LINES * 400)
    start = f"{shlex.quote(sys.executable)} -c 'from tokmill.cli import main; main()'"
    line = f"{start} -q filter in.jsonl --rule 'chars>=1' --out - | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False)
    first, status = done.stdout.splitlines()
    assert json.loads(first)["text"] == RECORDS[0]["text"]
    assert done.stderr == b""
    assert status in (b"1", b"141")
