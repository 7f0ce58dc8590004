"""Labels outlive kills and full disks, and a recipe reads the file as it is."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import pytest

from tokmill.errors import DiskFull, InputError, TokmillError
from tokmill.explorer.labels import Label, LabelStore, precision_of, sha256_of, wilson
from tokmill.scores.labels import load_labels

WRITER = Path(__file__).with_name("label_writer.py")


def plain(path: Path) -> dict[str, str]:
    """The file by a few lines of code that share nothing with the store; the last label of a document."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return {(found := json.loads(line))["doc_id"]: found["label"] for line in whole.split(b"\n") if line}


def label(doc_id: str, word: str = "good", source: str | None = "se") -> Label:
    return Label(doc_id, source, word, ("a, b",), "ada", "2026-11-18T11:30:00Z", sha256_of("text"), "random")


def test_whatever_moment_it_is_killed_at_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    drawn = random.Random(25)
    acknowledged: dict[str, str] = {}
    for seed in range(12):
        writer = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout is not None
        first = writer.stdout.readline()
        threading.Timer(drawn.random() * 0.25, writer.kill).start()
        said = [line.split() for line in [first, *writer.stdout]]
        assert writer.wait() == -9, "it was over before it could be killed"
        writer.stdout.close()
        words = [line for line in said if len(line) == 3]
        begun = {doc_id: word for act, doc_id, word in words if act == "begun"}
        acknowledged |= {doc_id: word for act, doc_id, word in words if act == "saved"}
        found = plain(path)
        for doc_id, word in acknowledged.items():
            assert found.get(doc_id) in (word, begun.get(doc_id)), doc_id
        acknowledged |= {doc_id: found[doc_id] for doc_id in begun if doc_id in found}
        assert {one.doc_id: one.label for one in LabelStore(path).load()} == found
    assert len(acknowledged) > 100
    assert [name.name for name in tmp_path.iterdir() if not name.name.startswith(".tmp-")] == ["labels.jsonl"]


