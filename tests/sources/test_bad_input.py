"""Everything that can be wrong with the input, as a user meets it on the command line.

Each time: what, where and what next are said; the exit status is 1; nothing half-written has a final name;
and once the cause is gone the same command ends with the same content as if nothing had happened.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from forked import MAIN, run_forked
from mill import SHARED, digest_of, small_corpus, tokmill, write_recipe
from mill import write_problems as write_good
from sources.ingested import ingest
from written import load_manifest, load_table

JSONL_ONLY = {
    "name": "problems",
    "files": "problems.jsonl*",
    "template": "{question} {answer}",
    "fields": {"id": "id"},
}


def recipe_over(directory: Path, **source: object) -> Path:
    """A quick recipe over problems.jsonl alone, to the split."""
    return write_recipe(directory, sources=[{**JSONL_ONLY, **source}], tokenizer=None, builds=None)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def no_final_name_is_half_written(out: Path) -> None:
    for path in out.rglob("*.parquet"):
        if not path.name.startswith(".tmp-"):
            pq.read_table(path)
    assert not (out / "manifest.json").exists()


def refused(recipe: Path, *words: str) -> str:
    """The run fails politely: exit status 1, no traceback, these words on stderr."""
    done = tokmill("run", recipe, "--workers", "1")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "next:" in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    no_final_name_is_half_written(recipe.parent / "out")
    return done.stderr


def quarantined(out: Path) -> list[tuple[int, str]]:
    """(offset, reason) of every quarantined record of the source."""
    directory = out / "ingest/problems"
    entries = load_manifest(directory).entries("ledger")
    rows = [row for entry in entries for row in load_table(directory / entry.path).to_pylist()]
    assert all(row["file"].startswith("problems.jsonl") for row in rows)
    return [(row["offset"], row["reason"]) for row in rows]


# Whole files and recipes that cannot be used


def test_an_empty_glob_says_what_lies_there(tmp_path: Path) -> None:
    write_good(tmp_path / "data/problems.jsonl", 5)
    recipe = recipe_over(tmp_path, files="data/*.parquet")
    refused(recipe, "EmptyGlob", "data/*.parquet", "problems.jsonl")


def test_a_missing_field_names_the_fields_that_are_there(tmp_path: Path) -> None:
    write_good(tmp_path / "problems.jsonl", 5)
    recipe = recipe_over(tmp_path, template="{qestion}")
    refused(recipe, "problems.jsonl", "`qestion`", "answer, id, question", "did you mean `question`?")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd)])
def test_a_truncated_compressed_file_stops_the_run_and_mended_gives_the_same_content(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    plain = write_good(tmp_path / "problems.jsonl", 300).read_bytes()
    (tmp_path / "problems.jsonl").unlink()
    path = tmp_path / f"problems.jsonl{suffix}"
    path.write_bytes(pack(plain)[:-1000])
    recipe = recipe_over(tmp_path)
    refused(recipe, "CorruptFile", path.name, "truncated")
    path.write_bytes(pack(plain))
    assert tokmill("run", recipe).returncode == 0
    assert digest_of(tmp_path / "out/small") == clean_digest(tmp_path / "clean", plain)


def clean_digest(directory: Path, problems: bytes) -> str:
    directory.mkdir()
    (directory / "problems.jsonl").write_bytes(problems)
    assert tokmill("run", recipe_over(directory)).returncode == 0
    return digest_of(directory / "out/small")


def test_a_wrong_tokenizer_sha256_stops_the_run_before_any_work(tmp_path: Path) -> None:
    good = small_corpus(tmp_path / "good")
    assert tokmill("run", good).returncode == 0
    trained = tmp_path / "good/out/small/tokenizer/tokenizer.json"
    recipe = small_corpus(
        tmp_path / "bad", tokenizer={"path": str(trained), "sha256": "0" * 64, "eos": "<|endoftext|>"}
    )
    refused(recipe, "TokenizerMismatch", "tokenizer.json", "0" * 64)
    assert not (tmp_path / "bad/out/small/ingest").exists()


def test_an_eos_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    good = small_corpus(tmp_path / "good")
    assert tokmill("run", good).returncode == 0
    trained = tmp_path / "good/out/small/tokenizer/tokenizer.json"
    recipe = small_corpus(tmp_path / "bad", tokenizer={"path": str(trained), "eos": "</s>"})
    refused(recipe, "EosMissing", "</s>", "<|endoftext|>")


def test_a_vocabulary_too_large_for_the_dtype_is_refused(tmp_path: Path) -> None:
    ranks = SHARED / "data/tokenizers/tiktoken/cl100k_base.tiktoken"
    if not ranks.exists():
        pytest.skip("needs ../shared/data")
    recipe = small_corpus(
        tmp_path,
        tokenizer={"path": str(ranks), "eos": "<|endoftext|>"},
        builds=[{"name": "rows", "format": "memmap", "dtype": "uint16"}],
    )
    refused(recipe, "VocabTooLarge", "build rows", "100,277", "int32")


def test_pervasive_nul_is_an_error_that_suspects_utf16(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes("plain words in UTF-16".encode("utf-16-le"))
    recipe = write_recipe(
        tmp_path, sources=[{"name": "notes", "files": "notes.txt"}], tokenizer=None, builds=None
    )
    refused(recipe, "source notes", "NUL", "UTF-16")


def test_every_mistake_of_a_recipe_is_listed_with_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        """name: broken
sources:
  - {name: a, licence: MIT, files: x.jsonl}
