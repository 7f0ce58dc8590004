"""Lines between a driver and a job, as a network file system may show them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_nodes import until
from tokmill.engines.mailbox import (
    Beat,
    Bye,
    End,
    FromJob,
    Garbled,
    Mailbox,
    Order,
    Pulse,
    Reader,
    ToJob,
    append,
    read_pulse,
)
from tokmill.errors import StorageError


def test_what_is_appended_is_read_once_and_in_order(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, 0, 7)
    mailbox.make()
    reader: Reader[ToJob] = Reader(mailbox.orders, ToJob)
    assert reader.read() == []
    body = msgspec.Raw(b'{"perform":"a:b"}')
    append(mailbox.orders, [Order(1, body), Order(2, body)])
    append(mailbox.orders, [End()])
    first, second, end = reader.read()
    assert isinstance(first, Order)
    assert isinstance(second, Order)
    assert (first.number, bytes(first.order), second.number, end) == (1, bytes(body), 2, End())
    assert reader.read() == []


def test_a_line_without_its_end_is_left_until_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "replies"
    path.write_bytes(b'{"type":"Beat"}\n{"type":"Bye","re')
    reader: Reader[FromJob] = Reader(path, FromJob)
    assert reader.read() == [Beat()]
    assert reader.read() == []
    with path.open("ab") as stream:
        stream.write(b'ad":3,"why":"x"}\n')
    assert reader.read() == [Bye(3, "x")]


@pytest.mark.parametrize("line", [b"\0" * 20, b'{"type":"Strange"}', b"{}", b"\xff"])
def test_a_whole_line_that_is_none_of_ours_is_told_and_not_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "replies"
    path.write_bytes(line + b"\n")
    reader: Reader[FromJob] = Reader(path, FromJob)
    for _ in range(2):
        with pytest.raises(Garbled):
            reader.read()


def test_a_mailbox_is_made_once_and_nothing_is_appended_to_one_that_is_gone(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, 1, 0)
    mailbox.make()
    with pytest.raises(StorageError):
        mailbox.make()
    mailbox.orders.unlink()
    with pytest.raises(StorageError):
        append(mailbox.orders, [End()])
    assert not mailbox.orders.exists()


def test_a_pulse_beats_in_one_file_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokmill.engines.mailbox.PULSE_SECONDS", 0.01)
    assert read_pulse(tmp_path) == b""
    pulse = Pulse(tmp_path)
    first, inode = read_pulse(tmp_path), (tmp_path / "pulse").stat().st_ino
    until(lambda: read_pulse(tmp_path) not in (first, b""), "no second beat")
    pulse.stop()
    last = read_pulse(tmp_path)
    assert (tmp_path / "pulse").stat().st_ino == inode, "a client may go on with the old file of a name"
    assert read_pulse(tmp_path) == last
    assert msgspec.json.decode(last)["beat"] > 1
