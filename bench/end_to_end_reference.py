"""The chain of bench/end_to_end.py in datatrove, made by the interpreter that has it installed.

    python bench/end_to_end_reference.py TEXTS OUT TOKENIZER LID_MODEL spacy|whitespace "filtered"|"all kept"

    clean    JsonlReader ─ language ─ gopher repetition ─ gopher quality ─ C4 ─ FineWeb
             ─> JsonlWriter, MinHash signatures
    near     buckets ─ clusters
    tokens   JsonlReader ─ MinHash filter ─> DocumentTokenizer

stdout: {"stages": CPU seconds of each, "start_up": …, "documents":
how many came in, were kept and are left, "tokens": …}

One task and one process, in datatrove's own executor. What favours it: imports and spaCy are loaded before
the clock starts; signatures are made while the cleaned documents are still in memory; those are written
without compression; tokens are not shuffled. `whitespace` has `str.split` in the place of spaCy's words, and
sentences that end where white space follows . ? or ! With `all kept` every filter judges every document, and
none is dropped by its verdict.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

N_GRAM, BANDS, ROWS = 5, 14, 8  # what FineWeb used, and what tokmill has by default
SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
EOS = "<|endoftext|>"


def main() -> int:
    texts, out, tokenizer, model, splitting, setting = sys.argv[1:7]
    use_language_model(model)
    if splitting == "whitespace":
        use_plain_splitting()
    if setting == "all kept":
        keep_all()
    stages = pipelines(texts, Path(out), tokenizer)
    warm_up()
    start_up = time.process_time()
    seconds = {name: run(stage, tasks, Path(out) / "logs" / name) for name, (stage, tasks) in stages.items()}
    print(
        json.dumps(
            {
                "version": importlib.metadata.version("datatrove"),
                "stages": seconds,
                "start_up": start_up,
                "documents": counted(Path(out)),
                "tokens": sum(p.stat().st_size for p in Path(out, "tokens").rglob("*.ds")) // 2,
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )
    return 0


def pipelines(texts: str, out: Path, tokenizer: str) -> dict[str, tuple[list[Any], int]]:
    """Steps and the number of tasks of each stage."""
    from datatrove.pipeline.dedup import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.pipeline.writers import JsonlWriter

    config = MinhashConfig(n_grams=N_GRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    cleaned, signed, bucketed, clustered, tokens = (
        str(out / name) for name in ("cleaned", "signatures", "buckets", "clusters", "tokens")
    )
    cleaning = [
        JsonlReader(texts),
        LanguageFilter(["en"]),
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        JsonlWriter(cleaned, compression=None),
        MinhashDedupSignature(output_folder=signed, config=config),
    ]
    tokenizing = [
        JsonlReader(cleaned),
        MinhashDedupFilter(input_folder=clustered),
        DocumentTokenizer(tokens, tokenizer, eos_token=EOS, shuffle_documents=False),
    ]
    return {
        "clean": (cleaning, 1),
        "buckets": ([MinhashDedupBuckets(signed, bucketed, config=config)], BANDS),
        "cluster": ([MinhashDedupCluster(bucketed, clustered, config=config)], 1),
        "tokens": (tokenizing, 1),
    }


def run(steps: list[Any], tasks: int, logs: Path) -> float:
    from datatrove.executor import LocalPipelineExecutor

    started = time.process_time()
    LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(logs)).run()
    return time.process_time() - started


def counted(out: Path) -> dict[str, int]:
    """As datatrove counts them itself: the first step of a stage is given all,
    a filter forwards what it keeps."""
    (first, *_), (_, filtered, *_) = (
        json.loads((out / "logs" / stage / "stats.json").read_text()) for stage in ("clean", "tokens")
    )
    found = {"in": int(_total(first["stats"]["documents"]))}
    found["cleaned"] = int(_total(filtered["stats"]["total"]))
    found["left"] = int(_total(filtered["stats"]["forwarded"])) if "forwarded" in filtered["stats"] else 0
    return found


def _total(value: Any) -> float:
    return float(value["total"] if isinstance(value, dict) else value)


def warm_up() -> None:
    """Loads spaCy, which filters and signatures share."""
    from datatrove.utils.text import Languages
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    load_word_tokenizer(Languages.english).sent_tokenize(
        "The first call loads the tokenizer. The second does not."
    )


def use_language_model(path: str) -> None:
    """The file that tokmill has too, and nothing is downloaded."""
    from datatrove.utils import lid  # type: ignore[import-not-found, unused-ignore]

    lid.cached_asset_path_or_download = lambda *_, **__: path


def use_plain_splitting() -> None:
    from datatrove.utils.word_tokenizers import SpaCyTokenizer

    SpaCyTokenizer.word_tokenize = lambda _, text: text.split()
    SpaCyTokenizer.sent_tokenize = lambda _, text: [s for s in SENTENCE_END.split(text) if s.strip()]


def keep_all() -> None:
    from datatrove.pipeline.filters.base_filter import BaseFilter

    def judged_and_kept(self: Any, batch: list[Any]) -> list[bool]:
        for document in batch:
            with contextlib.suppress(
                ZeroDivisionError
            ):  # some divide by the number of words before they look at it
                self.filter(document)
        return [True] * len(batch)

    BaseFilter.filter_batch = judged_and_kept


if __name__ == "__main__":
    raise SystemExit(main())
