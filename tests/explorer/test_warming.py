"""What is read before it is asked for: the columns of the first questions, within a bound, once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tokmill.explorer import warming
from tokmill.explorer.bulk import BulkReader
from tokmill.explorer.listing import list_documents
from tokmill.explorer.site import Site
from tokmill.explorer.warming import Warming

RULED = ["words", "digit_share", "measured.chars"]


def warmed(site: Site) -> None:
    thread = Warming(site).start()
    if thread is not None:
        thread.join(60)


def test_verdicts_measures_of_rules_and_reasons_are_in_memory_afterwards(run: Path) -> None:
    site = Site(run)
    warmed(site)
    assert [name for name in ("verdict", "reason", *RULED) if site.columns.loaded(name) is None] == []
    assert site.columns.loaded("tokens") is None
    asked = {"filters": ["verdict:kept", "words:60.."], "sort": "-digit_share"}
    told, expected = list_documents(site, **asked), list_documents(Site(run), **asked)  # type: ignore[arg-type]
    assert (told["rows"], told["total"]) == (expected["rows"], expected["total"])


def test_no_more_is_read_than_there_is_room_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(run)
    monkeypatch.setattr(warming, "COLUMN_BYTES", 8 * site.columns.documents)
    warmed(site)
    assert [name for name in RULED if site.columns.loaded(name) is not None] == RULED[:1]


def test_a_run_that_is_elsewhere_is_left_alone(run: Path) -> None:
    site = Site(run, url="s3://corpora/run")
    warmed(site)
    assert site.columns.loaded("verdict") is None


def test_nothing_is_read_once_the_site_has_ended(run: Path) -> None:
    site = Site(run)
    site.ended.set()
    warmed(site)
    assert site.columns.loaded("words") is None


def test_what_is_next_waits_while_somebody_is_answered(run: Path) -> None:
    site = Site(run)
    with site.answering():
        thread = Warming(site).start()
        assert thread is not None
        thread.join(0.5)
        assert thread.is_alive()
        assert site.columns.loaded("reason") is None
    thread.join(60)
    assert site.columns.loaded("reason") is not None


def test_who_asks_while_a_column_is_read_waits_for_it_and_reads_it_no_second_time(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, begun, go_on, reads = Site(run), threading.Event(), threading.Event(), []
    whole = BulkReader.columns

    def slow(self: BulkReader, paths: list[Path], names: list[str]) -> object:
        reads.append(tuple(names))
        begun.set()
        assert go_on.wait(20)
        return whole(self, paths, names)

    monkeypatch.setattr(BulkReader, "columns", slow)
    first = threading.Thread(target=site.columns.prepare, args=(["words", "digit_share"],))
    first.start()
    assert begun.wait(20)
    second = threading.Thread(target=site.columns.prepare, args=(["digit_share"],))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    for one in (first, second):
        one.join(20)
    assert set(reads) == {("words", "digit_share")}  # of each source
    assert site.columns.loaded("digit_share") is not None
