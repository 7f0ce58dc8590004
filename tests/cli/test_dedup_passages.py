"""`tokmill dedup --mode window`: passages that an earlier document has, told, dropped for, or cut."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tokmill.cli import main
from written import ZstdFile

SHARED_WORDS = 120


def words(count: int, seed: int) -> str:
    """Sentences of ten made-up words, none of which two seeds share."""
    draw = random.Random(seed)
    made = [f"{''.join(draw.choices('abcdefghijklmnop', k=7))}{seed}" for _ in range(count)]
    return " ".join(
        f"{made[at].capitalize()} {' '.join(made[at + 1 : at + 10])}." for at in range(0, count, 10)
    )


PASSAGE = words(SHARED_WORDS, 999)
TEXTS = {
    "first": f"{words(60, 1)} {PASSAGE} {words(60, 2)}",
    "mostly": f"{words(30, 3)} {PASSAGE}",  # 120 of 150 words
    "little": f"{words(300, 4)} {PASSAGE} {words(200, 5)}",  # 120 of 620 words
    "own": words(200, 6),
    "again": words(200, 6),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, chosen in (("a", ["first", "mostly"]), ("b", ["little", "own", "again"])):
        lines = [json.dumps({"id": key, "text": TEXTS[key]}) + "\n" for key in chosen]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def tokmill(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments), "--workers", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def load_lines(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


def deduped(data: Path, *options: str, mode: str = "window") -> tuple[Any, dict[str, str], Path]:
    out = data / "-".join(["out", mode, *options]).replace("--", "")
    inputs = ["--input", f"a={data}/a.jsonl", "--input", f"b={data}/b.jsonl"]
    result = tokmill("dedup", *inputs, "--mode", mode, *options, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    kept = {document["doc_id"]: document["text"] for document in load_lines(out / "deduped.jsonl.zst")}
    return json.loads(result.stdout), kept, out


def longest_shared_run(one: str, other: str) -> int:
    """In words, by trying every length: the slow way."""
    a, b = re.findall(r"\w+", one.lower()), re.findall(r"\w+", other.lower())
    spelled = f" {' '.join(b)} "
    longest = 0
    for start in range(len(a)):
        while start + longest < len(a) and f" {' '.join(a[start : start + longest + 1])} " in spelled:
            longest += 1
    return longest


def test_the_default_tells_every_passage_and_keeps_every_text(data: Path) -> None:
    report, kept, out = deduped(data)
    assert kept == TEXTS
    assert report["drops"] == {}
    told = load_lines(out / "passages.jsonl.zst")
    assert {(item["doc_id"], item["first_doc_id"]) for item in told} == {
        ("mostly", "first"),
        ("little", "first"),
        ("again", "own"),
    }
    for item in told:
        text, first = TEXTS[item["doc_id"]].encode(), TEXTS[item["first_doc_id"]].encode()
        passage = text[item["start"] : item["end"]].decode()
        assert passage == first[item["first_start"] : item["first_end"]].decode()
        assert item["words"] == len(re.findall(r"\w+", passage))
        assert item["words"] == longest_shared_run(TEXTS[item["doc_id"]], TEXTS[item["first_doc_id"]])
    assert {item["doc_id"]: (item["source"], item["first_source"]) for item in told} == {
        "mostly": ("a", "a"),
        "little": ("b", "a"),
        "again": ("b", "b"),
    }
    assert (report["passages"]["passages"], report["passages"]["documents"]) == (len(told), 3)


def test_drop_takes_documents_of_which_more_than_the_share_is_repeated(data: Path) -> None:
    _, kept, out = deduped(data, "--policy", "drop")
    assert kept == {key: TEXTS[key] for key in ("first", "little", "own")}
    decisions = {item["doc_id"]: item for item in load_lines(out / "decisions.jsonl.zst")}
    assert decisions["mostly"]["reason"] == "window_dup"
    assert decisions["mostly"]["dup_of"] == "first"
    assert decisions["mostly"]["score"] == pytest.approx(SHARED_WORDS / 150)
    _, kept, _ = deduped(data, "--policy", "drop", "--max-share", "0.15")
    assert set(kept) == {"first", "own"}
    _, kept, _ = deduped(data, "--policy", "drop", "--window-words", "130")
    assert set(kept) == {"first", "mostly", "little", "own"}, "the passage is shorter than the window"


def test_trim_cuts_the_later_copies_and_leaves_the_rest_as_it_was(data: Path) -> None:
    report, kept, _ = deduped(data, "--policy", "trim", "--min-words", "10")
    assert set(kept) == {"first", "mostly", "little", "own"}
    assert kept["first"] == TEXTS["first"]
    assert longest_shared_run(kept["little"], TEXTS["first"]) < 50
    assert longest_shared_run(kept["mostly"], TEXTS["first"]) < 50
    for key in ("mostly", "little"):
        for sentence in re.split(r"(?<=\.) ", TEXTS[key]):
            assert (sentence in kept[key]) == (sentence not in PASSAGE)
    cut = sum(len(TEXTS[key]) - len(kept[key]) for key in ("mostly", "little"))
    assert report["passages"]["bytes_cut"] == cut
    _, kept, _ = deduped(data, "--policy", "trim", "--min-words", "50")
    assert set(kept) == {"first", "little", "own"}, "30 words of `mostly` are its own"


def test_with_exact_copies_gone_first_their_passages_are_not_told(data: Path) -> None:
    _, kept, out = deduped(data, "--policy", "trim", mode="exact+window")
    assert set(kept) == {"first", "little", "own"}
    decisions = {item["doc_id"]: item.get("reason") for item in load_lines(out / "decisions.jsonl.zst")}
    assert decisions == {
        "first": None,
        "mostly": "window_dup",
        "little": None,
        "own": None,
        "again": "exact_dup",
    }
    told = {(item["doc_id"], item["first_doc_id"]) for item in load_lines(out / "passages.jsonl.zst")}
    assert told == {("mostly", "first"), ("little", "first")}
    shown = tokmill("dedup", "--input", data / "*.jsonl", "--mode", "window", "--out", data / "shown")
    assert "3 passages in 3 documents" in shown.output
    assert "--policy drop or --policy trim" in shown.output
