"""From every token of a small run back to the exact characters,
in every format and with every kind of tokenizer."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from cleaned import texts_of, write_documents
from mill import write_recipe
from tokmill.audit.places import find_turns, load_order
from tokmill.audit.trace import find_offset, open_build, trace_row
from tokmill.cli import main
from tokmill.errors import CorruptFile, InputError, StorageError
from tokmill.schema import ORDER
from written import MegatronFile, load_manifest, load_table, read_token_cache


def traced_documents(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.trace(run, doc_id=doc_id, source=source).documents


TEXTS = {
    "plain": "The mill turns.\n\nIt turns all day, and the river with it.",
    "wide": "日本語 and 한국어, naïve œuvre, 👩‍👩‍👧 and 🇫🇷.",
    "spaces": "  two  blanks \t and a tab ",
    "controls": "a <|endoftext|> in <|turn|>the text</s>",
    "edited": "cafe\u0301 with\r\nanother line \u2028 end",
    "tiny": "é",
    "more": "the cat sat on the mat, and the other cat sat there too",
}
COPY = (
    "The mill turns all day beside the long river, and nobody in the old village minds it very much at all."
)

ROWS = [
    {"name": f"{layout}-{form}", "format": form, "pack": {"layout": layout, "length": 16, **more}}
    for layout, form, more in [
        ("concat", "memmap", {"tail": "pad"}),
        ("best_fit", "npy", {"mix_domains": True}),
        ("pad", "parquet", {}),
    ]
]
SEQUENCES = [
    {"name": "mega", "format": "megatron", "dtype": "smallest"},
    {"name": "cache", "format": "token_cache"},
    {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
]


def tokenizer_section(kind: str, directory: Path) -> dict[str, Any]:
    train = {
        "byte_bpe": {"model": "byte_bpe", "vocab_size": 300, "control_symbols": ["<|turn|>"]},
        "bpe": {"model": "bpe", "vocab_size": 400, "hard_vocab_limit": False},
        "unigram": {
            "model": "unigram",
            "vocab_size": 350,
            "hard_vocab_limit": False,
            "normalization": "nmt_nfkc",
        },
    }
    if kind in train:
        eos = "<|endoftext|>" if kind == "byte_bpe" else "</s>"
        return {
            "train": train[kind],
            "eos": eos,
            **({"control": ["<|turn|>"]} if kind == "byte_bpe" else {}),
        }
    tokens = [bytes([byte]) for byte in range(256)] + [
        b"th",
        b"the",
        b" the",
        b" t",
        "é".encode(),
        "日".encode(),
    ]
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (directory / "ranks.tiktoken").write_bytes(lines)
    return {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"}


def make_run(directory: Path, kind: str, builds: list[dict[str, Any]]) -> Path:
    records = [{"id": name, "text": text} for name, text in TEXTS.items()]
    write_documents(directory / "odd.jsonl", [*records, {"id": "tiny", "text": "è too"}])
    same = [{"id": "one", "text": COPY}, {"id": "two", "text": COPY.replace("beside", "near")}]
    write_documents(directory / "same.jsonl", [*same, {"id": "short", "text": "x"}])
    recipe = write_recipe(
        directory,
        sources=[
            {"name": "odd", "domain": "odd", "license": "MIT", "files": "odd.jsonl"},
            {"name": "same", "domain": "prose", "files": "same.jsonl"},
        ],
        filters=[{"measure": "chars", "min": 1, "reason": "too_short"}, {"measure": "bytes", "min": 2}],
        dedup={"exact": True, "near": {"threshold": "0.6", "ngram": 2}},
        split={"valid_fraction": "0.2"},
        tokenizer=tokenizer_section(kind, directory),
        builds=builds,
    )
    return mill.run(recipe, workers=1).out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("trace"), "byte_bpe", [*ROWS, *SEQUENCES])


@pytest.fixture(scope="module", params=["tiktoken", "bpe", "unigram"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the other kinds of tokenizers, in a format of rows and one of sequences."""
    return make_run(tmp_path_factory.mktemp("other"), request.param, [ROWS[1], SEQUENCES[0]])


def rows_of(build: Path, split: str) -> list[list[int]]:
    """The tokens of a build by readers that know nothing of documents."""
    directory, form = build / split, load_manifest(build).config["format"]
    if form == "memmap":
        return np.fromfile(directory / "input_ids.mmap", "<i4").reshape(-1, 16).tolist()
    if form == "npy":
        return [row for path in sorted(directory.glob("shard_*.npy")) for row in np.load(path).tolist()]
    if form == "parquet":
        paths = sorted(directory.glob("shard_*.parquet"))
        return [row for path in paths for row in pq.read_table(path).column("input_ids").to_pylist()]
    if form == "megatron":
        sequences = MegatronFile(directory / "tokens")
        return [sequences.sequence(row).tolist() for row in range(len(sequences))]
    return list(read_token_cache(directory))


