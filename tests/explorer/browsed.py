"""A run in a browser, and its figures counted another way: from its tables, with pyarrow alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tokmill
from browser import Page, open_page

AXE = Path(__file__).with_name("node_modules") / "axe-core" / "axe.min.js"


class Explored:
    """A page of the explorer; addresses are those after #."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url = page, url
        self.origin = url.partition("?")[0]

    def start(self, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.page.visit(self._url, width, height, scheme)
        self.page.wait("document.getElementById('main').dataset.ready")

    def go(self, address: str) -> None:
        """To a view; returns when it is drawn."""
        self.press(lambda: self.page.run(f"location.hash = {json.dumps('#/away')}"))
        self.press(lambda: self.page.run(f"location.hash = {json.dumps('#/' + address)}"))

    def press(self, act: Any) -> None:
        """What leads to another view, and that view."""
        before = self.page.run("document.getElementById('main').dataset.ready")
        act()
        self.page.wait(f"document.getElementById('main').dataset.ready !== {json.dumps(before)}")

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
        )
        return found

    def text(self, selector: str) -> str:
        (found,) = self.texts(selector)
        return found

    def column(self, title: str) -> list[str]:
        """Of the table of documents, what it shows."""
        found: list[str] = self.page.run(
            "(() => { const table = document.querySelector('table.documents'); const at = "
            "[...table.tHead.rows[0].cells].findIndex((one) => one.textContent.replace(/[↑↓]/, '') === "
            f"{json.dumps(title)}); return [...table.tBodies[0].rows].map((row) => "
            "row.cells[at].textContent); })()"
        )
        return found

    def leaks(self) -> list[str]:
        """Requests to anywhere else."""
        return [url for url in self.page.requests if not url.startswith((self.origin, "data:", "about:"))]

    def faults(self) -> list[str]:
        """What axe-core finds serious or critical, each with where it is."""
        self.page.run(AXE.read_text(encoding="utf-8") + "; 1")
        found = self.page.run(
            "axe.run(document, {resultTypes: ['violations']}).then((told) => told.violations"
            ".filter((one) => one.impact === 'serious' || one.impact === 'critical')"
            ".flatMap((one) => one.nodes.slice(0, 4).map((node) => one.id + ' ' + node.html.slice(0, 160) "
            "+ ' ' + (node.any[0] || node.all[0] || node.none[0] || {message: ''}).message)))"
        )
        assert isinstance(found, list)
        return found


@contextlib.contextmanager
def open_explored(run: Path, **options: Any) -> Iterator[Explored]:
    with tokmill.explore(run, **options) as explorer, open_page() as page:
        opened = Explored(page, explorer.url)
        opened.start()
        yield opened


class Counted:
    """Every document of a run in the order of the corpus, from its tables."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.documents: list[dict[str, Any]] = []
        number = 0
        recipe = json.loads((run / "manifest.json").read_text())["config"]
        for source in (one["name"] for one in recipe["sources"]):
            for path in sorted((run / "ingest" / source).glob("documents-*.parquet")):
                key = path.name.removeprefix("documents-").removesuffix(".parquet")
                self.documents += self._shard(source, key, number, path)
                number += 1

    def _shard(self, source: str, key: str, number: int, path: Path) -> list[dict[str, Any]]:
        read = pq.read_table(path, columns=["doc_id", "text"]).to_pylist()
        found = [{"source": source, "id": one["doc_id"], "text": one["text"], "reasons": []} for one in read]
        for table in (
            f"clean/{source}/ledger-{key}",
            f"dedup/ledger-{number:05d}",
            f"split/ledger-{number:05d}",
        ):
            file = self.run / f"{table}.parquet"
            for line in pq.read_table(file).to_pylist() if file.exists() else ():
                if line["verdict"] != "edit":
                    found[line["row"]]["reasons"].append((table.partition("/")[0], line["reason"]))
        measures = self.run / f"clean/{source}/measures-{key}.parquet"
        for one, own in zip(found, pq.read_table(measures).to_pylist(), strict=True):
            one["measures"] = own
        return found

    def count(self, **wanted: Any) -> int:
        return sum(
            all(self._of(one, key) == value for key, value in wanted.items()) for one in self.documents
        )

    def _of(self, one: dict[str, Any], key: str) -> Any:
        if key == "verdict":
            return "dropped" if one["reasons"] else "kept"
        if key == "reason":
            return one["reasons"][0][1] if one["reasons"] else None
        return one[key] if key in one else one["measures"].get(key)
