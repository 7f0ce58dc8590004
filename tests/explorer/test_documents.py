"""The table of documents, against columns that are put together from the files by other code."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokmill
from explored import HOSTILE, Client
from mill import tokmill as command
from written import load_table

Row = dict[str, Any]


def read_rows(run: Path) -> list[Row]:
    """Of every document, in the order of the corpus: from the Parquet files, one after the other."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    steps = [
        Path(entry["path"]).parent.as_posix() for entry in manifest["files"] if "manifest" in entry["path"]
    ]
    splits = json.loads((run / "split/manifest.json").read_bytes())["facts"]["splits"]
    rows: list[Row] = []
    number = 0
    for step in steps:
        if not step.startswith("ingest/"):
            continue
        source = step.removeprefix("ingest/")
        for path in sorted((run / step).glob("documents-*.parquet")):
            key = path.stem.removeprefix("documents-")
            documents = load_table(path).to_pylist()
            marks = load_table(run / f"clean/{source}/marks-{key}.parquet").to_pylist()
            measures = load_table(run / f"clean/{source}/measures-{key}.parquet").to_pylist()
            verdicts = load_table(run / f"dedup/verdicts-{number:05d}.parquet").to_pylist()
            labels = load_table(run / f"split/labels-{number:05d}.parquet").to_pylist()
            fates: dict[int, tuple[str, str]] = {}
            edited = set()
            for name, ledger in (
                ("clean", run / f"clean/{source}/ledger-{key}.parquet"),
                ("dedup", run / f"dedup/ledger-{number:05d}.parquet"),
                ("split", run / f"split/ledger-{number:05d}.parquet"),
            ):
                for line in load_table(ledger).to_pylist() if ledger.exists() else ():
                    if line["verdict"] == "edit":
                        edited.add(line["row"])
                    else:
                        fates.setdefault(line["row"], (name, line["reason"]))
            tokens = {}
            for lengths in run.glob(f"tokens/*/*/lengths-{number:05d}.parquet"):
                tokens |= {one["row"]: one["tokens"] for one in load_table(lengths).to_pylist()}
            for row, document in enumerate(documents):
                label = labels[row]["split"]
                step_name, reason = fates.get(row, (None, None))
                rows.append(
                    {
                        "place": f"{source}/{key}:{row}",
                        "doc_id": document["doc_id"],
                        "source": source,
                        "domain": document["domain"],
                        "verdict": "kept" if label != 255 else "dropped",
                        "step": step_name,
                        "reason": reason,
                        "split": None if label == 255 else splits[label],
                        "lang": marks[row]["language"],
                        "license": marks[row]["license"],
                        "chars": marks[row]["chars"],
                        "bytes": marks[row]["bytes"],
                        "words": measures[row]["words"],
                        "digit_share": measures[row]["digit_share"],
                        "similarity": verdicts[row]["similarity"],
                        "cluster_size": verdicts[row]["cluster_size"],
                        "tokens": tokens.get(row),
                        "edited": row in edited,
                    }
                )
            number += 1
    return rows


class Rows(list[Row]):
    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


@pytest.fixture(scope="module")
def rows(run: Path) -> list[Row]:
    return Rows(read_rows(run))


def places(client: Client, pairs: list[tuple[str, object]]) -> tuple[list[str], int]:
    told = client.json("documents", [*pairs, ("limit", 500)])
    return told["places"], told["total"]


def test_every_column_of_every_document_is_what_the_files_say(client: Client, rows: list[Row]) -> None:
    names = [name for name in rows[0] if name != "place"]
    told = client.json("documents", columns=",".join(names), limit=500)
    assert told["total"] == len(rows)
    assert told["places"] == [row["place"] for row in rows]
    shown = [dict(zip(names, row, strict=True)) for row in told["rows"]]
    for mine, own in zip(shown, rows, strict=True):
        expected = {name: own[name] for name in names}
        expected["doc_id"] = expected["doc_id"].replace("\0", "\ufffd")[:2000]
        assert mine == expected


def test_what_is_shown_of_a_few_rows_is_what_whole_columns_have(client: Client, rows: list[Row]) -> None:
    """The first way reads shards of the rows, the second the columns that a sort has loaded."""
    names = ("reason", "step", "split", "tokens", "words", "verdict", "license", "edited")
    before = client.json("documents", columns=",".join(names), offset=100, limit=20)["rows"]
    for name in names:
        client.json("documents", sort=name, limit=1)
    assert client.json("documents", columns=",".join(names), offset=100, limit=20)["rows"] == before