normalise: {unicode: NFC}
filters: [{measure: chars}]
split: {valid_fraction: 2}
builds:
  - {name: rows, format: memap}
"""
    )
    done = tokmill("run", recipe)
    assert done.returncode == 1
    for word in (
        "7 mistakes",
        "line 3: sources[0].files: x.jsonl: the pattern matches no file",
        "line 3: sources[0].licence: unknown key; did you mean `license`?",
        "line 4: normalise: unknown key; did you mean `normalize`?",
        "line 5: filters[0]: needs `min` or `max`",
        "line 6: split.valid_fraction:",
        "line 7: builds: `builds` needs a `tokenizer`",
        'line 8: builds[0].format: "memap" is not a choice; did you mean `memmap`?',
    ):
        assert word in done.stderr


# Records that cannot be used

GOOD = [
    json.dumps({"id": f"r{n}", "question": f"what is {n} plus one?", "answer": str(n + 1)})
    for n in range(400)
]
BAD_LINES = {
    "invalid_json": b'{"id": "x", "question": "q", "answer": ',
    "invalid_utf8": b'{"id": "x", "question": "\xff\xfe", "answer": "1"}',
    "nan": b'{"id": "x", "question": "q", "answer": NaN}',
    "lone_surrogate": b'{"id": "x", "question": "\\ud800", "answer": "1"}',
    "deep": b'{"id": "x", "question": "q", "answer": "1", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "duplicate_key": b'{"id": "x", "question": "q", "question": "p", "answer": "1"}',
    "missing_field": b'{"id": "x", "question": "q"}',
    "wrong_type": b'{"id": "x", "question": ["q"], "answer": "1"}',
    "not_an_object": b"[1, 2, 3]",
}
REASONS = {"nan": "invalid_json", "deep": "too_deep", "not_an_object": "wrong_type"}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_record_is_quarantined_with_its_offset_and_the_rest_is_milled(
    tmp_path: Path, kind: str
) -> None:
    lines = [line.encode() for line in GOOD]
    lines.insert(200, BAD_LINES[kind])
    (tmp_path / "problems.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    done = tokmill("run", recipe_over(tmp_path), "--json")
    assert done.returncode == 0, done.stdout
    offset = sum(len(line) + 1 for line in lines[:200])
    assert quarantined(tmp_path / "out/small") == [(offset, REASONS.get(kind, kind))]
    counts = json.loads(done.stdout)["steps"]["ingest/problems"]["counts"]
    assert (counts["in"], counts["kept"]) == (401, 400)


def test_more_bad_records_than_the_ceiling_stop_the_run_with_examples(tmp_path: Path) -> None:
    lines = [line.encode() for line in GOOD[:100]]
    lines[10] = BAD_LINES["invalid_json"]
    lines[20] = BAD_LINES["missing_field"]
    (tmp_path / "problems.jsonl").write_bytes(b"\n".join(lines))
    said = refused(
        recipe_over(tmp_path), "TooManyBadRecords", "2 of 100", "invalid_json: 1", "missing_field: 1"
    )
    assert "problems.jsonl at" in said
    allowed = recipe_over(tmp_path, max_bad_fraction="0.05")
    assert tokmill("run", allowed).returncode == 0
    assert len(quarantined(tmp_path / "out/small")) == 2


def write_nulls(path: Path, rows: int) -> None:
    """Null texts, of which a million take 2 kB."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 1 << 20):
            nulls = pa.nulls(min(1 << 20, rows - start), pa.string())
            writer.write_table(pa.table([nulls], schema=schema))