def documents_of(run: Path) -> dict[tuple[str, str, int], str]:
    """The cleaned texts by source, id and row: ids are not unique."""
    found = {}
    for source in ("odd", "same"):
        ids = load_table(run / f"ingest/{source}/documents-00000-000.parquet").column("doc_id").to_pylist()
        cleaned = texts_of(run, source)
        for row, doc_id in enumerate(ids):
            if doc_id in cleaned:
                found[source, doc_id, row] = "é" if (doc_id, row) == ("tiny", 5) else cleaned[doc_id]
    return found


@pytest.mark.parametrize("name", [build["name"] for build in (*ROWS, *SEQUENCES)])
def test_every_token_leads_back_to_its_characters_and_together_they_are_the_text(
    run: Path, name: str
) -> None:
    prove_every_token(run, name)


@pytest.mark.parametrize("name", [ROWS[1]["name"], SEQUENCES[0]["name"]])
def test_so_it_is_with_other_tokenizers(other: Path, name: str) -> None:
    prove_every_token(other, name)


def prove_every_token(run: Path, name: str) -> None:
    documents, facts = documents_of(run), load_manifest(run / "tokenizer").facts
    seen: dict[tuple[str, str, int], dict[int, Any]] = {}
    padding = 0
    for split in ("train", "valid"):
        found = open_build(run / "build" / name / split)
        assert found.split == split
        for row, ids in enumerate(rows_of(run / "build" / name, split)):
            for column, id in enumerate(ids):
                (traced,) = trace_row(found, row, column)
                if traced.source is None:
                    assert (traced.note, id) == ("padding", facts["eos_id"])
                    padding += 1
                    continue
                assert traced.place is not None
                assert traced.stretch is not None
                assert traced.doc_id is not None
                key = (traced.source, traced.doc_id, traced.place["row"])
                assert traced.tokens[0] not in seen.setdefault(key, {})
                seen[key][traced.tokens[0]] = traced
                if traced.ends_document:
                    assert id == facts["eos_id"]
                    assert traced.stretch.start == traced.stretch.end == len(documents[key])
                else:
                    assert traced.ids == (id,)
    for key, tokens in seen.items():
        text = documents[key]
        ordered = [tokens[number] for number in sorted(tokens)]
        assert ordered[-1].ends_document
        stretches = [traced.stretch for traced in ordered if traced.stretch is not None]
        if len(ordered) < ordered[0].document_tokens:  # type: ignore[operator]
            assert name == "pad-parquet", "only that layout cuts long documents"
            ordered, stretches = ordered[:-1], stretches[:-1]
            text = text[: stretches[-1].end]
        assert [traced.tokens for traced in ordered] == [(n, n + 1) for n in range(len(ordered))]
        ends = [stretch.end for stretch in stretches]
        assert [stretch.start for stretch in stretches] == [0, *ends[:-1]]
        assert "".join(text[stretch.start : stretch.end] for stretch in stretches) == text
        data = b"".join(
            documents[key].encode()[stretch.first_byte : stretch.end_byte] for stretch in stretches
        )
        assert data == documents[key].encode()[: stretches[-1].end_byte]
    assert {key[:2] for key in documents} - {key[:2] for key in seen} == {("same", "two")}
    assert bool(padding) == (name in {build["name"] for build in ROWS})


def test_the_bytes_of_a_token_are_the_bytes_it_stands_for(tmp_path: Path) -> None:
    """Told apart from the code: by what the tokenizer's file says of each id."""
    run = make_run(tmp_path, "tiktoken", [SEQUENCES[0]])
    facts = load_manifest(run / "tokenizer").facts
    lines = (run / "tokenizer" / facts["file"]).read_bytes().splitlines()
    token = {int(line.split()[1]): base64.b64decode(line.split()[0]) for line in lines}
    texts, parts = documents_of(run), 0
    for split in ("train", "valid"):
        found = open_build(run / "build/mega", split)
        for row, ids in enumerate(rows_of(run / "build/mega", split)):
            for column, id in enumerate(ids[:-1]):
                (traced,) = trace_row(found, row, column)
                assert traced.stretch is not None
                assert traced.place is not None
                text = texts[str(traced.source), str(traced.doc_id), traced.place["row"]].encode()
                assert text[traced.stretch.first_byte : traced.stretch.end_byte] == token[id]
                parts += traced.stretch.is_cut
    assert parts > 10, "some tokens must have been parts of a character"