VALUES = {
    "source": ["web", "books", "nobody"],
    "verdict": ["kept", "dropped"],
    "reason": ["mostly_digits", "exact_dup", "near_dup", "too_few_words"],
    "split": ["train", "valid"],
    "license": ["MIT", "CC-BY-4.0"],
    "step": ["clean", "dedup"],
    "edited": ["true", "false"],
}
NUMBERS = ("chars", "words", "digit_share", "tokens", "similarity", "cluster_size")


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, Any]:
    """A filter, and the same as a function of a row."""
    is_not = draw(st.booleans())
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(VALUES)))
        chosen = draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=2, unique=True))
        text = f"{name}:{','.join(chosen)}"

        def holds(row: Row) -> bool:
            value = row[name]
            return (str(value).lower() if isinstance(value, bool) else value) in chosen

    else:
        name = draw(st.sampled_from(NUMBERS))
        if draw(st.integers(0, 4)) == 0:
            text = f"{name}:null"

            def holds(row: Row) -> bool:
                return row[name] is None

        else:
            scale = 1.0 if name in ("digit_share", "similarity") else 1200.0
            low = draw(st.none() | st.floats(0, scale))
            high = draw(st.none() | st.floats(0, scale))
            ends = ["" if end is None else repr(end) for end in (low, high)]
            text = f"{name}:{'..'.join(ends)}"

            def holds(row: Row) -> bool:
                value = row[name]
                return value is not None and (low is None or value >= low) and (high is None or value <= high)

    return ("!" if is_not else "") + text, (lambda row: not holds(row)) if is_not else holds


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(conditions(), max_size=3),
    sort=st.none() | st.sampled_from([*NUMBERS, *VALUES]),
    descending=st.booleans(),
)
def test_filters_and_order_are_those_of_a_slow_twin(
    client: Client, rows: list[Row], asked: list[tuple[str, Any]], sort: str | None, descending: bool
) -> None:
    chosen = [row for row in rows if all(holds(row) for _, holds in asked)]
    if sort is not None:
        known = [row for row in chosen if row[sort] is not None]
        known.sort(key=lambda row: row[sort], reverse=descending)  # stable, in both directions
        chosen = known + [row for row in chosen if row[sort] is None]
    pairs: list[tuple[str, object]] = [("f", text) for text, _ in asked]
    if sort is not None:
        pairs.append(("sort", ("-" if descending else "") + sort))
    found, total = places(client, pairs)
    assert total == len(chosen)
    assert found == [row["place"] for row in chosen]
    if chosen:
        at = len(chosen) // 2
        told = client.json("neighbours_in_query", [*pairs, ("place", chosen[at]["place"])])
        assert told["position"] == at
        assert told["total"] == len(chosen)
        around = [chosen[at - 1]["place"] if at else None, *(row["place"] for row in chosen[at + 1 : at + 2])]
        assert (told["previous"] or {"place": None})["place"] == around[0]
        assert (told["next"] or {"place": None})["place"] == (around[1] if len(around) > 1 else None)


def test_a_document_that_the_query_does_not_find_has_no_place_in_it(client: Client, rows: list[Row]) -> None:
    dropped = next(row for row in rows if row["verdict"] == "dropped")
    told = client.json("neighbours_in_query", f="verdict:kept", place=dropped["place"])
    kept = sum(row["verdict"] == "kept" for row in rows)
    assert told == {"previous": None, "next": None, "position": None, "total": kept}


def test_pages_follow_one_another_without_a_gap(client: Client, rows: list[Row]) -> None:
    found: list[str] = []
    for offset in range(0, len(rows), 37):
        found += client.json("documents", sort="-words", offset=offset, limit=37)["places"]
    assert len(found) == len(set(found)) == len(rows)


@pytest.mark.parametrize("name", sorted(set(HOSTILE) - {"i" * 20_000}))
def test_a_document_is_filtered_by_any_id_and_by_nothing_that_is_in_it(client: Client, name: str) -> None:
    """Ids of SQL, of filters, of prototypes: each finds its own document."""
    from urllib.parse import quote

    told = client.json("documents", f=f"doc_id:{quote(name, safe='')}", columns="doc_id")
    if name == "null":  # the word for no value, unless it is escaped
        told = client.json("documents", f="doc_id:%6Eull", columns="doc_id")
    assert told["total"] == 1
    assert told["rows"] == [[name.replace("\0", "\ufffd")]]


@pytest.mark.parametrize(
    "pairs",
    [
        [("f", "nothing:1")],
        [("f", "")],
        [("f", 'chars" OR 1=1 --:1')],
        [("f", "chars:1;DROP TABLE documents")],
        [("f", "chars:abc..def")],
        [("f", "chars:nan..")],
        [("f", "edited:perhaps")],
        [("sort", "nothing")],
        [("sort", "chars; DROP TABLE documents")],
        [("sort", "-(SELECT 1)")],
        [("columns", "doc_id,__proto__")],
        [("columns", "*")],
        [("columns", "read_text('/etc/passwd')")],
        [("offset", "-1")],
        [("offset", "1e9")],
        [("offset", "999999999999999999")],
        [("limit", "all")],
        [("f", f"words:{n}..") for n in range(100)],
        [("f", "words:" + ",".join(map(str, range(2_000))))],
    ],
)
def test_what_cannot_be_asked_is_told_and_the_next_request_is_answered(
    client: Client, pairs: list[tuple[str, object]]
) -> None:
    answer = client.get("documents", pairs)
    assert answer.status == 400
    assert set(answer.json["error"]) == {"what", "where", "next"}
    assert client.json("documents", limit=1)["total"] > 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("charss:1..", "did you mean chars?"),
        ("zzz:1..", "columns are doc_id, source,"),
        ("chars", "write column:value or column:low..high"),
    ],
)
def test_who_names_no_column_is_told_which_there_are(client: Client, asked: str, told: str) -> None:
    answer = client.get("documents", [("f", asked)])
    assert answer.json["error"]["next"].startswith(told)


