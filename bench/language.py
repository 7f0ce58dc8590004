"""Language detection on real text: MB of text per CPU second, and how often the verdicts are right.

python bench/language.py [--texts DIR] [--ntrex FILE] [--rounds 3] [--grid] [--json FILE]
python bench/language.py --english       which score which share of English texts reaches, by each detector

Speed is CPU time of this process, the median of the rounds, over the UTF-8 bytes of whole documents. Whole
texts and their beginnings are judged once: they are what the excerpt is compared with. --grid adds the table
of places and bytes per place that docs/language.md quotes.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from stages import SHARED
from tokmill.clean.language import (
    MIN_PROSE_BYTES,
    DetectorName,
    detect_languages,
    excerpt_texts,
    letter_classes,
    load_detector,
    model_files,
)
from tokmill.kernels.excerpt import excerpt_letters
from tokmill.schema import large_strings, string_column
from tokmill.storage import codecs
from tokmill.storage.records import Kind, Wanted

# The NTREX names of thirty languages with the most pages on the web, and their codes.
LANGUAGES = (
    "arb:ar bul:bg ces:cs dan:da deu:de ell:el eng:en fas:fa fin:fi fra:fr heb:he hun:hu ind:id ita:it "
    "jpn:ja kor:ko nld:nl nob:no pol:pl por:pt ron:ro rus:ru slk:sk spa:es swe:sv tha:th tur:tr ukr:uk "
    "vie:vi zho-CN:zh"
)
GRID = [
    *((1, 150), (1, 300), (1, 600), (2, 150), (2, 300), (4, 50), (4, 100), (4, 150), (4, 200), (4, 300)),
    *((6, 100), (8, 50), (8, 75), (8, 100), (16, 25), (16, 50)),
]
MIN_SCORE = 0.65  # the usual threshold for keeping a page

Verdicts = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class Domain(NamedTuple):
    name: str
    texts: Any
    megabytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--ntrex", type=Path, default=SHARED / "data/langid/ntrex128_lines0-99.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grid", action="store_true", help="try other numbers of places and bytes, too")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument(
        "--english", action="store_true", help="the table behind `language.recall`, and no more"
    )
    options = parser.parse_args()
    if options.english:
        print_english(options.texts, options.ntrex)
        return 0
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    domains = [load_domain(path) for path in paths]
    detect_languages(domains[0].texts[:10])  # compiles the kernel, loads the model
    whole, whole_seconds = timed(lambda: [judge_lines(lines(domain.texts)) for domain in domains], 1)
    _, excerpt_seconds = timed(lambda: [excerpt_texts(domain.texts) for domain in domains], options.rounds)
    ours, seconds = timed(lambda: [detected(domain.texts) for domain in domains], options.rounds)
    judged, judged_seconds = timed(lambda: [judge_lines(excerpt_texts(d.texts)) for d in domains], 1)

    table = agreement_table("agreement with the verdict on the whole text, %", domains)
    add_row(table, domains, "whole text", whole, whole, whole_seconds)
    for chars in (80, 500):
        start, start_seconds = timed(
            lambda chars=chars: [judge_lines(lines(d.texts, chars)) for d in domains],  # type: ignore[misc]
            1,
        )
        add_row(table, domains, f"first {chars} characters", start, whole, start_seconds)
    add_row(table, domains, "excerpt, by fastText's own code", judged, whole, judged_seconds)
    add_row(table, domains, "excerpt (tokmill)", ours, whole, seconds)
    for places, bytes_per_place in GRID if options.grid else []:
        tried, tried_seconds = timed(
            lambda p=places, b=bytes_per_place: [judge_lines(excerpts(d.texts, p, b)) for d in domains],  # type: ignore[misc]
            1,
        )
        add_row(table, domains, f"{places} x {bytes_per_place}", tried, whole, tried_seconds)
    Console(width=130).print(table)

    megabytes = sum(domain.megabytes for domain in domains)
    print(f"excerpt alone: {megabytes / excerpt_seconds:.0f} MB of text per CPU second")
    for domain, (codes, scores), (whole_codes, whole_scores) in zip(domains, ours, whole, strict=True):
        kept, whole_kept = scores >= MIN_SCORE, whole_scores >= MIN_SCORE
        print(
            f"{domain.name}: score >= {MIN_SCORE} for {100 * kept.mean():.1f} % by the excerpt and "
            f"{100 * whole_kept.mean():.1f} % by the whole text; of the {np.sum(codes != whole_codes)} that "
            f"differ {np.sum((codes != whole_codes) & whole_kept)} have such a whole-text score"
        )
    if options.json:
        speeds = {
            "whole": whole_seconds,
            "own_code": judged_seconds,
            "excerpt": excerpt_seconds,
            "tokmill": seconds,
        }
        figures = {
            name: {"cpu_s": spent, "mb_per_cpu_s": megabytes / spent} for name, spent in speeds.items()
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.ntrex.exists():
        print_accuracy(options.ntrex)
    return 0


def load_domain(path: Path) -> Domain:
    wanted = [Wanted("text", "text", Kind.SCALAR, False)]
    batches = codecs.read_batches(path, wanted, unit="document", max_record_bytes=1 << 27)
    texts = pa.concat_tables([batch.table for batch in batches])["text"].cast(pa.large_string())
    return Domain(
        path.name.split(".")[0], texts.combine_chunks(), pc.sum(pc.binary_length(texts)).as_py() / 1e6
    )


def lines(texts: Any, chars: int | None = None) -> Any:
    """Raw text as fastText wants it: newlines become spaces."""
    cut = texts if chars is None else pc.utf8_slice_codeunits(texts, 0, chars)
    return pc.replace_substring(cut, "\n", " ")


def excerpts(texts: Any, places: int, bytes_per_place: int) -> Any:
    column = string_column(texts)
    found = excerpt_letters(
        column.data,
        column.offsets,
        letter_classes(),
        places=places,
        bytes_per_place=bytes_per_place,
        min_bytes=MIN_PROSE_BYTES,
    )
    return pc.utf8_lower(large_strings(*found))


def judge_lines(texts: Any) -> Verdicts:
    predict = fasttext_reference().predict
    verdicts = [predict(text.encode() + b"\n", 1, 0.0, "strict")[0] for text in texts.to_pylist()]
    codes = [label.removeprefix("__label__") for _, label in verdicts]
    return np.array(codes, object), np.array([score for score, _ in verdicts])


@functools.cache
def fasttext_reference() -> Any:
    """fastText's own code."""
    from fasttext_pybind import fasttext  # type: ignore[import-not-found]

    model: Any = fasttext()
    (path,) = model_files("fasttext")
    model.loadModel(str(path))
    return model