def only_texts(directory: Path, files: str, **source: object) -> Path:
    texts = {"name": "problems", "files": files, **source}
    return write_recipe(directory, sources=[texts], tokenizer=None, builds=None)


def test_reading_stops_once_bad_records_are_over_the_ceiling_whatever_the_rest_is(tmp_path: Path) -> None:
    write_nulls(tmp_path / "nulls.parquet", 2_000_000)
    said = refused(only_texts(tmp_path, "nulls.parquet"), "TooManyBadRecords", "the rest was not read")
    unusable = int(said.partition(" records cannot be used")[0].split()[-1].replace(",", ""))
    assert 20_000 < unusable < 40_000
    assert "nulls.parquet at 0: missing_field" in said


@pytest.mark.parametrize("workers", ["1", "2"])
def test_reading_does_not_stop_where_the_rest_may_hold_the_ceiling(tmp_path: Path, workers: str) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b"{}\n" * 3000)
    lines = "".join(json.dumps({"text": f"text number {number}"}) + "\n" for number in range(7000))
    (tmp_path / "b.jsonl").write_text(lines)
    refused(only_texts(tmp_path, "*.jsonl*", max_bad_fraction="0.2999"), "3,000 of 10,000")
    recipe = only_texts(tmp_path, "*.jsonl*", max_bad_fraction="0.3")
    assert tokmill("run", recipe, "--workers", workers).returncode == 0


def test_the_ledger_of_many_bad_records_is_written_in_pieces_that_hold_every_one(tmp_path: Path) -> None:
    write_nulls(tmp_path / "nulls.parquet", 300_000)
    recipe = only_texts(tmp_path, "nulls.parquet", max_bad_fraction=1)
    done = tokmill("run", recipe)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / "out/small/ingest/problems"
    ledgers = load_manifest(directory).entries("ledger")
    assert len(ledgers) == 2
    assert max(entry.rows for entry in ledgers) < 300_000
    offsets = [load_table(directory / entry.path).column("offset").to_pylist() for entry in ledgers]
    assert offsets[0] + offsets[1] == list(range(300_000))
    digest_of(tmp_path / "out/small")


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_short_lines_are_read_in_pieces_and_none_is_lost_between_them(tmp_path: Path, suffix: str) -> None:
    count = 140_000
    bad, header = ("{}", "") if suffix == "jsonl" else ("a,b", "text\n")
    good = '{"text": "good"}' if suffix == "jsonl" else "good"
    rows = [good if number % 70_000 == 69_999 else bad for number in range(count)]
    (tmp_path / f"short.{suffix}").write_text(header + "\n".join(rows) + "\n")
    found = ingest(tmp_path, f"short.{suffix}")
    assert [row["text"] for row in found.documents] == ["good", "good"]
    assert len({record.offset for record in found.bad}) == len(found.bad) == count - 2
    assert found.counts["in"] == count


