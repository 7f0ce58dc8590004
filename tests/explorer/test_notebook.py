"""The explorer in a frame of another page, as a cell of a notebook has it: with leave, and without."""

from __future__ import annotations

import contextlib
import http.server
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokmill
from browser import Page, open_page


@contextlib.contextmanager
def open_notebook(cell: str) -> Iterator[str]:
    """A page with the cell in it, at localhost, where notebooks are."""
    body = f"<!doctype html><title>notebook</title><body>{cell}</body>".encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://localhost:{server.server_address[1]}/"
        server.shutdown()
        serving.join()


def asked_for(page: Page, words: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page.run("1")  # what the browser says is read meanwhile
        if any(words in url for url in page.requests):
            return True
        time.sleep(0.1)
    return False


def test_a_cell_shows_the_explorer(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    with tokmill.explore(run) as explorer, open_notebook(explorer._repr_html_()) as url, open_page() as page:
        page.visit(url)
        assert asked_for(page, "/api/overview", 20), page.complaints
        assert page.complaints == []


def test_a_page_that_has_no_leave_does_not_frame_it(run: Path) -> None:
    with tokmill.explore(run) as explorer, open_notebook(explorer._repr_html_()) as url, open_page() as page:
        page.visit(url)
        assert not asked_for(page, "/api/overview", 3)
        assert any("frame" in told.lower() for told in [*page.complaints, *page.blocked]), page.complaints
