"""PDFs through `tokmill.run`: their text layer, what they say of themselves, and those that hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import digest_of, tokmill, write_recipe
from pdf_files import giant_stream, make_page, make_pdf, nested_forms, packed_stream
from sources.ingested import Ingested, ingest
from tokmill.errors import InputError, MissingExtra, TaskFailed
from tokmill.sources import pdftext
from tokmill.sources.pdf import iso_date

pytest.importorskip("pypdfium2_raw")

PAGES = [
    ["Hello world (one)", "Zwei: äöü ß é", "a long hyphen-", "ated word and a well-known one"],
    ["日本語 text “quoted” 😀", "Ελληνικά"],
]
TEXTS = ["\n".join(lines) for lines in PAGES]


def load(base: Path, data: bytes, **settings: Any) -> Ingested:
    (base / "a.pdf").write_bytes(data)
    section = {name: settings.pop(name) for name in ("unit", "max_seconds") if name in settings}
    return ingest(base, "a.pdf", pdf=section, **settings)


def reason(base: Path, data: bytes, **settings: Any) -> tuple[str, str]:
    found = load(base, data, **settings)
    assert found.documents == []
    ((offset, why, detail),) = found.bad
    assert offset == 0
    return why, detail


# --- what is read ---


@pytest.mark.parametrize("compressed", [False, True])
def test_the_text_of_all_pages_is_one_document_with_a_blank_line_between(
    tmp_path: Path, compressed: bool
) -> None:
    (row,) = load(tmp_path, make_pdf(PAGES, compressed=compressed)).documents
    assert row["text"] == "\n\n".join(TEXTS)
    assert row["doc_id"] == "a.pdf"


def test_a_hyphen_that_ends_a_line_stays_and_so_does_the_line(tmp_path: Path) -> None:
    (row,) = load(tmp_path, make_pdf(PAGES)).documents
    assert "hyphen-\nated" in row["text"]


def test_each_page_can_be_a_document(tmp_path: Path) -> None:
    found = load(tmp_path, make_pdf([PAGES[0], [], PAGES[1]], title="t"), unit="page")
    assert [row["text"] for row in found.documents] == TEXTS
    assert [row["doc_id"] for row in found.documents] == ["a.pdf#page=1", "a.pdf#page=3"]
    assert [json.loads(row["meta"]) for row in found.documents] == [
        {"pages": 3, "title": "t", "page": 1},
        {"pages": 3, "title": "t", "page": 3},
    ]
    assert [(one.doc_id, one.reason) for one in found.dropped] == [("a.pdf#page=2", "no_text")]


def test_a_blank_page_leaves_no_gap_in_the_text(tmp_path: Path) -> None:
    (row,) = load(tmp_path, make_pdf([PAGES[0], [], PAGES[1]])).documents
    assert row["text"] == "\n\n".join(TEXTS)


def test_title_producer_and_date_are_carried(tmp_path: Path) -> None:
    data = make_pdf(PAGES, title="Tïtle – x", producer="by hand", created="D:20240102030405+02'00'")
    (row,) = load(tmp_path, data).documents
    assert row["created_at"] == "2024-01-02T01:04:05Z"
    assert json.loads(row["meta"]) == {
        "pages": 2,
        "title": "Tïtle – x",
        "producer": "by hand",
        "created": "D:20240102030405+02'00'",
    }


@pytest.mark.parametrize(
    ("written", "iso"),
    [
        ("D:20240102030405Z", "2024-01-02T03:04:05Z"),
        ("D:20240102030405Z00'00'", "2024-01-02T03:04:05Z"),
        ("D:20240102030405-05'30'", "2024-01-02T08:34:05Z"),
        ("D:20240102030405+02", "2024-01-02T01:04:05Z"),
        ("D:20240102030405", "2024-01-02T03:04:05"),
        ("20240102", "2024-01-02"),
        ("D:202401", "2024-01"),
        ("D:2024", "2024"),
        ("D:20241399", None),
        ("D:00010101000000+23'59'", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_dates_are_iso_where_they_are_dates(written: str, iso: str | None) -> None:
    assert iso_date(written) == iso


def test_a_pdf_that_opens_without_a_password_is_read(tmp_path: Path) -> None:
    (row,) = load(tmp_path, make_pdf(PAGES, password="", title="kept")).documents
    assert row["text"] == "\n\n".join(TEXTS)
    assert json.loads(row["meta"])["title"] == "kept"


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_the_same_documents(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.pdf").write_bytes(make_pdf([[f"the text of file {number}"], PAGES[1]]))
    (tmp_path / "6.pdf").write_bytes(nested_forms())
    source = {"name": "s", "files": "*.pdf", "pdf": {"max_seconds": 1}, "max_bad_fraction": 1}
    recipe = write_recipe(tmp_path, sources=[source], tokenizer=None, builds=None)
    digests = {
        digest_of(mill.run(recipe, tmp_path / f"out-{n}", workers=n, until="clean").out) for n in (1, 3)
    }
    assert len(digests) == 1


def test_the_command_line_reads_pdfs(tmp_path: Path) -> None:
    (tmp_path / "a.PDF").write_bytes(make_pdf(PAGES))
    done = tokmill(
        *("ingest", "files", tmp_path / "a.PDF", "--format", "pdf", "--option", "unit=page"),
        *("--out", tmp_path / "out", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert mill.verify(tmp_path / "out").problems == []


# --- what cannot be used ---


def test_a_scan_is_quarantined(tmp_path: Path) -> None:
    assert reason(tmp_path, make_pdf([[], []])) == (
        "no_text_layer",
        "2 pages without text: a scan, or drawings",
    )
    assert reason(tmp_path, make_pdf([[]]), unit="page")[0] == "no_text_layer"


def test_a_pdf_with_a_password_is_quarantined(tmp_path: Path) -> None:
    assert reason(tmp_path, make_pdf(PAGES, password="secret"))[0] == "encrypted"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
def test_a_truncated_pdf_is_not_a_shorter_one(tmp_path: Path, share: float) -> None:
    whole = make_pdf(PAGES)
    assert reason(tmp_path, whole[: int(len(whole) * share)]) == (
        "truncated",
        "no %%EOF in its last 4,096 bytes",
    )


def test_what_is_no_pdf_is_quarantined(tmp_path: Path) -> None:
    assert reason(tmp_path, b"<html>not found</html>") == (
        "corrupt_pdf",
        "no %PDF- in its first 1,024 bytes",
    )
    assert reason(tmp_path, b"%PDF-1.7\nnothing\n%%EOF") == ("corrupt_pdf", "pdfium finds no document in it")


def test_a_file_larger_than_a_record_may_be_is_quarantined(tmp_path: Path) -> None:
    data = make_pdf([["word " * 10] * 40] * 4)
    assert reason(tmp_path, data, max_record_bytes=2048) == (
        "too_large",
        f"{len(data):,} bytes in one file; max_record_bytes is 2,048",
    )


def test_a_text_larger_than_a_record_may_be_is_quarantined(tmp_path: Path) -> None:
    data = make_pdf([["the same line again"] * 40] * 20, compressed=True)
    assert reason(tmp_path, data, max_record_bytes=len(data)) == (
        "too_large",
        f"the text is more than max_record_bytes {len(data):,}",
    )


def test_a_file_that_takes_too_long_is_quarantined(tmp_path: Path) -> None:
    assert reason(tmp_path, nested_forms(), max_seconds=1) == (
        "too_slow",
        "takes more than max_seconds 1 of a processor",
    )


def test_a_file_that_kills_pdfium_is_quarantined_and_the_next_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(giant_stream())
    (tmp_path / "b.pdf").write_bytes(make_pdf(PAGES))
    found = ingest(tmp_path, "*.pdf", pdf={})
    assert [row["doc_id"] for row in found.documents] == ["b.pdf"]
    ((_, why, detail),) = found.bad
    assert why == "parser_died"
    assert found.ledger[0]["file"] == "a.pdf"
    assert "ended with SIG" in detail


def test_more_pages_than_are_read_are_quarantined(tmp_path: Path) -> None:
    kids = b"<< /Type /Pages /Kids [" + b"10 0 R " * 150_000 + b"] /Count 150000 >>"
    assert reason(tmp_path, make_page(o2=kids)) == ("too_large", "150,000 pages; at most 100,000 are read")


def test_a_count_of_pages_that_are_not_there_is_told(tmp_path: Path) -> None:
    lying = make_page(o2=b"<< /Type /Pages /Kids [10 0 R] /Count 3 >>")
    assert reason(tmp_path, lying) == ("corrupt_pdf", "page 2 of 3 cannot be loaded")
    found = load(tmp_path, lying, unit="page")
    assert [row["text"] for row in found.documents] == ["hello"]
    assert [one.detail for one in found.bad] == ["page 2 cannot be loaded", "page 3 cannot be loaded"]
    none = make_page(o2=b"<< /Type /Pages /Kids [99 0 R] /Count 2 >>")
    assert reason(tmp_path, none) == ("corrupt_pdf", "page 1 of 2 cannot be loaded")
    found = load(tmp_path, none, unit="page")
    assert [one.detail for one in found.bad] == ["page 1 cannot be loaded", "page 2 cannot be loaded"]


@pytest.mark.parametrize(
    "data",
    [
        make_page(o20=b"[" * 200_000 + b"]" * 200_000),
        make_page(o2=b"<< /Type /Pages /Kids [10 0 R] /Count 2000000000 >>"),
        make_page(o11=b"<< /Length 999999999999 >>\nstream\nBT /L 12 Tf (hello) Tj ET\nendstream"),
    ],
    ids=["nested arrays", "a count of two billion", "a length that lies"],
)
def test_numbers_and_nesting_that_pdfium_does_not_believe_do_no_harm(tmp_path: Path, data: bytes) -> None:
    assert [row["text"] for row in load(tmp_path, data).documents] == ["hello"]


@pytest.mark.parametrize(
    "data",
    [
        make_page(o11=packed_stream(b"[" * 500_000)),
        make_page(o11=packed_stream(b"q " * 500_000)),
        make_page(o10=b"<< /Type /Page /Parent 2 0 R /A " + b"<< /A " * 100_000 + b">> " * 100_000 + b">>"),
    ],
    ids=["arrays in a page", "saved states", "dictionaries"],
)
def test_deep_nesting_leaves_a_page_without_text(tmp_path: Path, data: bytes) -> None:
    assert reason(tmp_path, data)[0] == "no_text_layer"


def test_the_first_bad_file_stops_a_run_that_wants_that(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_text_layer") as told:
        load(tmp_path, make_pdf([[]]), on_bad_record="fail")
    assert "a.pdf" in str(told.value)


def test_a_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    load(tmp_path, make_pdf(PAGES))
    attendant = pdftext._attendant()._process
    os.kill(attendant.pid, signal.SIGKILL)
    attendant.wait()
    assert len(load(tmp_path, make_pdf(PAGES)).documents) == 1


def test_a_file_that_was_interrupted_is_not_the_text_of_the_next(tmp_path: Path) -> None:
    """As Ctrl-C in a notebook, where the process lives on."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    whole = make_pdf(PAGES)
    pdftext.read_layer(whole, max_seconds=10, max_text_bytes=1 << 20)
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # it takes all of its ten seconds
        with pytest.raises(KeyboardInterrupt):
            pdftext.read_layer(nested_forms(), max_seconds=10, max_text_bytes=1 << 20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert pdftext.read_layer(whole, max_seconds=10, max_text_bytes=1 << 20).pages == TEXTS


def test_a_file_without_a_verdict_stops_the_run_and_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    """As where the kernel ends the process for want of memory, which another machine has."""
    whole = pdftext._CHILD
    killed = "import os, signal; os.waitstatus_to_exitcode = lambda status: -signal.SIGKILL; " + whole
    monkeypatch.setattr(pdftext, "_CHILD", killed)
    pdftext._dismiss()
    with pytest.raises(TaskFailed, match="out-of-memory killer") as told:
        load(tmp_path, make_pdf(PAGES))
    assert "a.pdf" in str(told.value)
    monkeypatch.setattr(pdftext, "_CHILD", "raise SystemExit; " + whole)
    pdftext._dismiss()
    with pytest.raises(TaskFailed, match="was killed twice"):
        load(tmp_path, make_pdf(PAGES))
    monkeypatch.setattr(pdftext, "_CHILD", whole)


# --- what is told before ---


def test_a_pdf_among_files_of_records_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(make_pdf(PAGES))
    (tmp_path / "b.jsonl").write_bytes(make_pdf(PAGES))
    for name, what in (
        ("a.pdf", "is a PDF, by its name"),
        ("b.jsonl", "is a PDF, and its name does"),
    ):
        recipe = write_recipe(tmp_path, sources=[{"name": "s", "files": name}], tokenizer=None, builds=None)
        done = tokmill("recipe", "check", recipe)
        assert done.returncode == 1
        assert what in done.stderr
        assert "`pdf: {}`" in done.stderr


def test_another_file_among_pdfs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"no reader of PDFs for the suffix \.txt"):
        ingest(tmp_path, "a.txt", pdf={})


def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(make_pdf(PAGES))
    code = (
        "import sys; sys.modules['pypdfium2_raw'] = None\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pypdfium2_raw' else found(name, *more)\n"
        "import tokmill\n"
        f"recipe = dict(name='x', sources=[dict(name='s', files={str(tmp_path / 'a.pdf')!r}, pdf=dict())])\n"
        f"tokmill.run(recipe, {str(tmp_path / 'out')!r}, workers=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PDFs need a package that is not installed (pypdfium2)" in done.stderr
    assert "pip install '.[pdf]'" in done.stderr


def test_a_worker_without_the_package_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    whole = pdftext._CHILD
    monkeypatch.setattr(pdftext, "_CHILD", "import sys; sys.modules['pypdfium2_raw'] = None; " + whole)
    pdftext._dismiss()
    with pytest.raises(MissingExtra, match="PDFs need a package"):
        load(tmp_path, make_pdf(PAGES))