def test_a_value_with_sql_in_it_is_a_value(client: Client) -> None:
    for value in ("kept' OR '1'='1", "'); DROP TABLE documents; --", "kept%00", "kept%2Cdropped"):
        assert client.json("documents", f=f"verdict:{value}")["total"] == 0


def test_a_huge_limit_is_a_page(client: Client) -> None:
    assert len(client.json("documents", limit=10**15)["rows"]) <= 500


def test_the_command_that_is_told_gives_the_same_documents(client: Client, run: Path) -> None:
    pairs = [("f", "verdict:dropped"), ("f", "words:10..90"), ("sort", "-words"), ("columns", "doc_id,words")]
    told = client.json("documents", pairs)
    words = shlex.split(told["command"])
    assert words[:3] == ["tokmill", "documents", str(run)]
    shown = command(*words[1:], "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["rows"] == told["rows"]
    assert json.loads(shown.stdout)["total"] == told["total"]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("f", "verdict:dropped"), ("sort", "-words")],
        [("f", "source:books"), ("f", "!reason:near_dup,exact_dup"), ("sort", "reason")],
        [("f", "step:dedup"), ("f", "similarity:0.5..")],
        [("f", "split:valid"), ("f", "tokens:50.."), ("sort", "tokens")],
        [("f", "digit_share:..0.05"), ("f", "lang:null"), ("sort", "-digit_share")],
        [("f", "doc_id:%27%20OR%201%3D1%20--")],
        [("f", "measured.chars:500..900"), ("f", "license:MIT"), ("sort", "bytes")],
        [("f", "chars:..inf"), ("f", "words:-inf..60")],
        [("f", "!chars:inf,-inf"), ("f", "digit_share:..1e300")],
    ],
)
def test_the_sql_that_is_told_finds_the_same_in_a_duckdb_of_its_own(
    client: Client, pairs: list[tuple[str, object]]
) -> None:
    columns = "source,verdict,reason,step,split,chars,words,tokens,similarity"
    told = client.json("documents", [*pairs, ("columns", columns), ("limit", 500)])
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(told["sql"]).fetchall()
    assert len(rows) == told["total"]
    assert [row[0] for row in rows] == told["places"]
    assert [list(row[1:]) for row in rows] == told["rows"]


def test_the_sql_of_a_run_that_was_named_by_a_way_around_finds_the_same(
    run: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    with tokmill.explore(Path("..") / run.parent.name / run.name) as explorer:
        told = Client(explorer).json("documents", f="verdict:dropped", limit=500)
    with duckdb.connect(":memory:") as connection:
        found = [row[0] for row in connection.execute(told["sql"]).fetchall()]
    assert found == told["places"] == [row["place"] for row in rows if row["verdict"] == "dropped"]


def test_sql_is_not_told_of_a_directory_whose_name_it_could_not_hold(run: Path, tmp_path: Path) -> None:
    """A pattern in a name, or what DuckDB takes for the separator of a path."""
    for name in ("a*b", "a\\b"):
        shutil.copytree(run, tmp_path / name)
        with tokmill.explore(tmp_path / name) as explorer:
            assert Client(explorer).json("documents", limit=1)["sql"] is None


def test_sql_is_not_told_where_it_would_not_find_the_same(client: Client) -> None:
    assert client.json("documents", f="edited:true")["sql"] is None


def test_a_run_that_was_cut_short_after_cleaning_has_a_table(tmp_path: Path) -> None:
    from explored import write_corpus

    tokmill.run(write_corpus(tmp_path), tmp_path / "out", until="clean", workers=1)
    told = tokmill.documents(tmp_path / "out", where="verdict:dropped", sort="-words").as_json()
    dropped = sum(
        sum(
            json.loads((tmp_path / f"out/clean/{source}/manifest.json").read_bytes())["counts"][
                "dropped"
            ].values()
        )
        for source in ("web", "books")
    )
    assert told["total"] == dropped > 0


def test_where_the_run_is_not_one_it_is_told(tmp_path: Path) -> None:
    found = command("explore", tmp_path, "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["error"]["kind"] == "StorageError"