def test_a_row_is_told_in_stretches(run: Path) -> None:
    row = mill.trace(run / "build/concat-memmap", row=0, split="train").documents
    assert row[0].start == 0
    assert [one.end for one in row[:-1]] == [one.start for one in row[1:]]


def test_an_offset_is_a_place_in_a_row(run: Path) -> None:
    found, mega = open_build(run / "build/concat-memmap", "train"), open_build(run / "build/mega")
    sequences = MegatronFile(run / "build/mega/train/tokens")
    for token in range(len(sequences.ids)):
        at, column = find_offset(mega, token)
        assert sequences.sequence(at)[column] == sequences.ids[token]
    first = int(sequences.lengths[0])
    assert find_offset(mega, first) == (1, 0)
    asked = mill.trace(run / "build/mega", offset=first).place
    assert (asked["row"], asked["column"]) == (1, 0)
    for token in (-1, len(sequences.ids)):
        with pytest.raises(InputError, match="has no token"):
            find_offset(mega, token)
    with pytest.raises(InputError, match=r"has no tokens\.bin"):
        find_offset(found, 0)


STREAMS = {
    "nanogpt": ("{split}.bin", 0, "<u2", {}),
    "llmc": ("{split}_000000.bin", 1024, "<u2", {"dtype": "uint16"}),
    "nanotron": ("tokens.ds", 0, "<u4", {}),
    "olmo": ("ids/part-00000.npy", 0, "<u4", {"pack": {"layout": "indexed"}}),
}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builds = [{"name": name, "format": name, **more} for name, (*_, more) in STREAMS.items()]
    olmo_rows = {"name": "rows", "format": "olmo", "pack": {"layout": "concat", "length": 16}}
    more = [*builds, olmo_rows, *SEQUENCES[1:], {"name": "columns", "format": "levanter"}]
    return make_run(tmp_path_factory.mktemp("streams"), "byte_bpe", more)


@pytest.mark.parametrize("name", list(STREAMS))
def test_an_offset_in_a_file_of_documents_end_to_end_is_a_token_of_a_document(
    streams: Path, name: str
) -> None:
    """The file is cut at the EOS by NumPy, which knows nothing of the index."""
    eos, texts = load_manifest(streams / "tokenizer").facts["eos_id"], documents_of(streams)
    for split in ("train", "valid"):
        path, header, kind, _ = STREAMS[name]
        path = path.format(split="val" if split == "valid" else split)
        ids = np.fromfile(streams / "build" / name / split / path, kind, offset=header)
        starts = np.concatenate(([0], np.flatnonzero(ids == eos) + 1))
        found = open_build(streams / "build" / name, split)
        for token in range(len(ids)):
            row, column = find_offset(found, token)
            assert (starts[row] + column, token < starts[row + 1]) == (token, True)
            (traced,) = trace_row(found, row, column)
            assert traced.tokens == (column, column + 1)
            if ids[token] == eos:
                assert traced.ends_document
            else:
                assert traced.ids == (ids[token],)
        for token in (-1, len(ids)):
            with pytest.raises(InputError, match=rf"has no token(.|\n)*it has {len(ids):,}, counted"):
                find_offset(found, token)
    told = mill.trace(streams / "build" / name, offset=2, split="train")
    assert (told.place["row"], told.place["column"]) == (0, 2)
    assert (told.documents[0].source, told.documents[0].doc_id) in {key[:2] for key in texts}


@pytest.mark.parametrize("name", ["rows", "cache", "lists", "columns"])
def test_an_offset_where_no_file_holds_documents_end_to_end_is_refused_in_plain_words(
    streams: Path, name: str
) -> None:
    with pytest.raises(InputError, match=r"has no tokens\.bin(.|\n)*give a row"):
        find_offset(open_build(streams / "build" / name), 0)


def document(run: Path, doc_id: str, source: str | None = None) -> Any:
    (told,) = traced_documents(run, doc_id, source)
    return told


