"""Two runs and what lies between them: every reason told, every document once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tokmill as mill
from cleaned import prose, write_documents
from mill import write_recipe
from tokmill.audit.same_texts import match_equal_rows
from tokmill.cli import main
from tokmill.errors import RecipeError
from written import load_manifest, load_table, read_row_index


def make(directory: Path, records: dict[str, list[dict[str, Any]]], **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for source, rows in records.items():
        write_documents(directory / f"{source}.jsonl", rows)
    sources = [
        {"name": s, "domain": s, "files": f"{s}.jsonl", "license": "MIT" if s == "web" else "CC0-1.0"}
        for s in records
    ]
    whole: dict[str, Any] = {
        "sources": sources,
        "filters": [{"measure": "words", "min": 10, "reason": "too_few_words"}],
        "split": {"valid_fraction": "0.3"},
        **sections,
    }
    return mill.run(write_recipe(directory, **whole), workers=1).out


def base() -> dict[str, list[dict[str, Any]]]:
    web = [{"id": f"w{n}", "text": prose(n, 3)} for n in range(20)]
    web += [{"id": "short", "text": "only five words are here"}, {"id": "twice", "text": prose(90, 3)}]
    return {
        "web": [*web, {"id": "twice", "text": prose(91, 3)}, {"id": "copy", "text": prose(3, 3)}],
        "books": [{"id": f"b{n}", "text": prose(100 + n, 4)} for n in range(10)],
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("first"), base())


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = base()
    web = [record for record in records["web"] if record["id"] not in ("w1", "w3")]
    for record in web:
        if record["id"] == "w2":
            record["text"] = prose(200, 3)
        if record["id"] == "w5":
            record["text"] = "now too short"
        if record["id"] == "short":
            record["text"] = prose(201, 3)
    web.append({"id": "new", "text": prose(202, 3)})
    more = [{"id": "m0", "text": prose(300, 3)}]
    return make(
        tmp_path_factory.mktemp("second"),
        {"web": web, "more": more},
        seed=8,
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 310}, "eos": "<|endoftext|>"},
        builds=[
            {"name": "rows", "format": "memmap"},
            {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
        ],
    )


@pytest.fixture(scope="module")
def found(first: Path, second: Path) -> Any:
    return mill.diff(first, second)


def test_every_document_that_came_or_went_has_its_reason(found: Any) -> None:
    documents = found.documents
    assert documents.went == {
        "clean: too_few_words": 1,  # w5
        "no such source": 10,  # books
        "not in the source": 2,  # w1, w3
    }
    assert documents.came == {
        "clean: too_few_words": 1,  # short
        "dedup: exact_dup": 1,  # copy, whose first was w3
        "new in the source": 1,
        "no such source": 1,
    }
    assert (documents.changed, documents.moved) == (1, {})
    assert documents.same == 22 - 4  # w0 … w19 and twice, twice, less w1, w2, w3 and w5
    named = {(one["what"], one["why"], one["doc_id"]) for one in documents.examples}
    assert {
        ("went", "clean: too_few_words", "w5"),
        ("came", "clean: too_few_words", "short"),
        ("came", "dedup: exact_dup", "copy"),
        ("came", "new in the source", "new"),
        ("changed", "another text", "w2"),
        ("went", "not in the source", "w1"),
        ("went", "not in the source", "w3"),
    } <= named
    assert Counter(one["why"] for one in documents.examples if one["what"] == "went")["no such source"] == 5


def test_recipe_tokenizer_shares_and_builds_are_told_key_by_key(
    first: Path, second: Path, found: Any
) -> None:
    assert found.recipe is not None
    assert "`seed` changed 7 → 8" in found.recipe
    assert any("vocab_size" in line and "300 → 310" in line for line in found.tokenizer)
    assert found.missing == (
        ["ingest/more", "clean/more", "build/lists"],
        ["ingest/books", "clean/books", "build/mega"],
    )
    for side, run in enumerate((first, second)):
        counts = load_manifest(run / "tokens").counts
        total = sum(counts["tokens"].values())
        for group in ("domains", "sources", "licenses"):
            mine = [share for share in found.shares if (share.of, share.group) == ("tokens", group)]
            assert sum(share.tokens[side] for share in mine) == total
            assert sum(share.shares[side] for share in mine) == pytest.approx(1)
    (web,) = (share for share in found.shares if share[:3] == ("tokens", "sources", "web"))
    assert web.change > 0.1
    rows = {build["build"]: build for build in found.builds}
    assert (
        rows["build/rows"]["before"]["tokens"]
        == load_manifest(first / "build/rows").counts["tokens"]["written"]
    )
    assert rows["build/mega"]["after"] is None
    assert rows["build/lists"]["before"] is None


def built_by_source(run: Path, build: str) -> Counter[str]:
    """Tokens in rows, recounted from the index of every split."""
    found: Counter[str] = Counter()
    for path in sorted((run / build).glob("*/index.jsonl.zst")):
        for row in read_row_index(path):
            for span in row.docs:
                found[span.source] += span.end - span.start
    return found


def test_another_token_that_begins_documents_is_another_tokenizer(tmp_path: Path) -> None:
    """Of the same file."""
    train = {"model": "byte_bpe", "vocab_size": 300, "control_symbols": ["<|b|>", "<|c|>"]}
    eos, runs = "<|endoftext|>", {}
    for name, bos in (("none", {}), ("b", {"bos": "<|b|>"}), ("c", {"bos": "<|c|>"})):
        runs[name] = make(tmp_path / name, base(), tokenizer={"train": train, "eos": eos, **bos})
    assert len({(run / "tokenizer/tokenizer.json").read_bytes() for run in runs.values()}) == 1
    for names in (("none", "b"), ("b", "c"), ("c", "none")):
        found = mill.diff(*(runs[name] for name in names), fail_on=["tokenizer"])
        assert ["bos_id" in line for line in found.tokenizer] == [True]
        assert found.failed == ("tokenizer",)


def test_shares_of_a_build_are_of_the_tokens_in_its_rows(tmp_path: Path) -> None:
    """A mixture changes what is built, and nothing of what there is to build from."""
    weights = [{"web": "0.5", "books": "0.5"}, {"web": "0.9", "books": "0.1"}]
    runs = [
        make(
            tmp_path / str(number),
            base(),
            mixture={"weights": own, "tokens": 2000, "exhausted": "repeat", "max_epochs": 9},
            builds=[{"name": "rows", "format": "memmap"}],
        )
        for number, own in enumerate(weights)
    ]
    found = mill.diff(*runs)
    counted = [built_by_source(run, "build/rows") for run in runs]
    built = {s.name: s for s in found.shares if (s.of, s.group) == ("build/rows", "sources")}
    assert set(built) == {"web", "books"}
    for name, share in built.items():
        assert share.tokens == tuple(own[name] for own in counted)
        assert share.shares == tuple(own[name] / sum(own.values()) for own in counted)
    assert built["web"].change > 0.2
    assert not any(share.change for share in found.shares if share.of == "tokens")
    assert mill.diff(*runs, fail_on=["shares=0.1"]).failed == ("shares=0.1",)
    shown = CliRunner().invoke(main, ["diff", *map(str, runs)]).stdout
    before, after = (own["web"] for own in counted)
    (line,) = (line for line in shown.splitlines() if line.split()[:2] == ["sources", "web"])
    assert f"{before:,} → {after:>14,}" in line


def test_shares_under_a_thousandth_are_counted_and_shown_when_asked_for(tmp_path: Path) -> None:
    runs = []
    for number, words in enumerate(
        ("a few words that are rarely read here at all", "some others of ten words, in their own small place")
    ):
        web = [{"id": f"w{n}", "text": prose(n, 60)} for n in range(30 + number)]
        runs.append(make(tmp_path / str(number), {"web": web, "tiny": [{"id": "t", "text": words}]}))
    found = mill.diff(*runs)
    small = [
        share
        for share in found.shares
        if max(share.shares) < 0.001
        and share.tokens[0] != share.tokens[1]
        and (share.of == "tokens" or share.group == "sources")
    ]
    assert {share.name for share in small} == {"tiny", "CC0-1.0"}
    few = CliRunner().invoke(main, ["diff", *map(str, runs)]).stdout
    assert few.splitlines()[-1] == f"{len(small)} shares under 0.1 % not shown: --all shows them"
    assert not any(line.split()[1] in ("tiny", "CC0-1.0") for line in few.splitlines() if "%" in line[:-60])
    every = CliRunner().invoke(main, ["diff", *map(str, runs), "--all"]).stdout
    assert "not shown" not in every
    added = [line.split() for line in every.splitlines() if line not in few.splitlines()]
    assert sorted((words[0], words[1]) for words in added) == sorted((s.group, s.name) for s in small)


def test_a_run_and_its_copy_elsewhere_are_the_same(first: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(first, tmp_path / "copy")
    same = mill.diff(first, copy)
    assert same.documents.is_equal
    assert same.documents.same == load_manifest(first / "split").counts["kept"]
    assert (same.recipe, same.tokenizer, same.missing) == ([], [], ([], []))
    assert all(build["is_same"] for build in same.builds)
    assert (
        mill.diff(first, copy, fail_on=["recipe", "tokenizer", "documents", "tokens", "shares=0"]).failed
        == ()
    )


def test_a_document_in_another_split_has_moved(first: Path, tmp_path: Path) -> None:
    other = make(tmp_path, base(), split={"valid_fraction": "0.6"})
    documents = mill.diff(first, other).documents
    assert set(documents.moved) == {"train → valid"}
    before, after = (load_manifest(run / "split").counts["valid"] for run in (first, other))
    assert documents.moved["train → valid"] == after - before
    assert (documents.came, documents.went, documents.changed) == ({}, {}, 0)


def test_what_was_forgotten_is_told_as_that(first: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(first, tmp_path / "copy")
    mill.forget(copy, doc_ids=["w3", "twice"], workers=1)
    documents = mill.diff(first, copy).documents
    assert documents.went == {"forgotten": 3}
    assert documents.came == {"dedup: exact_dup": 1}


def test_a_run_that_was_cut_short_is_compared_as_far_as_it_came(first: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(first, tmp_path / "copy")
    (copy / "manifest.json").unlink()
    for name in ("tokens", "build"):
        shutil.rmtree(copy / name)
    found = mill.diff(first, copy)
    assert found.recipe is None
    assert set(found.missing[1]) >= {"tokens", "build/rows", "build/mega"}
    assert found.documents.is_equal
    assert mill.diff(first, copy, fail_on=["recipe", "documents", "tokens"]).failed == ("recipe", "tokens")


def test_checks_decide_the_exit_status(first: Path, second: Path, tmp_path: Path) -> None:
    def run(*arguments: str | Path) -> Any:
        return CliRunner().invoke(main, ["diff", *map(str, arguments)])

    assert run(first, second).exit_code == 0
    for check in ("recipe", "tokenizer", "documents", "tokens", "shares=0.05"):
        assert run(first, second, "--fail-on", check).exit_code == 1
        assert run(first, first, "--fail-on", check).exit_code == 0
    assert run(first, second, "--fail-on", "shares=1").exit_code == 0
    told = json.loads(run(first, second, "--json", "--fail-on", "tokens").stdout)
    assert (told["ok"], told["failed"]) == (False, ["tokens"])
    assert set(told) == {"ok", "failed", *mill.diff(first, second)._fields}
    shown = run(first, second).stdout
    assert all(
        words in shown for words in ("not in the source", "`seed` changed 7 → 8", "exact_dup", "only in B")
    )
    for check in ("words", "shares", "shares=much", "tokens=1"):
        refused = run(first, second, "--fail-on", check)
        assert refused.exit_code == 1
        assert "cannot be checked" in refused.stderr
    with pytest.raises(RecipeError):
        mill.diff(first, first, fail_on=["all"])


Text = tuple[str, str, str]  # source, id, text


def final_texts(run: Path) -> dict[str, Counter[Text]]:
    """By split: what the run left of each document, by the tables of its steps laid over each other."""
    splits = load_manifest(run / "split").facts["splits"]
    found: dict[str, Counter[Text]] = {split: Counter() for split in splits}
    shards = []
    for entry in load_manifest(run).entries("manifest"):
        step = Path(entry.path).parent.as_posix()
        if step.startswith("ingest/"):
            manifest = load_manifest(run / step)
            shards += [(step.removeprefix("ingest/"), one.path) for one in manifest.entries("documents")]
    for number, (source, path) in enumerate(shards):
        rows = load_table(run / "ingest" / source / path).to_pylist()
        key = path.removeprefix("documents-")
        layers = [run / "clean" / source / f"edits-{key}"]
        layers += [run / "dedup" / f"{name}-{number:05d}.parquet" for name in ("stripped", "trims")]
        for layer in layers:
            for edit in load_table(layer).to_pylist() if layer.is_file() else ():
                rows[edit["row"]]["text"] = edit["text"]
        labels = load_table(run / "split" / f"labels-{number:05d}.parquet")["split"].to_pylist()
        for row, label in zip(rows, labels, strict=True):
            if label < len(splits):
                found[splits[label]][source, row["doc_id"], row["text"]] += 1
    return found


def recounted(a: Path, b: Path) -> tuple[int, int]:
    """The same in the same split; and those of which both have the id, with another text."""
    before, after = final_texts(a), final_texts(b)
    same = sum((before[split] & after[split]).total() for split in before)
    every = [sum(texts.values(), Counter()) for texts in (before, after)]
    ids = []
    for own in (every[0] - every[1], every[1] - every[0]):
        ids.append(Counter[tuple[str, str]]())
        for (source, doc_id, _), count in own.items():
            ids[-1][source, doc_id] += count
    return same, (ids[0] & ids[1]).total()


PASSAGE = "The quick brown fox jumps over the lazy dog while seven more dogs look on from the hill"


def cased() -> dict[str, list[dict[str, Any]]]:
    """Two documents of one id, of which one is the other in capitals; and a passage that many have."""
    records = base()
    for at in range(10, 16):
        records["web"][at]["text"] += f" Mail me at miller{at}@mill.org. {PASSAGE}. Then {at} more"
    records["books"] += [{"id": "case", "text": prose(400, 3)}, {"id": "case", "text": prose(400, 3).upper()}]
    return records


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "capitals": (lambda one: one["text"].upper(), {}),
    "some capitals": (lambda one: one["text"].title() if one["id"] in ("w4", "b2", "w11") else None, {}),
    "spacing": (lambda one: one["text"].replace(" ", "  ", 3) if one["id"] > "w" else None, {}),
    "accents": (lambda one: f"é{one['text']}" if one["id"] == "w4" else None, {}),
    "redacted": (None, {"redact": ["email"]}),
    "passages": (
        None,
        {"dedup": {"exact": False, "window": {"policy": "trim", "words": 12, "min_words": 3, "winnow": 1}}},
    ),
    "licences": (lambda one: None, {"license": {"unknown": "keep"}}),
    "order": ("reversed", {}),
}


@pytest.fixture(scope="module")
def with_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("cases"), cased(), dedup={"exact": False})


@pytest.mark.parametrize("other", OTHERS)
def test_documents_are_the_same_where_their_texts_are_to_the_byte(
    with_cases: Path, tmp_path: Path, other: str
) -> None:
    change, sections = OTHERS[other]
    records = cased()
    if change == "reversed":
        records = {source: rows[::-1] for source, rows in records.items()}
    elif change is not None:
        for rows in records.values():
            for one in rows:
                one["text"] = change(one) or one["text"]
    run = make(tmp_path, records, **{"dedup": {"exact": False}, **sections})
    found = mill.diff(with_cases, run, fail_on=["documents"])
    same, changed = recounted(with_cases, run)
    assert (found.documents.same, found.documents.changed) == (same, changed)
    assert (changed > 0) == (other not in ("licences", "order"))
    assert bool(found.failed) == (changed > 0)
    assert not found.documents.by_id
    back = mill.diff(run, with_cases).documents
    assert (back.same, back.changed) == (same, changed)
    shown = CliRunner().invoke(main, ["diff", str(with_cases), str(run)]).stdout
    assert f"{same:,} the same, {changed:,} with another text" in shown


def test_shards_that_both_runs_have_are_not_read(with_cases: Path, tmp_path: Path) -> None:
    copies = [shutil.copytree(with_cases, tmp_path / name) for name in "ab"]
    for copy in copies:
        for path in copy.glob("ingest/*/documents-*.parquet"):
            path.write_bytes(b"")
    documents = mill.diff(*copies).documents
    assert (documents.same, documents.is_equal) == (load_manifest(with_cases / "split").counts["kept"], True)


@pytest.mark.parametrize("is_whole_first", [True, False])
def test_sources_that_a_run_has_not_cleaned_are_compared_by_id_alone_and_named(
    first: Path, tmp_path: Path, is_whole_first: bool
) -> None:
    """Of the books cleaning is done, and one has another text; of the web it is not."""
    records = base()
    records["books"][3]["text"] = records["books"][3]["text"].upper()
    records["web"][7]["text"] = "another text that is not known to be one"
    cut = make(tmp_path, records)
    (cut / "manifest.json").unlink()
    for name in ("clean/web", "dedup", "split", "tokenizer", "tokens", "build"):
        shutil.rmtree(cut / name)
    runs = (first, cut) if is_whole_first else (cut, first)
    found = mill.diff(*runs)
    assert found.documents.changed == 1
    assert [one["doc_id"] for one in found.documents.examples if one["what"] == "changed"] == ["b3"]
    assert found.as_json()["documents"]["by_id"] == ["web"]
    shown = CliRunner().invoke(main, ["diff", *map(str, runs)])
    assert "by id alone, as a run has not cleaned them: web" in shown.stdout
    assert "by id alone" not in CliRunner().invoke(main, ["diff", str(first), str(first)]).stdout


@given(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)))
def test_rows_are_matched_as_a_list_would_match_them(a: list[int], b: list[int]) -> None:
    left, right = list(range(len(b))), []
    pairs = []
    for at, value in enumerate(a):
        twin = next((other for other in left if b[other] == value), None)
        if twin is None:
            right.append(at)
        else:
            pairs.append((at, twin))
            left.remove(twin)
    keys = [np.array([[value, 7] for value in values], np.uint64).reshape(-1, 2) for values in (a, b)]
    found = [column.tolist() for column in match_equal_rows(*keys)]
    assert sorted(zip(found[0], found[1], strict=True)) == pairs
    assert found[2:] == [right, left]
