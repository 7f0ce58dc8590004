"""The reference implementation's verdicts, made by the interpreter that has it installed (bench/filters.py
calls it).

stdin: {"row": 7, "text": "…"} per line
    ─ datatrove's filters, one process ─>  stdout: one verdict line per document

    {"row": 7, "gopher-quality": "gopher_short_doc", "gopher-repetition": null, …, "cpu_s": {"gopher-quality":
    0.01, …}}

null is a document that is kept. Each filter judges the text as it came; `web-en` is the four in FineWeb's
order, each on what the one before it left. `c4_sha256` is of the text that the c4 filter left behind.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any


def main() -> int:
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = {
        "gopher-quality": GopherQualityFilter(),
        "gopher-repetition": GopherRepetitionFilter(),
        "c4": C4QualityFilter(),
        "fineweb": FineWebQualityFilter(),
    }
    lenient = C4QualityFilter(filter_no_terminal_punct=False)
    chain = [filters["gopher-repetition"], filters["gopher-quality"], lenient, filters["fineweb"]]

    def reason_of(kind: Any, document: Any) -> str | None:
        try:
            verdict = kind.filter(document)
        except ZeroDivisionError:  # fineweb and gopher divide by the number of words before they look at it
            return "no_words"
        return verdict[1] if isinstance(verdict, tuple) else (None if verdict else "dropped")

    for line in sys.stdin:
        record = json.loads(line)
        found: dict[str, Any] = {"row": record["row"], "cpu_s": {}}
        for name, kind in filters.items():
            document = Document(text=record["text"], id=str(record["row"]))
            started = time.process_time()
            found[name] = reason_of(kind, document)
            found["cpu_s"][name] = time.process_time() - started
            if name == "c4" and found[name] is None:
                found["c4_sha256"] = hashlib.sha256(document.text.encode()).hexdigest()
        document = Document(text=record["text"], id=str(record["row"]))
        found["web-en"] = next(
            (why for kind in chain if (why := reason_of(kind, document)) is not None), None
        )
        if found["web-en"] is None:
            found["web_en_sha256"] = hashlib.sha256(document.text.encode()).hexdigest()
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