def test_on_bad_record_fail_stops_at_the_first(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_bytes(b"\n".join([*map(str.encode, GOOD), BAD_LINES["nan"]]))
    refused(recipe_over(tmp_path, on_bad_record="fail"), "problems.jsonl", "NaN is not JSON", "quarantine")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_conversation_that_is_null_is_quarantined(tmp_path: Path, suffix: str) -> None:
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    records = [{"id": "a", "messages": said}, {"id": "b", "messages": None}, {"id": "c", "messages": said}]
    path = tmp_path / f"chat.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = ingest(tmp_path, path.name, chat={})
    assert [row["doc_id"] for row in found.documents] == ["a", "c"]
    assert [record.reason for record in found.bad] == ["missing_field"]


def test_a_200_mb_line_is_quarantined_without_being_held_in_memory(tmp_path: Path) -> None:
    size = 200 << 20
    with (tmp_path / "problems.jsonl").open("wb") as file:
        file.write("\n".join(GOOD[:200]).encode() + b'\n{"id": "big", "answer": "1", "question": "')
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + "\n".join(GOOD[200:]).encode())
    recipe = recipe_over(tmp_path)
    done = tokmill("run", recipe, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert [reason for _, reason in quarantined(tmp_path / "out/small")] == ["too_large"]


def test_u2028_inside_text_does_not_split_a_record(tmp_path: Path) -> None:
    records = [{"id": "u", "question": "one\u2028two\u2029three\x85four", "answer": "1"}]
    (tmp_path / "problems.jsonl").write_text(
        json.dumps(records[0], ensure_ascii=False) + "\n", encoding="utf-8"
    )
    assert tokmill("run", recipe_over(tmp_path)).returncode == 0
    table = load_table(tmp_path / "out/small/ingest/problems/documents-00000-000.parquet")
    assert table.column("text").to_pylist() == ["one\u2028two\u2029three\x85four 1"]


# Output that cannot be written

FULL_DISK = """
import errno, os, stat
_write, _left = os.write, [int(os.environ["WRITES_BEFORE_FULL"])]
def write(descriptor, data):
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and len(data) > 0:
        if _left[0] <= 0:
            _write(descriptor, bytes(data)[: len(data) // 2])  # half of it reaches the disk
            raise OSError(errno.ENOSPC, "No space left on device")
        _left[0] -= 1
    return _write(descriptor, data)
os.write = write
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    recipe = small_corpus(tmp_path_factory.mktemp("undisturbed"))
    assert tokmill("run", recipe).returncode == 0
    return digest_of(recipe.parent / "out/small")


def test_a_disk_that_fills_up_at_any_write_leaves_nothing_half_written(
    tmp_path: Path, undisturbed: str
) -> None:
    """The disk is full at write n; once there is room the run goes on."""
    recipe = small_corpus(tmp_path / "corpus")
    out = recipe.parent / "out/small"
    failures = 0
    for writes in (0, 1, 2, 3, 5, 8, 12, 17, 23, 30):
        env = {**os.environ, "WRITES_BEFORE_FULL": str(writes)}
        done = run_forked(["run", str(recipe), "--workers", "1"], env, code=FULL_DISK + MAIN)
        if done.returncode == 0:
            break
        failures += 1
        assert "DiskFull" in done.stderr, done.stderr
        assert str(out) in done.stderr
        no_final_name_is_half_written(out)
        if writes % 2:
            shutil.rmtree(out)  # from the beginning now and then, so that early and late writes both fail
    assert failures >= 6
    assert tokmill("run", recipe, "--workers", "1").returncode == 0
    assert digest_of(out) == undisturbed


def test_a_real_file_size_limit_is_reported_like_a_full_disk(tmp_path: Path, undisturbed: str) -> None:
    recipe = small_corpus(tmp_path)
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY)); "
    )
    done = run_forked(["run", str(recipe), "--workers", "1"], os.environ, code=limited + MAIN)
    assert done.returncode == 1
    assert "DiskFull" in done.stderr, done.stderr
    no_final_name_is_half_written(recipe.parent / "out")
    assert tokmill("run", recipe).returncode == 0
    assert digest_of(recipe.parent / "out/small") == undisturbed


def test_an_unwritable_output_is_refused_with_a_way_out(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    (tmp_path / "file").write_text("in the way")
    done = tokmill("run", recipe, "--out", tmp_path / "file/out")
    assert done.returncode == 1
    assert "cannot write here" in done.stderr
    assert "--out" in done.stderr
    read_only = Path("/proc/self/fdinfo")
    if read_only.is_dir():
        done = tokmill("run", recipe, "--out", read_only / "out")
        assert done.returncode == 1
        assert "StorageError" in done.stderr


def test_an_error_as_json_has_the_same_three_parts(tmp_path: Path) -> None:
    recipe = recipe_over(tmp_path, files="nowhere/*.jsonl")
    done = tokmill("run", recipe, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "EmptyGlob")
    assert error["where"].startswith(f"{recipe}, line ")
    assert error["where"].endswith(": sources[0].files: nowhere/*.jsonl")
    assert error["what"]
    assert "no directory nowhere" in error["next"]
