"""Others' ways from a web archive to texts, made by the interpreter that has them (bench/web.py calls it).

    python bench/web_reference.py datatrove|loop ARCHIVE SMALL OUT

    ─> stdout, its last line: {"version": "0.10.1", "cpu_s": 12.3, "documents": 400, "text_mb": 2.1}

SMALL is read first, so that what is loaded with the first page is not counted.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path


def main() -> int:
    way, archive, small, out = sys.argv[1:]
    ways: dict[str, Callable[[Path, Path], Path | list[str]]] = {"datatrove": by_datatrove, "loop": by_a_loop}
    read = ways[way]
    read(Path(small), Path(out) / "small")
    before = cpu_seconds()
    found = read(Path(archive), Path(out) / "large")
    seconds = cpu_seconds() - before
    texts = load_texts(found) if isinstance(found, Path) else found
    figures = {
        "version": importlib.metadata.version({"datatrove": "datatrove", "loop": "resiliparse"}[way]),
        "cpu_s": seconds,
        "documents": len(texts),
        "text_mb": sum(len(text.encode()) for text in texts) / 1e6,
    }
    print(json.dumps(figures))
    return 0


def cpu_seconds() -> float:
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def load_texts(directory: Path) -> list[str]:
    texts = []
    for path in sorted(directory.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def by_datatrove(archive: Path, out: Path) -> Path:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers import JsonlWriter

    LocalPipelineExecutor(
        pipeline=[
            WarcReader(str(archive.parent), glob_pattern="*.warc.gz"),
            Trafilatura(favour_precision=True),
            JsonlWriter(str(out / "texts")),
        ],
        tasks=1,
        workers=1,
        logging_dir=str(out / "logs"),
    ).run()
    return out / "texts"


def by_a_loop(archive: Path, out: Path) -> list[str]:
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-untyped]
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding  # type: ignore[import-untyped]

    texts = []
    with archive.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True):
            body = record.reader.read()
            html = bytes_to_str(body, detect_encoding(body))
            text = extract_plain_text(html, main_content=True, alt_texts=False, links=False)
            if text.strip():
                texts.append(text)
    return texts


if __name__ == "__main__":
    sys.exit(main())
