"""What other extractors make of pages, by the interpreter that has them installed (bench/extraction.py calls
it).

    argv: engine names; stdin: {"key": "…", "html": "…"} per line
        ─ versions ─ each engine on each page, one process ─>  stdout, one line each

    {"versions": {"trafilatura": "2.3.1", …}}
    {"key": "…", "engine": "trafilatura", "text": "…", "cpu_s": 0.02}

A page that an engine fails on has an empty text and an `error`: a crash is a miss. Options are those of the
engines' own evaluations: comments left out, tables kept; readability's HTML is made text by html-text, as
the article benchmark does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

PACKAGES = {"trafilatura": "trafilatura", "readability": "readability-lxml"}


def main() -> int:
    logging.disable(logging.CRITICAL)
    engines = {name: load(name) for name in sys.argv[1:]}
    versions = {name: importlib.metadata.version(PACKAGES[name.split("_")[0]]) for name in engines}
    print(json.dumps({"versions": versions}), flush=True)
    for extract in engines.values():
        extract("<html><body><p>What is compiled at the first call is not counted.</p></body></html>")
    for line in sys.stdin:
        page = json.loads(line)
        for name, extract in engines.items():
            error = None
            started = time.process_time()
            try:
                text = extract(page["html"]) or ""
            except Exception as failure:  # noqa: BLE001 - whatever it is, the page is lost
                text, error = "", f"{type(failure).__name__}: {failure}"
            spent = time.process_time() - started
            found = {"key": page["key"], "engine": name, "text": text, "cpu_s": spent, "error": error}
            print(json.dumps(found), flush=True)
    return 0


def load(engine: str) -> Callable[[str], str | None]:
    name, _, mode = engine.partition("_")
    if name == "readability":
        from html_text import extract_text  # type: ignore[import-not-found]
        from readability import Document  # type: ignore[import-not-found]

        return lambda html: str(extract_text(Document(html).summary(html_partial=True)))
    from trafilatura import extract

    modes: dict[str, dict[str, Any]] = {
        "": {},
        "precision": {"favor_precision": True},
        "recall": {"favor_recall": True},
        "markdown": {"output_format": "markdown", "include_formatting": True},
    }
    return functools.partial(extract, include_comments=False, include_tables=True, **modes[mode])


if __name__ == "__main__":
    raise SystemExit(main())