def test_a_last_line_torn_at_any_byte_takes_nothing_with_it(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    store = LabelStore(path)
    for doc_id in ("one", "two", "three ünï"):
        store.save(label(doc_id))
    whole = path.read_bytes()
    before_last = whole[:-1].rfind(b"\n") + 1
    for end in range(before_last, len(whole) - 1):
        path.write_bytes(whole[:end])
        torn = LabelStore(path)
        assert [one.doc_id for one in torn.load()] == ["one", "two"]
        torn.save(label("four", "bad"))
        assert plain(path) == {"one": "good", "two": "good", "four": "bad"}
        assert load_labels(path, f"{end}").names == ("bad", "good")


def test_the_file_is_what_a_recipe_trains_on_after_every_save_and_change(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    store = LabelStore(path)
    assert store.save(label("a")) == 1
    assert store.save(label("b", "bad")) == 2
    assert store.save(label("c", "bad")) == 3
    assert store.save(label("a", "bad")) == 3
    assert store.save(label("c", "good")) == 3
    assert store.save(label("a", "good", source="other")) == 4
    assert store.remove("b", "se") == 3
    assert store.remove("b", "se") == 3
    found = load_labels(path, "after")
    assert found.names == ("bad", "good")
    assert found.of("se", ["a", "b", "c"]).tolist() == [0, -1, 1]
    assert found.of("other", ["a"]).tolist() == [1]
    assert len(path.read_text().splitlines()) == 3
    assert store.of("c", "se") == label("c")
    assert store.of("b", "se") is None


def test_everything_that_was_said_is_read_back(tmp_path: Path) -> None:
    said = Label("id\n\u202e\x00", "s", "good", ("x", "y\n"), "ada", "2026-11-18T11:30:00Z", "ab", "border")
    LabelStore(tmp_path / "deep" / "labels.jsonl").save(said)
    (found,) = LabelStore(tmp_path / "deep" / "labels.jsonl").load()
    assert found == said
    assert found.as_json()["id"] == "id\n\u202e\x00"


def test_a_file_of_other_hands_is_read_and_its_last_label_stands(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "a", "label": "good"}\n\n{"doc_id": "a", "label": "bad", "note": 1}\n')
    store = LabelStore(path)
    assert [(one.doc_id, one.label) for one in store.load()] == [("a", "bad")]
    assert store.of("a", "any source").label == "bad"  # type: ignore[union-attr]


def test_a_last_line_without_a_newline_by_an_editor_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "a", "label": "good"}\n{"id": "b", "label": "bad"}')
    store = LabelStore(path)
    assert [one.doc_id for one in store.load()] == ["a", "b"]
    store.save(label("c"))
    assert [one.doc_id for one in LabelStore(path).load()] == ["a", "b", "c"]
    assert path.read_bytes().count(b"\n") == 3


def test_a_link_stays_one_and_the_file_that_people_share_has_every_label_and_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "labels.jsonl"
    shared.parent.mkdir()
    link = tmp_path / "mine.jsonl"
    link.symlink_to(shared)  # to a file that is not there yet
    store = LabelStore(link)
    store.save(label("a"))
    shared.chmod(0o664)
    store.save(label("b"))
    store.save(label("a", "bad"))
    store.save(label("c"))
    store.remove("b", "se")
    assert link.is_symlink()
    assert plain(shared) == {"a": "bad", "c": "good"}
    assert {one.doc_id: one.label for one in LabelStore(shared).load()} == {"a": "bad", "c": "good"}
    assert shared.stat().st_mode & 0o777 == 0o664
    assert [one.name for one in (*tmp_path.iterdir(), *shared.parent.iterdir()) if one.name[0] == "."] == []


def test_a_line_that_is_no_label_is_told_by_its_number_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "a", "label": "good"}\n{"id": "b"}\n')
    before = path.read_bytes()
    with pytest.raises(InputError, match="line 2 is no label"):
        LabelStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "wrong", [label(""), label("a", " "), label("a", "x" * 201), Label("a", "s", "good", ("",))]
)
def test_a_label_without_a_word_is_refused_before_anything_is_written(wrong: Label, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        LabelStore(tmp_path / "labels.jsonl").save(wrong)
    assert not (tmp_path / "labels.jsonl").exists()


def test_a_full_disk_is_told_and_the_file_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    store = LabelStore(path)
    store.save(label("a"))
    whole = path.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, old[1]))
    try:
        with pytest.raises(TokmillError) as told:
            store.save(label("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert isinstance(told.value, DiskFull)
    assert path.read_bytes() == whole
    assert store.save(label("b")) == 2
    assert plain(path) == {"a": "good", "b": "good"}


def test_two_explorers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"

    def say(who: int) -> None:
        store = LabelStore(path)
        for turn in range(40):
            store.save(label(f"{who}-{turn % 25}", f"{turn}"))

    both = [threading.Thread(target=say, args=(who,)) for who in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    wanted = {
        f"{who}-{place}": str(max(turn for turn in range(40) if turn % 25 == place))
        for who in range(2)
        for place in range(25)
    }
    assert plain(path) == wanted
    assert len(path.read_text().splitlines()) == 50


def test_the_interval_is_that_of_wilson_solved_by_search() -> None:
    """Its bounds are the shares p at which `right` of `of` lies 1.96 standard deviations away."""
    for of in (1, 3, 10, 57, 400):
        for right in {0, 1, of // 3, of - 1, of}:
            low, high = wilson(right, of)
            for bound, side in ((low, -1), (high, 1)):
                share = float(Fraction(right, of))
                lower, upper = (0.0, share) if side < 0 else (share, 1.0)
                for _ in range(80):
                    middle = (lower + upper) / 2
                    inside = abs(share - middle) <= 1.959963984540054 * (middle * (1 - middle) / of) ** 0.5
                    if inside == (side < 0):
                        upper = middle
                    else:
                        lower = middle
                assert bound == pytest.approx((lower + upper) / 2, abs=1e-9), (right, of)


def test_precision_counts_the_bad_among_those_that_were_judged() -> None:
    found = precision_of(["bad", "bad", "good", "perhaps", "bad"])
    assert (found.labelled, found.right, found.precision) == (4, 3, 0.75)
    assert (found.low, found.high) == wilson(3, 4)
    assert precision_of([]) == (0, 0, None, 0.0, 1.0)