def detected(texts: Any) -> Verdicts:
    found = detect_languages(texts)
    return np.array(found.codes.to_pylist(), object), found.scores


def timed(work: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return result, statistics.median(seconds)


def agreement_table(title: str, domains: list[Domain]) -> Table:
    table = Table(title=title)
    table.add_column("judged by")
    for name in ("MB/CPU s", "all documents", *(domain.name for domain in domains)):
        table.add_column(name, justify="right")
    return table


def add_row(
    table: Table,
    domains: list[Domain],
    name: str,
    found: list[Verdicts],
    whole: list[Verdicts],
    seconds: float,
) -> None:
    same = [codes == whole_codes for (codes, _), (whole_codes, _) in zip(found, whole, strict=True)]
    speed = sum(domain.megabytes for domain in domains) / seconds
    shares = [np.concatenate(same), *same]
    table.add_row(name, f"{speed:.1f}", *(f"{100 * share.mean():.2f}" for share in shares))


def print_accuracy(path: Path) -> None:
    """A document is one line of the file: one sentence of a news article."""
    codes = dict(pair.split(":") for pair in LANGUAGES.split())
    records = msgspec.json.Decoder(dict[str, Any]).decode_lines(path.read_bytes())
    records = [record for record in records if record["ntrex_lang"] in codes]
    texts = pa.array([record["text"] for record in records], pa.large_string())
    gold = np.array([codes[record["ntrex_lang"]] for record in records], object)
    names: tuple[DetectorName, ...] = ("fasttext", "py3langid", "langdetect")
    for name in names:
        if name != "fasttext":
            load_detector(name)
        found, seconds = timed(lambda name=name: detect_languages(texts, name), 1)  # type: ignore[misc]
        right = np.array(found.codes.to_pylist(), object) == gold
        megabytes = pc.sum(pc.binary_length(texts)).as_py() / 1e6
        per_language = {code: f"{100 * right[gold == code].mean():.0f}" for code in sorted(set(gold))}
        worst = ", ".join(f"{code} {share}" for code, share in per_language.items() if share != "100")
        print(
            f"NTREX, {len(gold)} sentences of {len(codes)} languages, {name}: {100 * right.mean():.2f} % "
            f"right, {megabytes / seconds:.2f} MB/CPU s (not 100: {worst})"
        )


RECALLS = (
    0.999,
    0.998,
    0.997,
    0.996,
    0.995,
    0.9925,
    0.99,
    0.985,
    0.98,
    0.97,
    0.95,
    0.925,
    0.9,
    0.85,
    0.8,
    0.7,
    0.6,
    0.5,
)


def print_english(directory: Path, ntrex: Path, count: int = 2500) -> None:
    """Pages and articles, every n-th of their files, and the English lines of NTREX.
    A text that is called another language has no score."""
    texts: list[str] = []
    for name in ("web", "prose"):
        found = load_domain(directory / f"{name}.jsonl.zst").texts.to_pylist()
        texts += found[:: len(found) // count][:count]
    records = msgspec.json.Decoder(dict[str, Any]).decode_lines(ntrex.read_bytes())
    texts += [record["text"] for record in records if record["iso639_3"] == "eng"]
    names: tuple[DetectorName, ...] = ("fasttext", "py3langid", "langdetect")
    for name in names:
        codes, scores = detect_languages(pa.array(texts, pa.large_string()), name)
        ranked = np.sort(np.where(np.array(codes.to_pylist(), object) == "en", scores, -1.0))[::-1]
        rows = [(recall, ranked[int(np.ceil(recall * len(ranked))) - 1]) for recall in RECALLS]
        told = ", ".join(
            f"{recall:g} {score:.4f} ({np.mean(ranked >= score):.2%})" for recall, score in rows if score >= 0
        )
        print(f"{name}, {len(texts)} texts, {np.mean(ranked >= 0):.2%} called English: {told}")


if __name__ == "__main__":
    sys.exit(main())
