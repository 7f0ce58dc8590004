"""Requests and bytes are counted by who asks, also in threads that ask for them."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from tokmill.storage.cloud import PART_BYTES, upload_requests
from tokmill.storage.location import parse_url
from tokmill.storage.objects import open_store
from tokmill.storage.traffic import counting, in_context, sum_traffic


def test_every_request_is_counted_with_its_bytes() -> None:
    store = open_store(parse_url(f"memory://{uuid.uuid4().hex}/x"))
    with counting() as outer:
        store.upload("a", [b"12345"], 5)
        with counting() as inner:
            assert store.create("b", b"12") is not None
            assert store.create("b", b"34") is None  # refused: and looked at, whether it is ours
            store.copy("a", "c")
            assert store.read("c", 1, 4, None) == b"234"
        store.head("a")
        assert len(list(store.list(""))) == 3
        store.delete_all(["a", "b", "c"])
    store.head("a")
    assert inner.as_json() == {
        "requests": {"copy": 1, "get": 2, "put": 2},
        "bytes_up": 4,
        "bytes_down": 5,
    }
    assert outer.as_json() == {
        "requests": {"copy": 1, "delete": 3, "get": 2, "head": 1, "list": 1, "put": 3},
        "bytes_up": 9,
        "bytes_down": 5,
    }


def test_a_thread_counts_for_who_handed_it_the_work() -> None:
    store = open_store(parse_url(f"memory://{uuid.uuid4().hex}/x"))
    with counting() as traffic, ThreadPoolExecutor(2) as pool:
        pool.submit(in_context(store.head), "a").result()
        pool.submit(store.head, "a").result()  # nobody's
    assert traffic.as_json()["requests"] == {"head": 1}


def test_an_upload_in_parts_is_as_many_requests_as_it_has_parts_and_two() -> None:
    assert [upload_requests(size) for size in (0, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES)] == [1, 1, 4, 5]


def test_what_processes_counted_adds_up() -> None:
    one = {"requests": {"get": 2}, "bytes_up": 0, "bytes_down": 7}
    other = {"requests": {"get": 1, "put": 1}, "bytes_up": 3, "bytes_down": 0}
    assert sum_traffic([one, {}, other]) == {
        "requests": {"get": 3, "put": 1},
        "bytes_up": 3,
        "bytes_down": 7,
    }
    assert sum_traffic([]) == {}
