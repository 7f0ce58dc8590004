"""The history of every document, checked against the files that it speaks of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import prose, rows_of, texts_of, write_documents
from mill import write_recipe
from tokmill.cli import main
from tokmill.errors import CorruptFile, InputError, StorageError
from tokmill.formats import find_format, format_names
from written import MegatronFile, MemmapRows, decoder_of, load_manifest, read_row_index


def explain(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.why(run, doc_id, source=source).documents


def traced_documents(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.trace(run, doc_id=doc_id, source=source).documents


LENGTH = 64
NOT_MEASURED = "it was out already, and no bound could have kept it"
SHORT = "Too short, and \x1b[31mred\x1b[0m."


def records(names: range) -> list[dict[str, Any]]:
    return [{"id": f"f{n}", "text": prose(n, 4), "kind": "good", "year": 1900 + n} for n in names]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("why")
    special = [
        {"id": "other", "text": prose(90), "kind": "bad"},
        {"id": "short", "text": SHORT, "kind": "good"},
        {"id": "twice", "text": prose(91, 4), "kind": "good"},
        {"id": "twice", "text": prose(92, 4), "kind": "good"},
        {"id": "copy", "text": prose(3, 4).upper().lower().capitalize(), "kind": "good"},
    ]
    write_documents(directory / "first-a.jsonl", records(range(8)))
    write_documents(directory / "first-b.jsonl", [*special, *records(range(8, 16))])
    second = [
        {"id": "f1", "text": prose(93, 4) + "\r\nAnd more.", "license": "MIT"},
        {"id": "copy", "text": prose(5, 4)},
        {"id": "denied", "text": prose(94, 4), "license": "GPL-3.0"},
        *({"id": f"s{n}", "text": prose(200 + n, 5)} for n in range(12)),
    ]
    write_documents(directory / "second.jsonl", second)
    recipe = write_recipe(
        directory,
        sources=[
            {
                "name": "first",
                "domain": "web",
                "files": "first-*.jsonl",
                "where": {"kind": "good"},
                "fields": {"id": "id", "meta": ["year"]},
            },
            {"name": "second", "domain": "prose", "files": "second.jsonl"},
        ],
        license={"deny": ["GPL-3.0"], "unknown": "keep"},
        dedup={"exact": "folded"},  # one copy differs in case
        filters=[
            {"pack": "gopher-quality", "set": {"min_words": 30}},
            {"measure": "chars", "max": 1_000_000},
        ],
        normalize={"newlines": "lf"},
        split={"valid_fraction": "0.3"},
        pack={"length": LENGTH, "tail": "drop"},
    )
    return mill.run(recipe, workers=1).out


# What lies before the ids in each file, and how they are written, of formats of one file of documents.
END_TO_END = {
    "megatron": ("tokens.bin", 0, "<i4"),
    "nanogpt": ("{split}.bin", 0, "<u2"),
    "llmc": ("{split}_000000.bin", 1024, "<u4"),
    "nanotron": ("tokens.ds", 0, "<u4"),
    "olmo": ("ids/part-00000.npy", 0, "<u4"),
}


@pytest.fixture(scope="module")
def every_format(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with a build of documents and one of rows in every format that can hold them."""
    directory = tmp_path_factory.mktemp("formats")
    write_documents(directory / "good.jsonl", records(range(14)))
    builds: list[dict[str, Any]] = []
    for name in format_names():
        shapes = find_format(name).shapes
        if "documents" in shapes:
            pack = {"pack": {"layout": "indexed"}} if "rows" in shapes else {}
            builds.append({"name": f"{name}-docs", "format": name, **pack})
        if "rows" in shapes:
            builds.append({"name": f"{name}-rows", "format": name})
    recipe = write_recipe(
        directory,
        sources=[{"name": "good", "domain": "web", "files": "good.jsonl", "fields": {"id": "id"}}],
        filters=[],
        split={"method": "counts", "counts": {"valid": 3}},
        pack={"length": LENGTH},
        builds=builds,
    )
    return mill.run(recipe, workers=1).out


def read_end_to_end(build: Path, split: str) -> np.ndarray[Any, Any]:
    """All ids of a split, by NumPy alone."""
    path, header, kind = END_TO_END[load_manifest(build).config["format"]]
    path = path.format(split="val" if split == "valid" else split)
    return np.fromfile(build / split / path, kind, offset=header)


