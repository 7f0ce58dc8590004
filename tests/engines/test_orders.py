"""Orders and replies: bytes of JSON in which nothing is lost, and which only the same tokmill carries out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.tasks import perform, task
from tokmill.artifacts.step import Input, Task
from tokmill.engines.orders import (
    Code,
    EngineError,
    Order,
    carry_out,
    decode_reply,
    encode_order,
    encode_question,
    read_reply,
)
from tokmill.errors import TokmillError


def test_a_task_arrives_as_it_was_sent() -> None:
    sent = Task(
        function="clean",
        key="a-00000",
        options={"text": "Çé\u2028\0", "share": 0.1, "many": (1 << 63) - 1, "nested": [{"none": None}, True]},
        inputs=[Input("documents", "/data/ü.parquet", "0" * 64, 7)],
        directory="/out/clean",
        followers=[task("then", text="é")],
    )
    order = encode_order(perform, sent)
    given = msgspec.json.decode(order, type=Order)
    assert given.task == sent
    assert given.task.fingerprint == sent.fingerprint
    assert given.perform == "engines.tasks:perform"


def test_what_a_worker_logs_is_logged_by_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    reply = carry_out(encode_order(perform, task("a", warns="this shard")))
    caplog.clear()
    assert read_reply(reply).receipt is not None
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("tokmill.test", "WARNING", "this shard is odd")
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python": "3.9"}, "has Python 3.11, the driver 3.9"),
        ({"tokmill": "9.9"}, "has tokmill 0.1.0 (format 2), the driver 9.9 (format 2)"),
        ({"format_version": 3}, "has tokmill 0.1.0 (format 2), the driver 0.1.0 (format 3)"),
    ],
)
@pytest.mark.parametrize("asks", ["question", "task"])
def test_a_worker_refuses_the_order_of_another_tokmill(
    change: dict[str, Any], words: str, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Code("3.11", "0.1.0", 2)
    monkeypatch.setattr("tokmill.engines.orders.own_code", lambda: msgspec.structs.replace(here, **change))
    order = encode_question() if asks == "question" else encode_order(perform, task("a"))
    monkeypatch.setattr("tokmill.engines.orders.own_code", lambda: here)
    with pytest.raises(EngineError) as caught:
        read_reply(carry_out(order))
    assert words in caught.value.what
    assert caught.value.where
    assert "same Python and tokmill" in caught.value.next


@pytest.mark.parametrize("which", ["ours", "ours, in few words", "a bug"])
def test_an_error_of_another_node_says_which(which: str) -> None:
    reply = carry_out(encode_order(perform, task("a", raises=which)))
    there = msgspec.json.encode(msgspec.structs.replace(decode_reply(reply), node="node-7"))
    for arrived, is_named in ((reply, False), (there, True)):
        with pytest.raises((TokmillError, RuntimeError)) as caught:
            read_reply(arrived)
        assert ("on node-7" in str(caught.value)) == is_named


def test_an_order_that_is_not_understood_is_refused_before_its_task_is_read() -> None:
    theirs = msgspec.json.encode({"code": Code("3.11", "9.9", 2), "task": "in words of tomorrow"})
    with pytest.raises(EngineError, match=r"9\.9"):
        read_reply(carry_out(theirs))
