"""datatrove's MinHash deduplication, made by the interpreter that has it installed (bench/neardup.py calls
it).

    stdin: {"text": "…"} per line, argv: n-gram, bands, rows
        ─ four stages, one process ─>  stdout: CPU seconds of each

Documents are given to the first and the last stage from memory, so reading is not counted.
`splitting` is the part of the first stage that its word tokenizer takes.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    from datatrove.data import Document
    from datatrove.pipeline.dedup import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )

    ngram, bands, rows = map(int, sys.argv[1:4])
    config = MinhashConfig(n_grams=ngram, num_buckets=bands, hashes_per_bucket=rows)
    texts = [json.loads(line)["text"] for line in sys.stdin]
    splitting = 0.0
    stages: dict[str, float] = {}

    def documents() -> list[Any]:
        return [Document(text=text, id=str(row)) for row, text in enumerate(texts)]

    def timed(name: str, act: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = act()
        stages[name] = time.process_time() - started
        return result

    with tempfile.TemporaryDirectory() as folder:
        signed, bucketed, clustered = (str(Path(folder) / name) for name in ("sigs", "buckets", "clusters"))
        signature = MinhashDedupSignature(output_folder=signed, config=config)
        splitter = signature.word_tokenizer
        split = splitter.word_tokenize
        split("The first call loads the tokenizer.")

        def timed_split(text: str) -> Any:
            nonlocal splitting
            started = time.process_time()
            words = split(text)
            splitting += time.process_time() - started
            return words

        splitter.word_tokenize = timed_split
        batch = documents()
        timed("signature", lambda: signature.run(iter(batch), 0, 1))
        buckets = MinhashDedupBuckets(input_folder=signed, output_folder=bucketed, config=config)
        timed("buckets", lambda: [buckets.run(None, band, bands) for band in range(bands)])
        cluster = MinhashDedupCluster(input_folder=bucketed, output_folder=clustered, config=config)
        timed("cluster", lambda: cluster.run(None, 0, 1))
        keep = MinhashDedupFilter(input_folder=clustered)
        kept = timed("filter", lambda: sum(1 for _ in keep.run(iter(batch), 0, 1)))
    print(
        json.dumps(
            {
                "version": importlib.metadata.version("datatrove"),
                "stages": stages,
                "splitting": splitting,
                "dropped": len(texts) - kept,
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