def one(run: Path, doc_id: str, source: str | None = None) -> Any:
    (history,) = explain(run, doc_id, source)
    return history


def test_the_tokens_of_every_kept_document_are_where_its_history_says(run: Path) -> None:
    decode = decoder_of(run)
    dropped = {(row["source"], row["doc_id"]) for row in rows_of(run, "dedup", "ledger")}
    indexes = {
        split: list(read_row_index(run / "build/rows" / split / "index.jsonl.zst"))
        for split in ("train", "valid")
    }
    seen, cut = 0, 0
    for source in ("first", "second"):
        for doc_id, text in texts_of(run, source).items():
            if doc_id == "twice" or (source, doc_id) in dropped:
                continue
            history = one(run, doc_id, source)
            assert history.outcome == f"kept, {history.split}"
            assert history.tokens is not None
            shard = MegatronFile((run / "tokens" / history.tokens["file"]).with_suffix(""))
            first, count = history.tokens["first"], history.tokens["tokens"]
            assert decode(shard.ids[first : first + count - 1]) == text
            assert np.array_equal(
                shard.sequence(history.tokens["sequence"]), shard.ids[first : first + count]
            )

            rows, mega = history.builds
            assert (rows["build"], mega["build"]) == ("build/rows", "build/mega")
            (turn,) = mega["turns"]
            sequences = MegatronFile(run / "build/mega" / mega["split"] / "tokens")
            whole = sequences.sequence(turn["sequence"])
            assert decode(whole[:-1]) == text
            at = slice(turn["first_token"], turn["first_token"] + turn["tokens"])
            assert np.array_equal(sequences.ids[at], whole)

            (turn,) = rows["turns"]
            ids = MemmapRows(run / "build/rows" / rows["split"]).ids
            there = [ids[row["row"], row["start"] : row["end"]] for row in turn["rows"]]
            flat = np.concatenate([np.empty(0, np.int64), *there])
            assert np.array_equal(flat, whole[: len(flat)])
            assert len(flat) == count - turn["cut_tokens"]
            spans = [
                (line.row, span.start, span.end)
                for line in indexes[rows["split"]]
                for span in line.docs
                if (span.source, span.doc_id) == (source, doc_id)
            ]
            assert [(row["row"], row["start"], row["end"]) for row in turn["rows"]] == spans
            seen, cut = seen + 1, cut + turn["cut_tokens"]
    assert seen > 20
    assert cut, "the tail of a split must have cut a document, or this proves nothing about it"


def test_a_kept_document_tells_its_source_and_every_rule_with_its_margin(run: Path) -> None:
    history = one(run, "f12")
    assert history.source == "first"
    assert history.ingest["file"] == "first-b.jsonl"
    assert (history.ingest["shard"], history.ingest["meta"]) == ("first/00001-000", '{"year":1912}')
    assert history.ingest["bytes"] == len(prose(12, 4))
    rules = load_manifest(run / "clean/first").config["sieve"]["rules"]
    assert [rule.rule for rule in history.rules] == [rule["name"] for rule in rules]
    assert all(rule.margin >= 0 for rule in history.rules)
    words = history.rules[0]
    assert (words.rule, words.bound, words.margin) == ("gopher-quality.min_words", "min 30", words.value - 30)
    assert history.rules[-1].bound == "max 1000000"
    assert history.dedup == {"kept": True, "decisions": []}
    edited = one(run, "f1", "second").clean
    assert edited is not None
    assert edited["license"] == "MIT"
    assert edited["decisions"] == [{"verdict": "edit", "reason": "newlines_to_lf", "value": 1.0}]


def test_a_dropped_document_shows_all_rules_and_the_broken_ones_below_zero(run: Path) -> None:
    history = one(run, "short")
    assert history.outcome == "dropped by clean: too_few_words"
    broken = {rule.rule for rule in history.rules if rule.margin < 0}
    assert {"gopher-quality.min_words", "gopher-quality.min_stop_words"} <= broken
    assert len(history.rules) == 11
    assert history.clean is not None
    (decision,) = history.clean["decisions"]
    assert (decision["verdict"], decision["threshold"]) == ("drop", 30)
    assert (history.dedup, history.split, history.tokens, history.builds) == (None, None, None, ())


