"""Batches made ahead on a thread of their own, while the trainer computes.

    thread    make ─ put ─ make ─ put ─ wait …         at most `depth` wait to be taken
    caller           take ─ train ─────── take …       an error in the thread is raised here, in its place

The thread ends with the loop: at the last batch, at `break`, at an error on either side.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Ahead(Generic[T]):
    """The items of an iterator, up to `depth` of them made before they are asked for."""

    def __init__(self, items: Iterator[T], depth: int) -> None:
        assert depth >= 1, "nothing would be made ahead"
        self._items = items
        self._made: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._make, name="tokmill-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                item = self._made.get()
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """No more is made. Returns when the thread has ended."""
        self._is_over.set()
        while self._thread.is_alive():
            try:  # it may wait for room
                self._made.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _make(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._made.put(item)
                if self._is_over.is_set():
                    return
        except BaseException as caught:  # noqa: BLE001 - raised again where the batch was wanted
            error = caught
        self._made.put(_End(error))