def test_the_tokens_of_every_document_are_where_it_is_said(run: Path) -> None:
    opened = {}
    for (source, doc_id, row), _ in documents_of(run).items():
        told = next(one for one in traced_documents(run, doc_id, source) if one.history.ingest["row"] == row)  # type: ignore[union-attr]
        if told.tokens is None:
            assert told.outcome == "dropped by dedup: near_dup"
            continue
        stored = MegatronFile((run / "tokens" / told.tokens["file"]).with_suffix(""))
        expected = stored.sequence(told.tokens["sequence"]).tolist()
        first = told.tokens["first"]
        assert stored.ids[first : first + told.tokens["tokens"]].tolist() == expected
        for build in told.builds:
            key = build["build"], build["split"]
            if key not in opened:
                opened[key] = rows_of(run / key[0], key[1])
            (turn,) = build["turns"]
            if "sequence" in turn:
                assert opened[key][turn["sequence"]] == expected
                continue
            tokens = list(expected)
            for place in turn["rows"]:
                width = place["end"] - place["start"]
                there = opened[key][place["row"]][place["start"] : place["end"]]
                assert there == expected[place["offset"] : place["offset"] + width]
                tokens[place["offset"] : place["offset"] + width] = [-1] * width
            assert sum(token != -1 for token in tokens) == turn["cut_tokens"]


def test_a_document_that_left_says_where_and_for_whom(run: Path) -> None:
    gone = document(run, "two")
    assert gone.outcome == "dropped by dedup: near_dup"
    assert gone.history is not None
    assert gone.history.dedup is not None
    (decision,) = gone.history.dedup["decisions"]
    assert decision["match_doc_id"] == "one"
    assert 0.6 <= decision["similarity"] < 1
    assert (gone.tokens, gone.builds) == (None, ())
    short = document(run, "short")
    assert short.outcome.startswith("dropped by clean: ")
    with pytest.raises(InputError, match="no document is called nobody"):
        traced_documents(run, "nobody")


def test_a_document_that_a_mixture_repeats_has_a_place_for_every_turn(tmp_path: Path) -> None:
    odd = [{"id": name, "text": text} for name, text in TEXTS.items()]
    write_documents(tmp_path / "odd.jsonl", odd)
    write_documents(tmp_path / "same.jsonl", [{"id": f"s{n}", "text": f"{COPY} {n}"} for n in range(6)])
    recipe = write_recipe(
        tmp_path,
        sources=[
            {"name": "odd", "domain": "odd", "files": "odd.jsonl"},
            {"name": "same", "domain": "prose", "files": "same.jsonl"},
        ],
        filters=[],
        split={"valid_fraction": "0.01"},
        mixture={
            "weights": {"odd": "0.7", "prose": "0.3"},
            "tokens": 1200,
            "exhausted": "repeat",
            "max_epochs": 9,
        },
        builds=[
            *ROWS[:2],
            SEQUENCES[0],
            {"name": "odd-only", "format": "npy", "pack": {"length": 24}, "sources": ["odd"]},
        ],
    )
    run = mill.run(recipe, workers=1).out
    most = 0
    for name in (*TEXTS, *(f"s{n}" for n in range(6))):
        told = document(run, name)
        assert told.tokens is not None
        turns = {build["build"]: len(build["turns"]) for build in told.builds}
        most = max(most, turns["build/mega"])
        only = turns.pop("build/odd-only")
        assert len(set(turns.values())) == 1
        assert only == (turns["build/mega"] if told.source == "odd" else 0)
        for build in told.builds:
            for turn in build["turns"]:
                places = (
                    turn["rows"] if "rows" in turn else [{"row": turn["sequence"], "start": 0, "offset": 0}]
                )
                for place in places:
                    (traced,) = mill.trace(
                        run / build["build"], row=place["row"], column=place["start"]
                    ).documents
                    assert (traced.source, traced.doc_id) == (told.source, name)
                    assert traced.tokens[0] == place["offset"]
                    assert traced.stretch is not None
    assert most > 1, "a document must have had more than one turn"