def test_a_document_that_no_bound_could_have_kept_was_not_measured_and_says_so(run: Path) -> None:
    history = one(run, "denied")
    assert history.outcome == "dropped by clean: license_denied"
    assert history.rules == ()
    assert history.clean is not None
    assert history.clean["not_measured"] == NOT_MEASURED
    assert f"not_measured {NOT_MEASURED}" in " ".join(why(run, "denied").stdout.split())
    assert json.loads(why(run, "denied", "--json").stdout)["documents"][0]["rules"] == []
    for measured in ("short", "f12"):
        assert "not_measured" not in (one(run, measured).clean or {})


def test_a_record_that_never_became_a_document_is_found_at_ingest(run: Path) -> None:
    history = one(run, "other")
    assert history.outcome == "dropped at ingest: other_kind"
    assert history.ingest["file"] == "first-b.jsonl"
    assert (history.clean, history.rules) == (None, ())


def test_a_duplicate_names_its_survivor(run: Path) -> None:
    in_first, in_second = explain(run, "copy")
    assert (in_first.source, in_second.source) == ("first", "second")
    for history, survivor in ((in_first, "f3"), (in_second, "f5")):
        assert history.outcome == "dropped by dedup: exact_dup"
        assert history.dedup is not None
        (decision,) = history.dedup["decisions"]
        assert (decision["match_shard"], decision["match_doc_id"]) == ("first/00000-000", survivor)
        assert history.tokens is None


def test_documents_of_one_name_have_each_their_own_history(run: Path) -> None:
    twice = explain(run, "twice")
    assert [history.ingest["row"] for history in twice] == [1, 2]
    assert [history.ingest["bytes"] for history in twice] == [len(prose(91, 4)), len(prose(92, 4))]
    assert len({(h.split, h.tokens["first"]) for h in twice if h.tokens}) == 2
    assert [history.source for history in explain(run, "f1")] == ["first", "second"]
    assert [history.source for history in explain(run, "f1", "second")] == ["second"]


def test_an_unknown_document_and_a_directory_that_is_no_run_are_errors(run: Path, tmp_path: Path) -> None:
    for doc_id, source in (("nobody", None), ("f12", "second"), ("f12", "third")):
        with pytest.raises(InputError, match=f"no document is called {doc_id}"):
            explain(run, doc_id, source)
    for directory in (tmp_path, run / "clean/first"):
        with pytest.raises(StorageError, match="not the directory of a run"):
            explain(directory, "f12")


def test_a_run_that_ended_earlier_tells_the_history_so_far(run: Path, tmp_path: Path) -> None:
    out = mill.run(run.parents[1] / "recipe.yaml", tmp_path / "out", workers=1, until="clean").out
    history = one(out, "f12")
    assert (history.outcome, history.split, history.tokens, history.builds) == (
        "kept by clean",
        None,
        None,
        (),
    )
    assert one(out, "short").outcome == "dropped by clean: too_few_words"


def test_why_and_trace_tell_the_same_of_every_document_that_a_mixture_repeats_or_leaves_out(
    tmp_path: Path,
) -> None:
    write_documents(tmp_path / "first-a.jsonl", records(range(4)))
    write_documents(tmp_path / "second.jsonl", [{"id": f"s{n}", "text": prose(200 + n, 5)} for n in range(8)])
    recipe = write_recipe(
        tmp_path,
        sources=[
            {"name": "first", "domain": "web", "files": "first-a.jsonl"},
            {"name": "second", "domain": "prose", "files": "second.jsonl"},
        ],
        license={"unknown": "keep"},
        split={"valid_fraction": "0.1"},
        mixture={
            "weights": {"web": "0.8", "prose": "0.2"},
            "exhausted": "repeat",
            "tokens": 3000,
            "max_epochs": 9,
        },
        pack={"length": LENGTH, "tail": "drop"},
    )
    out = mill.run(recipe, workers=1).out
    indexes = {
        split: list(read_row_index(out / "build/rows" / split / "index.jsonl.zst"))
        for split in ("train", "valid")
        if (out / "build/rows" / split).is_dir()
    }
    turns = {}
    for doc_id in (*(f"f{n}" for n in range(4)), *(f"s{n}" for n in range(8))):
        history = one(out, doc_id)
        (traced,) = traced_documents(out, doc_id)
        assert (history.tokens, history.builds) == (traced.tokens, traced.builds)
        assert traced.history == history._replace(tokens=None, builds=())
        rows = history.builds[0]
        turns[doc_id] = len(rows["turns"])
        told = sorted((row["row"], row["start"], row["end"]) for t in rows["turns"] for row in t["rows"])
        assert told == [
            (line.row, span.start, span.end)
            for line in indexes.get(str(history.split), [])
            for span in line.docs
            if span.doc_id == doc_id
        ]
    assert max(turns.values()) > 1
    assert min(turns.values()) == 0
    assert "the mixture gave it no turn" in why(out, min(turns, key=lambda name: turns[name])).stdout


