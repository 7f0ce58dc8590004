"""report.json against figures that are counted here, in other ways, from the tables and the inputs."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokmill as mill
import tokmill.reports.flow as outcomes
from mill import tokmill, write_recipe
from reports.reported import FAULTS, HOSTILE_ID, figures_of, write_corpus
from tokmill import report, run, verify
from tokmill.audit.opened import find_artifacts
from tokmill.errors import StorageError
from tokmill.reports.charts import brief, safe_json, shown, visible
from tokmill.reports.drops import compare_words
from tokmill.reports.pace import describe_pace
from tokmill.reports.page import ROOM_BYTES, make_lookup
from tokmill.reports.tally import Histogram


def explain(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.why(run, doc_id, source=source).documents


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    return run(write_corpus(directory), directory / "out", workers=1).out


@pytest.fixture(scope="module")
def facts(ran: Path) -> dict[str, Any]:
    return figures_of(ran)


def manifest(ran: Path, step: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ran / step / "manifest.json").read_text())
    return found


def rows_of(pattern: str, ran: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(ran.glob(pattern)):
        found += [
            {**row, "path": path.relative_to(ran).as_posix()} for row in pq.read_table(path).to_pylist()
        ]
    return found


def test_totals_are_those_of_inputs_and_manifests(ran: Path, facts: dict[str, Any]) -> None:
    wild = len((ran.parent / "wild.jsonl").read_text().splitlines())
    notes = len([part for part in (ran.parent / "notes.txt").read_text().split("\n\n") if part.strip()])
    assert facts["totals"]["records"] == 90 + wild + notes
    labels = rows_of("split/labels-*.parquet", ran)
    assert facts["totals"]["kept"] == sum(row["split"] != 255 for row in labels)
    lengths = rows_of("tokens/*/*/lengths-*.parquet", ran)
    assert facts["totals"]["tokens"] == sum(row["tokens"] for row in lengths) > 0
    for build in facts["builds"]:
        counts = manifest(ran, f"build/{build['name']}")["counts"]
        assert build["packing"]["written"] == counts["tokens"]["written"]
        assert facts["totals"]["tokens_written"][build["name"]] == counts["tokens"]["written"]


def test_shares_are_of_tokens_and_add_up(ran: Path, facts: dict[str, Any]) -> None:
    by_domain: Counter[str] = Counter()
    by_license: Counter[str] = Counter()
    for row in rows_of("tokens/*/*/lengths-*.parquet", ran):
        by_domain[row["path"].split("/")[2]] += row["tokens"]
        by_license[row["license"] or "unknown"] += row["tokens"]
    assert {row["name"]: row["tokens"] for row in facts["shares"]["domain"]} == by_domain
    assert {row["name"]: row["tokens"] for row in facts["shares"]["license"]} == by_license
    assert {"Apache-2.0", "MIT", "CC-BY-4.0", "unknown"} == set(by_license)
    total = sum(by_domain.values())
    for rows in facts["shares"].values():
        assert sum(row["tokens"] for row in rows) == total
        assert [row["share"] for row in rows] == [round(row["tokens"] / total, 6) for row in rows]


def test_every_document_that_left_is_in_the_drops(ran: Path, facts: dict[str, Any]) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    for row in [*rows_of("clean/*/ledger-*.parquet", ran), *rows_of("dedup/ledger-*.parquet", ran)]:
        if row["verdict"] != "edit":
            counted[row["stage"], row["reason"]] += 1
    found = {(drop["stage"], drop["reason"]): drop["docs"] for drop in facts["drops"]}
    assert found == counted
    assert {("clean", "too_short"), ("dedup", "exact_dup"), ("dedup", "near_dup")} <= set(found)
    assert facts["totals"]["records"] - sum(found.values()) == facts["totals"]["kept"]


def test_examples_are_the_nearest_on_either_side_of_the_bound(facts: dict[str, Any]) -> None:
    (drop,) = [drop for drop in facts["drops"] if drop["reason"] == "too_short"]
    out = [(example["doc_id"], example["value"], example["bound"]) for example in drop["just_out"]]
    assert out[0] == ("fault-1", float(len(FAULTS[1])), 10.0)
    assert ("fault-2", float(len(FAULTS[2])), 10.0) in out
    nearest = drop["just_kept"][0]
    assert (nearest["doc_id"], nearest["value"], nearest["text"]) == ("fault-0", 10.0, FAULTS[0])
    assert all(example["value"] < 10 for example in drop["just_out"])
    assert all(example["value"] >= 10 for example in drop["just_kept"])


def test_flow_conserves_documents_and_tokens_at_every_node(facts: dict[str, Any]) -> None:
    for flow in facts["flow"].values():
        into: Counter[str] = Counter()
        out: Counter[str] = Counter()
        for link in flow["links"]:
            out[link["from"]] += link["value"]
            into[link["to"]] += link["value"]
        for node in flow["nodes"]:
            if into[node["id"]] and out[node["id"]]:
                assert into[node["id"]] == out[node["id"]], node
        ends = sum(into[node["id"]] for node in flow["nodes"] if not out[node["id"]])
        assert ends == sum(out[node["id"]] for node in flow["nodes"] if not into[node["id"]])
    documents = facts["flow"]["documents"]
    assert sum(n["value"] for n in documents["nodes"] if n["kind"] == "source") == facts["totals"]["records"]


def test_histograms_count_what_the_tables_hold(ran: Path, facts: dict[str, Any]) -> None:
    marks = rows_of("clean/*/marks-*.parquet", ran)
    kept = [row["chars"] for row in marks if row["kept"]]
    lengths = [row["tokens"] for row in rows_of("tokens/*/*/lengths-*.parquet", ran)]
    for bars, values in (
        (facts["lengths"]["chars"]["cleaned"], [row["chars"] for row in marks]),
        (facts["lengths"]["chars"]["kept"], kept),
        (facts["lengths"]["tokens"], lengths),
    ):
        for bar in bars:
            assert bar["docs"] == sum(bar["from"] <= value < bar["below"] for value in values)
        assert sum(bar["docs"] for bar in bars) == len(values)


def test_fertility_leaves_out_the_token_that_ends_a_document(ran: Path, facts: dict[str, Any]) -> None:
    rows = rows_of("tokens/*/web/lengths-*.parquet", ran)
    words = {
        row["row"]: row["words"]
        for row in [
            {"row": at, **line}
            for path in sorted(ran.glob("clean/wild/measures-*.parquet"))
            for at, line in enumerate(pq.read_table(path).to_pylist())
        ]
    }
    (wild,) = [row for row in facts["fertility"]["source"] if row["name"] == "wild"]
    of_text = sum(row["tokens"] - 1 for row in rows)
    assert wild["text_tokens"] == of_text
    assert wild["bytes_per_token"] == round(sum(row["text_bytes"] for row in rows) / of_text, 4)
    assert wild["tokens_per_word"] == round(of_text / sum(words[row["row"]] for row in rows), 4)


def test_the_cluster_shows_what_differs(facts: dict[str, Any]) -> None:
    (cluster,) = facts["clusters"]["shown"]
    assert {cluster["left"], cluster["right"]} == {"mill-1", "mill-2"}
    assert [(p["left"].strip(), p["right"].strip()) for p in cluster["parts"] if p["kind"] == "other"] == [
        ("four", "five")
    ]


def test_fates_are_those_that_why_tells(ran: Path, facts: dict[str, Any]) -> None:
    listed = {
        (row["source"], row["doc_id"], row["outcome"], row.get("tokens"))
        for row in facts["documents"]["rows"]
    }
    assert facts["documents"]["documents"] == facts["documents"]["listed"] == facts["totals"]["records"]
    for doc_id in (HOSTILE_ID, "mill-1", "mill-2", "mill-3", "fault-0", "fault-1"):
        (history,) = explain(ran, doc_id)
        tokens = history.tokens["tokens"] if history.tokens else None
        assert (history.source, doc_id, history.outcome, tokens) in listed


def test_documents_of_a_run_without_deduplication_are_told_to_their_builds(tmp_path: Path) -> None:
    out = run(write_corpus(tmp_path, dedup={"exact": False}), workers=1).out
    rows = [row for row in figures_of(out)["documents"]["rows"] if row["source"] == "wild"]
    assert {row["outcome"].partition(",")[0] for row in rows} == {"kept", "dropped by clean: too_short"}
    for row in rows:
        (history,) = explain(out, row["doc_id"])
        tokens = history.tokens["tokens"] if history.tokens else None
        assert (row["outcome"], row.get("tokens")) == (history.outcome, tokens)


def test_digest_is_the_one_that_verify_proves(ran: Path, facts: dict[str, Any]) -> None:
    assert facts["run"]["digest"] == verify(ran).digest
    for step in facts["chain"]:
        assert step["identity"] == manifest(ran, step["step"])["identity"]


def test_of_many_documents_some_are_listed_the_same_whatever_else_there_is(
    ran: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "LISTED", 20)
    some = figures_of(ran)["documents"]
    shown_elsewhere = {
        example["doc_id"]
        for drop in facts["drops"]
        for key in ("just_out", "just_kept")
        for example in drop[key]
    }
    assert some["documents"] == facts["documents"]["documents"] > some["listed"] >= 20
    assert shown_elsewhere <= {row["doc_id"] for row in some["rows"]}
    everything = {(row["shard"], row["row"]): row["outcome"] for row in facts["documents"]["rows"]}
    assert all(everything[row["shard"], row["row"]] == row["outcome"] for row in some["rows"])


def test_two_reports_of_one_run_have_equal_bytes_and_the_run_is_left_alone(ran: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(ran.rglob("*"))}
    first, second = report(ran, out=tmp_path / "one"), report(ran, out=tmp_path / "two" / "page.html")
    assert first.page.read_bytes() == second.page.read_bytes()
    assert first.figures.read_bytes() == second.figures.read_bytes()
    assert second.figures == tmp_path / "two" / "page.json"
    assert first.page.stat().st_size < 3_000_000
    assert {path: path.stat().st_mtime_ns for path in sorted(ran.rglob("*"))} == before


def test_a_copied_run_has_the_same_report_and_no_path_of_this_machine_in_it(
    ran: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / "copied"
    shutil.copytree(ran, copy)
    first, second = report(ran, out=tmp_path / "one"), report(copy, out=tmp_path / "two")
    assert first.page.read_bytes() == second.page.read_bytes()
    assert first.figures.read_bytes() == second.figures.read_bytes()
    assert str(ran.parent) not in first.figures.read_text()
    assert str(ran.parent) not in first.page.read_text()


def test_a_read_only_run_is_reported_elsewhere(ran: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ran, copy)
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        made = tokmill("report", copy, "--out", tmp_path / "page.html", "--cards", "--json")
        assert made.returncode == 0, made.stderr
        assert (tmp_path / "page.html").is_file()
        assert (tmp_path / "DATACARD.md").is_file()
        if os.geteuid() != 0:  # root writes anywhere
            refused = tokmill("report", copy)
            assert refused.returncode == 1
            assert "--out" in refused.stderr
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_an_interrupted_run_is_reported_as_far_as_it_got(ran: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ran, copy)
    (copy / "manifest.json").unlink()
    for step in ("tokens", "build/rows"):
        (copy / step / "manifest.json").unlink()
    made = report(copy, out=tmp_path / "page.html")
    run_facts = made.facts["run"]
    assert run_facts["is_finished"] is False
    assert run_facts["missing"] == ["tokens", "build/rows"]
    gone = "was made from what is not here (tokens)"
    assert run_facts["set_aside"] == {"build/mega": gone, "build/table": gone}
    assert made.facts["shares"] is None
    assert made.facts["totals"]["tokens"] is None
    whole = figures_of(ran)
    assert made.facts["drops"] == whole["drops"]
    assert made.facts["totals"]["kept"] == whole["totals"]["kept"]
    page = made.page.read_text()
    assert "not finished" in page
    assert "Missing: tokens, build/rows" in page


@pytest.mark.parametrize(("hours", "seconds"), [(0, 102), (1, 303)], ids=["one_run", "a_run_each"])
def test_the_rate_of_a_corpus_that_grew_is_not_that_of_one_run(ran: Path, hours: int, seconds: int) -> None:
    found, names = find_artifacts(ran), ("problems", "notes", "wild")
    for number, name in enumerate(names):
        for step, begun, took in ((f"ingest/{name}", 0.0, 100.0), (f"clean/{name}", 100.0, number * 1.0)):
            artifact = found.artifacts[step]
            begun += 3600 * hours * number
            when = {"worked": [[begun, begun + took]], "seconds": took}
            environment = artifact.manifest.environment | when
            told = msgspec.structs.replace(artifact.manifest, environment=environment)
            found.artifacts[step] = artifact._replace(manifest=told)
    row = describe_pace(found)[0]
    read = sum(manifest(ran, f"ingest/{name}")["counts"]["text_bytes"] for name in names)
    assert (row["kind"], row["steps"], row["text_bytes"]) == ("ingest + clean", 6, read)
    assert row["seconds"] == seconds
    assert row["megabytes_per_second"] == pytest.approx(read / seconds / 1e6, abs=0.001)


def test_after_a_takedown_the_pace_is_of_the_shards_that_were_made_again(tmp_path: Path) -> None:
    texts = {
        (file, n): f"File {file} has the line {n} of some {n * 37} words."
        for file in range(4)
        for n in range(9)
    }
    for file in range(4):
        lines = [json.dumps({"id": f"{file}-{n}", "text": texts[file, n]}) for n in range(9)]
        (tmp_path / f"lines-{file}.jsonl").write_text("\n".join(lines) + "\n")
    source = {"name": "lines", "files": "lines-*.jsonl", "fields": {"id": "id"}}
    parts = {"sources": [source], "tokenizer": None, "builds": None, "filters": []}
    out = run(write_recipe(tmp_path, **parts), tmp_path / "out", workers=1).out
    whole = figures_of(out)["pace"][0]
    read = sum(len(text.encode()) for text in texts.values())
    assert (whole["tasks"], whole["timed_tasks"], whole["docs"], whole["text_bytes"]) == (4, 4, 36, read)
    mill.forget(out, doc_id="2-5")
    again = figures_of(out)["pace"][0]
    left = sum(len(text.encode()) for (file, n), text in texts.items() if file == 2 and n != 5)
    assert (again["tasks"], again["timed_tasks"], again["docs"], again["text_bytes"]) == (4, 1, 9, left)
    assert again["megabytes_per_second"] == pytest.approx(left / again["seconds"] / 1e6, abs=0.001)
    assert "1 of 4 tasks" in report(out).page.read_text()


def test_a_run_that_only_read_is_reported(tmp_path: Path) -> None:
    out = run(write_corpus(tmp_path), tmp_path / "out", workers=1, until="ingest/problems").out
    (out / "manifest.json").unlink()
    made = report(out)
    assert made.page == out / "report.html"
    assert made.facts["drops"] == []
    assert made.facts["run"]["steps"] == ["ingest/problems"]
    assert made.facts["totals"]["records"] == made.facts["totals"]["kept"] == 90


def test_records_that_never_became_documents_are_told(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(at), "text": f"a good line, number {at}"}) for at in range(400)]
    lines[7] = '{"id": "7", "text": '
    (tmp_path / "lines.jsonl").write_text("\n".join(lines) + "\n")
    source = {"name": "lines", "files": "lines.jsonl", "fields": {"id": "id"}}
    parts = {"sources": [source], "tokenizer": None, "builds": None, "filters": []}
    found = figures_of(run(write_recipe(tmp_path, **parts), tmp_path / "out", workers=1).out)
    (drop,) = [drop for drop in found["drops"] if drop["verdict"] == "quarantine"]
    assert (drop["stage"], drop["docs"], drop["records"][0]["file"]) == ("ingest", 1, "lines.jsonl")
    assert any("quarantined" in note["what"] for note in found["notes"])


def test_an_artifact_of_another_run_is_set_aside(ran: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ran, copy)
    (copy / "manifest.json").unlink()
    write_corpus(tmp_path / "other")
    lines = (tmp_path / "other" / "wild.jsonl").read_text().splitlines()
    (tmp_path / "other" / "wild.jsonl").write_text("\n".join(lines[1:]) + "\n")
    other = run(tmp_path / "other" / "recipe.yaml", tmp_path / "out", workers=1, until="clean").out
    for step in ("ingest/wild", "clean/wild"):
        shutil.rmtree(copy / step)
        shutil.copytree(other / step, copy / step)
    found = figures_of(copy)
    assert found["run"]["set_aside"]["dedup"] == "was made from another clean/wild than the one here"
    assert found["totals"]["records"] == figures_of(ran)["totals"]["records"] - 1
    assert found["shares"] is None


def test_a_run_of_many_sources_has_a_river_that_can_be_read(tmp_path: Path) -> None:
    sources = []
    for number in range(20):
        lines = [f"line {line} of source {number}" for line in range(number + 1)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines) + "\n")
        sources.append({"name": f"s{number}", "files": f"{number}.txt", "unit": "line"})
    parts = {"sources": sources, "tokenizer": None, "builds": None, "filters": []}
    found = figures_of(run(write_recipe(tmp_path, **parts), tmp_path / "out", workers=1).out)
    nodes = [node for node in found["flow"]["documents"]["nodes"] if node["kind"] == "source"]
    assert {node["label"] for node in nodes} == {f"s{n}" for n in range(8, 20)} | {"8 other sources"}
    assert sum(node["value"] for node in nodes) == sum(range(21)) == found["totals"]["records"]


def test_long_ids_do_not_make_a_long_page() -> None:
    rows = [
        {
            "source": "s",
            "doc_id": f"{at}" + "é" * 2_000,
            "outcome": "kept, train",
            **({"text": "words"} if at % 2 else {}),
        }
        for at in range(4_000)
    ]
    lookup = make_lookup({"rows": rows})
    size = len(safe_json(lookup).encode())
    assert ROOM_BYTES * 0.9 < size < ROOM_BYTES * 1.1
    assert all(len(row) == 6 for row in lookup["rows"])  # those with words go first


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not the directory of a run"):
        report(tmp_path)


@given(st.lists(st.integers(0, 10**9), max_size=60))
def test_histogram_bars_hold_every_value_once(values: list[int]) -> None:
    histogram = Histogram()
    histogram.add(np.array(values, np.int64))
    bars = histogram.bars()
    assert [bar["docs"] for bar in bars] == [sum(b["from"] <= v < b["below"] for v in values) for b in bars]
    assert sum(bar["docs"] for bar in bars) == len(values)


@given(st.text(alphabet="ab \n", max_size=60), st.text(alphabet="ab \n", max_size=60))
def test_short_texts_are_compared_without_loss(left: str, right: str) -> None:
    parts = compare_words(left, right)
    if len(parts) < 24:
        assert "".join(part["left"] for part in parts) == left
        assert "".join(part["right"] for part in parts) == right


def test_long_agreement_is_left_out_by_number() -> None:
    same = " ".join(f"word{at}" for at in range(200))
    parts = compare_words(f"one {same}", f"two {same}")
    assert [part["kind"] for part in parts] == ["other", "same", "skip"]
    assert parts[1]["left"].split() == [f"word{at}" for at in range(18)]
    assert parts[2]["words"] == 200 - 18


@given(st.text())
def test_shown_text_has_no_markup_and_nothing_unseen(text: str) -> None:
    escaped = shown(text)
    assert not set("<>\"'") & set(escaped)
    assert not any(character in escaped for character in "\u202e\u2028\u200b\u0000\u061c")


def test_unseen_characters_are_spelled_out() -> None:
    assert visible("a\u202eb\x00c\td\ne") == "a[U+202E]b[U+0000]c\td\ne"


@given(
    st.recursive(st.text() | st.integers() | st.none(), lambda part: st.lists(part, max_size=4), max_leaves=6)
)
def test_embedded_json_cannot_end_its_element(value: Any) -> None:
    text = safe_json(value)
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (999_999, "1 M"),
        (2_415_645, "2.42 M"),
    ],
)
def test_brief_numbers(value: int, text: str) -> None:
    assert brief(value) == text
