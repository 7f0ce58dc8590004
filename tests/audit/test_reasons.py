"""Every reason for which a document leaves, is changed or is in no row can be read about:
how many, which, and why."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import prose, rows_of, write_documents
from tokmill.cli import main

Json = dict[str, Any]
QUESTION = "How many zebras may graze on nine hills before any of the seven shepherds takes notice of them?"

# By step. What a run writes nothing down of is told by its number alone.
REASONS = {
    "ingest": {"invalid_json", "missing_field", "other_kind", "not_sampled", "forgotten"},
    "clean": {
        *("empty", "license_denied", "license_not_allowed", "license_unknown", "other_language"),
        *("too_few_words", "newlines_to_lf", "redacted_email"),
    },
    "dedup": {"contaminated", "exact_dup", "near_dup", "window_dup", "passages_trimmed"},
    "split": {"unknown_split", "not_counted"},
    "mixture": {"over_budget", "no_weight"},
    "build": {"left_out", "tail"},
}
UNWRITTEN = {"not_sampled"}


def web(name: str) -> list[Json]:
    """Documents of one kind for each reason, and some good ones."""
    passage = prose(500, 8)
    good = [{"id": f"{name}{n}", "text": prose(ord(name) * 100 + n, 6), "license": "MIT"} for n in range(40)]
    odd: list[Json] = [
        {"id": "wrong", "text": prose(901), "kind": "bad"},
        {"id": "blank", "text": " \n ", "license": "MIT"},
        {"id": "denied", "text": prose(902, 4), "license": "GPL-3.0-only"},
        {"id": "refused", "text": prose(903, 4), "license": "CC-BY-4.0"},
        {"id": "nobody", "text": prose(904, 4)},
        {"id": "german", "text": prose(905, 4), "license": "MIT", "lang": "de"},
        {"id": "short", "text": "Too short to keep, by far.", "license": "MIT"},
        {"id": "lines", "text": prose(906, 4) + "\r\nAnd more.", "license": "MIT"},
        {"id": "mail", "text": prose(907, 4) + " Write to miller@old-mill.org today.", "license": "MIT"},
        {"id": "leak", "text": f"{prose(908, 4)} {QUESTION}", "license": "MIT"},
        {"id": "equal", "text": good[3]["text"], "license": "MIT"},
        {"id": "near", "text": good[4]["text"] + " Again.", "license": "MIT"},
        {"id": "passage", "text": f"{passage} {prose(909, 8)}", "license": "MIT"},
        {"id": "passage-and-more", "text": f"{prose(910, 8)}\n{passage}", "license": "MIT"},
        {"id": "passage-alone", "text": f"{passage}\nAnd no more than that.", "license": "MIT"},
    ]
    return [{"kind": "good", "lang": "en", "license": None, **record} for record in [*good, *odd]]


def write_run(directory: Path, reference: list[str] | None = None, **sections: Any) -> Path:
    """A source of weight 0 is read where others are compared with it."""
    directory.mkdir(parents=True)
    write_documents(directory / "web.jsonl", web("a"))
    with (directory / "web.jsonl").open("a") as file:
        file.write('{ not JSON\n{"id": "no-text", "kind": "good"}\n')
    others = [{"id": f"b{n}", "text": prose(40_000 + n, 6), "license": "MIT"} for n in range(30)]
    write_documents(directory / "other.jsonl", others)
    third = [
        {**one, "id": f"c{n}", "text": prose(50_000 + n, 3), "kind": "good"} for n, one in enumerate(others)
    ]
    write_documents(directory / "third.jsonl", third)
    (directory / "bench.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    recipe: Json = {
        "name": "reasons",
        "seed": 7,
        "sources": [
            {
                "name": "web",
                "domain": "web",
                "files": "web.jsonl",
                "where": {"kind": "good"},
                "fields": {"id": "id", "license": "license", "language": "lang", "meta": ["kind"]},
                "max_bad_fraction": "0.5",
            },
            {
                "name": "other",
                "domain": "web",
                "files": "other.jsonl",
                "fields": {"id": "id", "license": "license"},
            },
            {
                "name": "third",
                "domain": "prose",
                "files": "third.jsonl",
                "fields": {"id": "id", "license": "license", "meta": ["kind"]},
                "sample": {"method": "hash", "fraction": "0.6"},
            },
        ],
        "normalize": {"newlines": "lf"},
        "license": {"allow": ["MIT"], "deny": ["GPL-3.0-only"], "unknown": "drop"},
        "language": {"method": "field", "keep": ["en"]},
        "filters": [{"measure": "words", "min": 10, "reason": "too_few_words"}],
        "redact": ["email"],
        "dedup": {
            "near": {},
            "window": {"words": 20, "winnow": 5, "policy": "trim", "min_words": 30},
            "against": {"files": "bench.jsonl", "fields": ["question"]},
            "reference": reference or [],
            "partitions": 1,
        },
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 64},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return mill.run(path, workers=1).out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("reasons")
    weights = {"web": {"web": 1, "other": 0}}
    mixed = write_run(
        directory / "mixed",
        reference=["other"],
        mixture={"weights": {"web": "0.3", "prose": "0.7"}, "sources": weights},
        pack={"length": 2048},
    )
    balanced = write_run(
        directory / "balanced",
        mixture={"balance": "smallest"},
        split={
            "method": "field",
            "field": "kind",
            "values": {"train": ["good"], "valid": ["held"]},
            "unknown": "drop",
        },
    )
    counted = write_run(
        directory / "counted", split={"method": "counts", "counts": {"train": 20, "valid": 5}}
    )
    taken = Path(shutil.copytree(counted, directory / "taken"))
    mill.forget(taken, doc_ids=["a7"], base=directory / "counted", workers=1)
    return [mixed, balanced, counted, taken]


def why(run: Path, *arguments: str) -> str:
    found = CliRunner().invoke(main, ["why", str(run), *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def counts_of(run: Path) -> Counter[tuple[str, str]]:
    """(step, reason) with the documents of each, as the manifests have them."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(run.glob("*/manifest.json")) + sorted(run.glob("*/*/manifest.json")):
        manifest = json.loads(path.read_bytes())
        for key in ("dropped", "quarantined", "edited"):
            for reason, docs in manifest["counts"].get(key, {}).items():
                found[manifest["step"], reason] += docs
    return +found


def test_the_runs_have_every_reason(runs: list[Path]) -> None:
    found: dict[str, set[str]] = {}
    for run in runs:
        for step, reason in counts_of(run):
            found.setdefault(step.partition("/")[0], set()).add(reason)
    assert found == REASONS


def test_every_reason_has_its_number_and_examples_with_their_texts(runs: list[Path]) -> None:
    for run in runs:
        counted = counts_of(run)
        for reason in {reason for _, reason in counted}:
            told = json.loads(why(run, "--reason", reason, "--json"))
            assert {(one["step"], one["reason"]): one["docs"] for one in told["counts"]} == {
                key: docs for key, docs in counted.items() if key[1] == reason
            }
            shown = why(run, "--reason", reason)
            if reason in UNWRITTEN:
                assert told["examples"] == []
                assert shown.endswith("no example of them was recorded\n")
                continue
            steps = {one["step"] for one in told["examples"]}
            assert steps == {step for step, own in counted if own == reason}, (run, reason)
            for example in told["examples"]:
                assert f"{reason}" in shown
                assert (example["doc_id"] or example["file"]) in shown
                is_record = example["step"].startswith("ingest/")
                assert is_record == (example["text"] is None), example
            if reason.startswith("redacted_"):
                assert "miller@old-mill.org" not in shown


def test_the_history_of_every_example_names_its_reason(runs: list[Path]) -> None:
    for run in runs:
        for example in json.loads(why(run, "--reason", "all", "--json"))["examples"]:
            if example["doc_id"] is None or example["reason"] == "forgotten":
                continue
            histories = json.loads(why(run, example["doc_id"], "--source", example["source"], "--json"))
            (history,) = histories["documents"]
            step = example["step"].partition("/")[0]
            if step in ("mixture", "build"):
                assert history["outcome"].endswith(", in no build"), history["outcome"]
            else:
                assert example["reason"] in json.dumps(history), (example, history)


def test_a_survivor_is_named_beside_its_copy(runs: list[Path]) -> None:
    for reason in ("exact_dup", "near_dup", "window_dup"):
        (example, *_) = json.loads(why(runs[0], "--reason", reason, "--json"))["examples"]
        assert example["match"]["source"] == "web"
        assert f"kept instead: web {example['match']['doc_id']}" in why(runs[0], "--reason", reason)


def test_an_id_that_is_nowhere_may_be_one_that_was_not_sampled(runs: list[Path]) -> None:
    found = CliRunner().invoke(main, ["why", str(runs[0]), "c-nowhere"])
    assert found.exit_code == 1
    left_out = counts_of(runs[0])["ingest/third", "not_sampled"]
    assert f"not sampled are written down nowhere ({left_out:,} of third)" in found.stderr


def test_a_part_of_a_name_means_every_reason_that_has_it(runs: list[Path]) -> None:
    told = json.loads(why(runs[0], "--reason", "license", "--json"))
    reasons = {"license_denied", "license_not_allowed", "license_unknown"}
    assert {one["reason"] for one in told["counts"]} == {one["reason"] for one in told["examples"]} == reasons
    told = json.loads(why(runs[0], "--reason", "language", "--json"))
    assert {one["reason"] for one in told["counts"]} == {"other_language"}


def test_an_unknown_reason_lists_those_that_there_are_with_their_numbers(runs: list[Path]) -> None:
    for run in runs:
        totals: Counter[str] = Counter()
        for (_, reason), docs in counts_of(run).items():
            totals[reason] += docs
        first, *lines = why(run, "--reason", "near-dup").splitlines()
        assert first == "no document left or was changed for near-dup; reasons of this run:"
        listed = {words[1]: int(words[0].replace(",", "")) for words in map(str.split, lines)}
        assert listed == dict(totals)
        assert list(listed.values()) == sorted(listed.values(), reverse=True)
        told = json.loads(why(run, "--reason", "near-dup", "--json"))
        assert (told["counts"], told["examples"]) == ([], [])
        assert {(one["step"], one["reason"]): one["docs"] for one in told["others"]} == counts_of(run)


def test_numbers_of_one_source_are_those_of_its_ledgers(runs: list[Path]) -> None:
    for run in runs:
        for source in ("web", "other", "third"):
            ledgers: Counter[tuple[str, str]] = Counter()
            for step in ("dedup", "split", f"clean/{source}"):
                rows = rows_of(run, step, "ledger")
                ledgers.update((step, row["reason"]) for row in rows if row["source"] == source)
            told = json.loads(why(run, "--reason", "all", "--source", source, "--json"))
            counted = {(one["step"], one["reason"]): one["docs"] for one in told["counts"]}
            ingested = {key: docs for key, docs in counts_of(run).items() if key[0] == f"ingest/{source}"}
            assert counted == {**ledgers, **ingested}
            assert {one["source"] for one in told["examples"]} <= {source}
    refused = CliRunner().invoke(main, ["why", str(runs[0]), "--reason", "all", "--source", "wbe"])
    assert refused.exit_code == 1
    assert "no source is called wbe" in refused.stderr
    assert "one of: web, other, third" in refused.stderr


def test_quarantined_documents_are_read_like_dropped_ones_and_few_of_many_shards(tmp_path: Path) -> None:
    for part in range(6):
        records = [{"id": f"{part}-{n}", "text": prose(part * 100 + n, 4)} for n in range(4)]
        write_documents(tmp_path / f"part-{part}.jsonl", records)
    recipe = {
        "name": "held",
        "sources": [{"name": "web", "files": "part-*.jsonl"}],
        "license": {"unknown": "quarantine"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = mill.run(tmp_path / "recipe.yaml", workers=1, until="clean").out
    told = json.loads(why(out, "--reason", "license_unknown", "--json"))
    assert told["counts"] == [
        {"step": "clean/web", "verdict": "quarantine", "reason": "license_unknown", "docs": 24}
    ]
    texts = {row["doc_id"]: row["text"] for row in rows_of(out, "ingest/web", "documents")}
    assert len(told["examples"]) == 3
    for example in told["examples"]:
        assert (example["verdict"], example["text"]) == ("quarantine", texts[example["doc_id"]])


def test_a_run_that_failed_later_has_its_reasons_all_the_same(runs: list[Path], tmp_path: Path) -> None:
    cut = Path(shutil.copytree(runs[0], tmp_path / "cut"))
    expected = json.loads(why(cut, "--reason", "near_dup", "--json"))
    (cut / "manifest.json").unlink()
    for step in ("build", "mixture", "tokens", "tokenizer", "split"):
        shutil.rmtree(cut / step)
    assert json.loads(why(cut, "--reason", "near_dup", "--json")) == expected
    assert expected["examples"]