def test_a_run_that_was_cut_short_and_a_document_that_was_taken_down_have_an_answer(
    run: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(run, tmp_path / "run")
    (copied / "manifest.json").unlink()
    (copied / "build/mega/manifest.json").unlink()
    assert [build["build"] for build in one(copied, "f12").builds] == ["build/rows"]
    taken = shutil.copytree(run, tmp_path / "taken")
    parent = load_manifest(taken).digest
    mill.forget(taken, doc_ids=["f12"], workers=1)
    history = one(taken, "f12")
    assert (history.source, history.outcome) == ("first", "forgotten")
    assert history.ingest == {"taken_out_of": parent}
    assert why(taken, "f12").stdout.startswith("f12 of first: forgotten\n")


def why(run: Path, *arguments: str) -> Any:
    return CliRunner().invoke(main, ["why", str(run), *arguments])


def test_examples_of_a_reason_can_be_read_and_cannot_talk_to_the_terminal(run: Path) -> None:
    examples = mill.why(run, reason="all").examples
    assert {(e["reason"], e["source"], e["doc_id"]) for e in examples} == {
        ("exact_dup", "first", "copy"),
        ("exact_dup", "second", "copy"),
        ("license_denied", "second", "denied"),
        ("newlines_to_lf", "second", "f1"),
        ("other_kind", "first", "other"),
        ("too_few_words", "first", "short"),
    }
    shown = why(run, "--reason", "too_few_words")
    assert "too_few_words (5, threshold 30)  first short" in shown.stdout
    assert "\ufffd[31mred\ufffd[0m" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "license_denied  second denied" in why(run, "--reason", "all").stdout
    none = why(run, "--reason", "too_many_words")
    assert none.stdout.splitlines() == [
        "no document left or was changed for too_many_words; reasons of this run:",
        "           2  exact_dup  dedup",
        "           1  license_denied  clean/second",
        "           1  newlines_to_lf  clean/second",
        "           1  other_kind  ingest/first",
        "           1  too_few_words  clean/first",
    ]
    told = json.loads(why(run, "--reason", "too_few_words", "--json").stdout)
    assert [(e["source"], e["doc_id"], e["text"]) for e in told["examples"]] == [("first", "short", SHORT)]


def test_the_command_prints_the_history_in_words_or_as_json(run: Path) -> None:
    shown = why(run, "short")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("short of first: dropped by clean: too_few_words\n")
    (line,) = (line for line in shown.stdout.splitlines() if "max_ellipsis_line_share" in line)
    assert line.split() == ["gopher-quality.max_ellipsis_line_share", "0", "max", "0.3", "+0.3"]
    assert "match_doc_id f5" in why(run, "copy", "--source", "second").stdout
    kept = why(run, "f12").stdout
    assert all(word in kept for word in ("first-b.jsonl", "max 1000000", "split", "build/rows", "build/mega"))
    told = json.loads(why(run, "twice", "--json").stdout)
    assert told["ok"] is True
    assert [set(document) for document in told["documents"]] == [set(one(run, "short")._fields)] * 2
    assert set(told["documents"][0]["rules"][0]) == {"rule", "value", "bound", "margin", "reason"}
    refused = why(run, "nobody", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["kind"]) == (1, "InputError")
    for arguments in ((), ("short", "--reason", "all")):
        refused = why(run, *arguments)
        assert refused.exit_code == 1
        assert "needs either DOC_ID or --reason" in refused.stderr


def test_every_format_is_asked_for_a_document_and_end_to_end_its_tokens_are_where_it_is_said(
    every_format: Path,
) -> None:
    decode, texts = decoder_of(every_format), texts_of(every_format, "good")
    builds = {path.name for path in (every_format / "build").iterdir()}
    assert {f"{name}-docs" for name in END_TO_END} <= builds
    seen = 0
    for doc_id, text in texts.items():
        history = one(every_format, doc_id)
        (traced,) = traced_documents(every_format, doc_id)
        assert traced.builds == history.builds
        assert {build["build"] for build in history.builds} == {f"build/{name}" for name in builds}
        for build in history.builds:
            (turn,) = build["turns"]
            is_end_to_end = build["build"] in {f"build/{name}-docs" for name in END_TO_END}
            assert ("first_token" in turn) == is_end_to_end, build
            if is_end_to_end:
                ids = read_end_to_end(every_format / build["build"], build["split"])
                mine = ids[turn["first_token"] : turn["first_token"] + turn["tokens"]]
                assert decode(mine[:-1]) == text
                seen += 1
    assert seen == len(END_TO_END) * len(texts)
    for verb in (["why", str(every_format), "f3"], ["trace", str(every_format), "--doc-id", "f3"]):
        shown = CliRunner().invoke(main, verb)
        assert shown.exit_code == 0, shown.output


def test_an_index_of_documents_that_is_cut_off_is_named(every_format: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(every_format, tmp_path / "copy")
    split = one(copy, "f3").split
    path = copy / "build/nanotron-docs" / split / "tokens.ds.index"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptFile, match=r"tokens\.ds\.index.*bytes"):
        explain(copy, "f3")


def _broken_lines(directory: Path) -> dict[str, Any]:
    lines = [
        b'{"id": "whole", "text": "It can be read."}',
        b'{"id": "quarantined", "text": "caf\xe9"}',
        b'{"meta": {"id": "inner"}, "doc_id": 7, "text": null}',
        b'{"id": "cut", "text": "It ends',
    ]
    (directory / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return {"files": "records.jsonl"}


def _broken_conversations(directory: Path) -> dict[str, Any]:
    pytest.importorskip("jinja2")
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    records: list[dict[str, Any]] = [
        {"id": "whole", "messages": said},
        {"id": "quarantined", "messages": [{"role": "nobody", "content": "hi"}]},
        {"id": "7", "messages": []},
        {"id": "cut", "messages": None},
    ]
    (directory / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"files": "records.jsonl", "chat": {}}


def _broken_columns(directory: Path) -> dict[str, Any]:
    ids = ["whole", "quarantined", "7", "cut"]
    pq.write_table(
        pa.table({"id": ids, "text": ["It can be read.", None, None, None]}), directory / "records.parquet"
    )
    return {"files": "records.parquet"}


def _broken_rows(directory: Path) -> dict[str, Any]:
    rows = [b"text,id", b"It can be read.,whole", b"caf\xe9,quarantined", b"\xff,7", b'"\xfe, one",cut']
    (directory / "records.csv").write_bytes(b"\n".join(rows) + b"\n")
    return {"files": "records.csv"}


def _broken_files(directory: Path) -> dict[str, Any]:
    (directory / "texts").mkdir()
    texts = {"whole": b"It can be read.", "quarantined": b"caf\xe9", "7": b"\xff", "cut": b"\xfe"}
    for name, data in texts.items():
        (directory / "texts" / f"{name}.txt").write_bytes(data)
    return {"directory": {"path": "texts"}}


def _broken_texts(directory: Path) -> dict[str, Any]:
    _broken_files(directory)
    return {"files": "texts/*.txt", "unit": "document"}


BROKEN = [_broken_lines, _broken_conversations, _broken_columns, _broken_rows, _broken_files, _broken_texts]


@pytest.mark.parametrize("write", BROKEN)
def test_a_record_in_quarantine_is_known_by_the_id_that_it_or_its_file_gives(
    write: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    source = {"name": "some", **write(tmp_path), "max_bad_fraction": 1}
    parts = {"sources": [source], "tokenizer": None, "builds": None, "filters": []}
    out = mill.run(write_recipe(tmp_path, **parts), workers=1).out
    (ledger,) = [
        row for path in out.glob("ingest/some/ledger-*.parquet") for row in pq.read_table(path).to_pylist()
        if "quarantined" in str(row["doc_id"])
    ]  # fmt: skip
    for name in ("quarantined", "7", "cut"):
        (told,) = mill.why(out, ledger["doc_id"].replace("quarantined", name)).documents
        assert told.ingest["verdict"] == "quarantine"
        assert told.outcome == f"quarantined at ingest: {told.ingest['reason']}"
        if name == "quarantined":
            known = {key: ledger[key] for key in ("file", "offset", "reason", "detail")}
            assert {key: told.ingest[key] for key in known} == known
    assert mill.verify(out).ok
