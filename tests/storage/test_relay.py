"""A process that reads object stores for one that was forked."""

from __future__ import annotations

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


def test_it_ends_when_nobody_can_ask_any_more() -> None:
    client = RelayClient("s3", "bucket")
    client._connection.close()
    assert client._process.wait() == 0
