"""A process that reads object stores for one that was forked."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

from tokmill.errors import StorageError
from tokmill.storage.relay import RelayClient


def test_answers_and_errors_come_through_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "not a place")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    client = RelayClient("s3", "bucket")
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            client.head("key")
        assert "has ended" not in caught.value.what
    client._process.kill()
    client._process.wait()
    with pytest.raises(StorageError, match="the process that reads for a forked one has ended") as caught:
        client.head("key")
    assert caught.value.where == "s3://bucket"
    assert "spawned" in caught.value.next


def test_an_answer_that_nobody_waited_for_is_not_that_of_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ctrl-C in a notebook, where the process lives on."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes requests, and never answers
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        client = RelayClient("s3", "bucket")
        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(KeyboardInterrupt):
                client.head("first")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            client._process.kill()
            client._process.wait()
        assert client._connection.closed  # what the other end may have sent is in no one's hands
        with pytest.raises(StorageError, match="has ended"):
            client.head("second")


def test_it_ends_when_nobody_can_ask_any_more() -> None:
    client = RelayClient("s3", "bucket")
    client._connection.close()
    assert client._process.wait() == 0