def test_a_run_copied_elsewhere_and_not_to_be_written_answers_the_same(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "far" / "away")
    for path in sorted(copy.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    copy.chmod(0o555)
    try:
        before = [one.as_json() for one in traced_documents(run, "wide")]
        assert [one.as_json() for one in traced_documents(copy, "wide")] == before
        rows = [mill.trace(where / "build/best_fit-npy", row=0).documents for where in (copy, run)]
        assert [one.as_json() for one in rows[0]] == [one.as_json() for one in rows[1]]
    finally:
        for path in [copy, *copy.rglob("*")]:
            os.chmod(path, 0o755)  # noqa: PTH101


def test_a_run_that_was_cut_short_tells_what_it_knows_and_what_is_missing(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "cut")
    (copy / "manifest.json").unlink()
    for name in ("build/mega", "build/cache"):
        (copy / name / "manifest.json").unlink()
    told = document(copy, "wide")
    assert set(told.missing) == {"build/mega", "build/cache"}
    assert told.tokens is not None
    assert {build["build"] for build in told.builds} == {
        "build/concat-memmap",
        "build/best_fit-npy",
        "build/pad-parquet",
        "build/lists",
    }
    (traced,) = mill.trace(copy / "build/concat-memmap", row=0, column=0).documents
    assert traced.stretch is not None
    for directory in ("split", "tokens", "tokenizer", "build"):
        shutil.rmtree(copy / directory)
    told = document(copy, "wide")
    assert (told.tokens, told.outcome) == (None, "kept by clean")


def test_a_build_taken_out_of_its_run_says_what_its_index_says(run: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(run / "build/concat-memmap", tmp_path / "alone")
    (traced,) = mill.trace(alone, row=0, column=3).documents
    (inside,) = mill.trace(run / "build/concat-memmap", row=0, column=3).documents
    assert (traced.doc_id, traced.tokens) == (inside.doc_id, inside.tokens)
    assert (traced.stretch, traced.history, traced.note) == (
        None,
        None,
        "the history of this document is in the run that the build was taken from, which is not here",
    )


def test_what_is_not_there_is_an_error_that_says_what_is(run: Path, tmp_path: Path) -> None:
    rows = run / "build/concat-memmap"
    with pytest.raises(InputError, match="has no row"):
        mill.trace(rows, row=len(rows_of(rows, "train")))
    with pytest.raises(InputError, match="has no column 16"):
        mill.trace(rows, row=0, column=16)
    with pytest.raises(InputError, match="has no split called test"):
        mill.trace(rows, row=0, split="test")
    with pytest.raises(InputError, match="is a run, not a build") as refused:
        mill.trace(run, row=0)
    assert "build/mega" in refused.value.next
    with pytest.raises(StorageError, match="is not a build"):
        mill.trace(tmp_path, row=0)


def trace(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["trace", *map(str, arguments)])


def test_the_command_shows_the_characters_and_the_history(run: Path) -> None:
    shown = trace(run / "build/concat-memmap", "--row", "0", "--column", "3")
    assert shown.exit_code == 0, shown.output
    assert "⟦" in shown.stdout
    assert "characters" in shown.stdout
    assert "kept, train" in shown.stdout
    told = json.loads(trace(run / "build/mega", "--offset", "2", "--json").stdout)
    assert (told["row"], told["column"], len(told["documents"])) == (0, 2, 1)
    assert set(told["documents"][0]) == set(mill.trace(run / "build/mega", offset=2).documents[0]._fields)
    kept = trace(run, "--doc-id", "wide").stdout
    assert all(f"build/{build['name']}" in kept for build in (*ROWS, *SEQUENCES))
    assert len(json.loads(trace(run, "--doc-id", "tiny", "--json").stdout)["documents"]) == 2
    for arguments in ((), ("--row", "0", "--doc-id", "wide")):
        refused = trace(run, *arguments)
        assert refused.exit_code == 1
        assert "needs one of" in refused.stderr


@given(
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60),
    mine=st.none() | st.sets(st.integers(0, 3), min_size=1),
    of_a_group=st.integers(1, 20),
    of_a_piece=st.integers(1, 20),
)
@settings(deadline=None, max_examples=80)
def test_the_turns_of_a_document_found_piece_by_piece_are_those_of_the_whole_order(
    tmp_path_factory: pytest.TempPathFactory,
    turns: list[tuple[int, int]],
    mine: set[int] | None,
    of_a_group: int,
    of_a_piece: int,
) -> None:
    path = tmp_path_factory.mktemp("order") / "order-train.parquet"
    columns = [pa.array([turn[at] for turn in turns], pa.uint32()) for at in (0, 1)]
    pq.write_table(pa.table(columns, schema=ORDER), path, row_group_size=of_a_group)
    is_mine = None if mine is None else np.isin(np.arange(4), sorted(mine))
    own = [turn for turn in turns if mine is None or turn[0] in mine]
    shard, sequence = load_order(path, is_mine)
    assert list(zip(shard.tolist(), sequence.tolist(), strict=True)) == own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokmill.audit.places._PIECE_TURNS", of_a_piece)
        for document in set(own):
            expected = [turn for turn, here in enumerate(own) if here == document]
            assert find_turns(path, is_mine, [document]) == {document: expected}
        both = {document: [turn for turn, here in enumerate(own) if here == document] for document in own}
        assert find_turns(path, is_mine, [*both, (3, 9)]) == {**both, (3, 9): []}


def test_an_order_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "order-train.parquet"
    for content in (None, b"PAR1 and no more"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CorruptFile, match="cannot be read") as refused:
            find_turns(path, None, [(0, 0)])
        assert refused.value.where == str(path)
