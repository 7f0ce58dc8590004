"""The main text of web pages: how much of it each engine finds, what it adds, and MB of HTML per CPU second.

python bench/extraction.py [--pages DIR] [--structure FILE] [--peers PYTHON] [--fold N] [--shipped]
                           [--engines NAME …] [--rounds 3] [--no-speed] [--json FILE]

    pages ─ engine ─ text ─────┬─ article measure, segments: all pages, English ones, others
          ─ engine ─ Markdown ─┴─ code, tables, formulas: pages whose main element is known

Our answer for a page is by the model that was trained without the page's fold (bench/extraction_pages.py),
or by the shipped one with --shipped. What peers answer is kept under bench/results/extraction by version and
page, so that only new pages cost their time. Speed is CPU time of one process over the bytes of a fixed
sample: the median of the rounds, after one that does not count.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from extraction_measures import (
    article_figures,
    best_similarities,
    code_lines,
    find_segments,
    gold_blocks,
    markdown_blocks,
    overlap,
    page_similarity,
    segment_figures,
    structure_figures,
)
from extraction_pages import FOLDS, Page, load_pages
from stages import SHARED
from tokmill.sources.extract.engines import Broken, open_engine
from tokmill.sources.extract.model import load_model
from tokmill.sources.extract.page import extract, parse_page

HERE = Path(__file__).resolve().parent
CACHE = HERE / "results/extraction"
MODELS = CACHE / "models"  # by bench/train_extraction.py
STRUCTURE = HERE / "results/structure/structure.jsonl.zst"
KINDS = ("code", "tables", "formulas")
SAMPLE_BYTES = 20_000_000  # of the pages that are timed: trafilatura takes four seconds

Answers = dict[str, str]  # by the page's key


class Engine(NamedTuple):
    """`plain` and `markdown` are names of what answers: the same where the engine has one kind of output."""

    name: str
    plain: str
    markdown: str


ENGINES = (
    Engine("tokmill", "tokmill", "tokmill_markdown"),
    Engine("trafilatura", "trafilatura", "trafilatura_markdown"),
    Engine("trafilatura, precision", "trafilatura_precision", ""),
    Engine("trafilatura, recall", "trafilatura_recall", ""),
    Engine("resiliparse", "resiliparse", "resiliparse"),
    Engine("readability-lxml", "readability", "readability"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--pages", type=Path, default=SHARED / "data/extraction", help="the sets by hand")
    parser.add_argument("--structure", type=Path, default=STRUCTURE, help="made by structure_pages.py")
    parser.add_argument("--peers", help="interpreter that has trafilatura and readability-lxml")
    parser.add_argument("--engines", nargs="+", choices=[engine.name for engine in ENGINES])
    parser.add_argument("--fold", type=int, choices=range(FOLDS), help="pages of this fold only")
    parser.add_argument("--shipped", action="store_true", help="our shipped model, which has seen the pages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = [options.pages / "articles.jsonl.zst", options.pages / "segments.jsonl.zst", options.structure]
    if not any(path.exists() for path in paths):
        print(f"no pages in {options.pages}: give a directory with --pages", file=sys.stderr)
        return 2
    pages = [page for path in paths if path.exists() for page in load_pages(path)]
    pages = [page for page in pages if options.fold in (None, page.fold)]
    figures = {}
    for engine in ENGINES:
        if options.engines and engine.name not in options.engines:
            continue
        try:
            measured = measure(engine, pages, options)
        except Missing as error:
            print(f"without {engine.name}: {error}", file=sys.stderr)
            continue
        figures[engine.name] = measured
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(engine: Engine, pages: list[Page], options: argparse.Namespace) -> dict[str, Any]:
    answer = Answering(options)
    found: dict[str, Any] = {"version": answer.version(engine.plain)}
    by_set = {name: [p for p in pages if p.set == name] for name in ("articles", "segments", "structure")}
    text = answer(engine.plain, by_set["articles"] + by_set["segments"])
    for name, figures_of in (("articles", measure_articles), ("segments", measure_segments)):
        found[name] = {
            "all": figures_of(by_set[name], text),
            "en": figures_of([page for page in by_set[name] if page.language == "en"], text),
            "other": figures_of([page for page in by_set[name] if page.language != "en"], text),
        }
    if engine.markdown:
        marked = answer(engine.markdown, by_set["structure"])
        found["structure"] = measure_structure(by_set["structure"], marked)
    if not options.no_speed:
        sample = timed_sample(by_set["articles"] + by_set["segments"])
        for output in dict.fromkeys((engine.plain, engine.markdown)):
            if output:
                found.setdefault("mb_per_cpu_s", {})[output] = answer.speed(output, sample)
    return found


# --- what is measured ---


def measure_articles(pages: list[Page], texts: Answers) -> dict[str, float]:
    return article_figures(overlap(page.gold["text"], texts[page.key]) for page in pages)


def measure_segments(pages: list[Page], texts: Answers) -> dict[str, float]:
    return segment_figures(
        find_segments(page.gold["with"], page.gold["without"], texts[page.key]) for page in pages
    )


def measure_structure(pages: list[Page], texts: Answers) -> dict[str, Any]:
    blocks = [markdown_blocks(texts[page.key]) for page in pages]
    golds = [gold_blocks(*(page.gold[kind] for kind in KINDS)) for page in pages]
    found: dict[str, Any] = {}
    for at, kind in enumerate(KINDS):
        similarities = [
            best_similarities(gold[at], block[at]) for gold, block in zip(golds, blocks, strict=True)
        ]
        by_host = {}
        for host in dict.fromkeys(page.host for page in pages):
            of_host = [
                (host, values) for page, values in zip(pages, similarities, strict=True) if page.host == host
            ]
            if any(values for _, values in of_host):
                by_host[host] = structure_figures(of_host)
        found[kind] = {
            **structure_figures(zip((page.host for page in pages), similarities, strict=True)),
            "page_similarity": _mean(
                page_similarity(gold[at], block[at])
                for gold, block in zip(golds, blocks, strict=True)
                if gold[at] or block[at]
            ),
            "by_host": by_host,
        }
    lines = [code_lines(gold.code, texts[page.key]) for page, gold in zip(pages, golds, strict=True)]
    there, all_lines = (sum(column) for column in zip(*lines, strict=True)) if lines else (0, 0)
    found["code_lines"] = {"lines": all_lines, "recall": there / all_lines if all_lines else 0.0}
    found["text"] = article_figures(overlap(page.gold["text"], texts[page.key]) for page in pages)
    return found


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else 0.0


def timed_sample(pages: list[Page]) -> list[Page]:
    """Pages by their hash, until they are SAMPLE_BYTES."""
    chosen, size = [], 0
    for page in sorted(pages, key=lambda page: page.key):
        if size >= SAMPLE_BYTES:
            break
        chosen.append(page)
        size += len(page.html.encode())
    return chosen


# --- who answers ---


class Missing(Exception):
    """An engine that is not at hand."""


def tokmill_extract(page: Page, markup: str, shipped: bool) -> str:
    """Our extractor: the only place that calls it. A page is judged by the model of its fold, which has seen
    no page of its host."""
    model = load_model(None if shipped else MODELS / f"{page.fold}.npz")
    return extract(page.html.encode(), markup=markup, model=model)


class Answering:
    """Texts of pages by the name of an output: made here, or by the peers' interpreter."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.peers, self.rounds = options.peers, options.rounds
        self.here: dict[str, Callable[[Page], str]] = {
            "tokmill": lambda page: tokmill_extract(page, "text", options.shipped),
            "tokmill_markdown": lambda page: tokmill_extract(page, "markdown", options.shipped),
            "resiliparse": Resiliparse(),
        }

    def __call__(self, output: str, pages: list[Page]) -> Answers:
        if output in self.here:
            return {page.key: self.here[output](page) for page in pages}
        cache = CACHE / f"{output}-{self.version(output)}.jsonl"
        texts = load_cache(cache)
        lacking = [page for page in pages if page.key not in texts]
        if lacking:
            cache.parent.mkdir(parents=True, exist_ok=True)
            with cache.open("a") as file:
                for answer in self.ask([output], lacking):
                    texts[answer["key"]] = answer["text"]
                    file.write(json.dumps({"key": answer["key"], "text": answer["text"]}) + "\n")
        return texts

    def speed(self, output: str, pages: list[Page]) -> float:
        """MB of HTML per CPU second."""
        seconds = []
        for _ in range(1 + self.rounds):
            if output in self.here:
                started = time.process_time()
                for page in pages:
                    self.here[output](page)
                seconds.append(time.process_time() - started)
            else:
                seconds.append(sum(answer["cpu_s"] for answer in self.ask([output], pages)))
        return sum(len(page.html.encode()) for page in pages) / 1e6 / statistics.median(seconds[1:])

    def version(self, output: str) -> str:
        if output in self.here:
            return importlib.metadata.version(output.split("_")[0])
        return str(next(self.lines([output], []))["versions"][output])

    def ask(self, outputs: list[str], pages: list[Page]) -> Iterator[dict[str, Any]]:
        answers = self.lines(outputs, pages)
        next(answers)
        return answers

    def lines(self, outputs: list[str], pages: list[Page]) -> Iterator[dict[str, Any]]:
        if not self.peers or not Path(self.peers).exists():
            raise Missing("give the interpreter that has it with --peers")
        command = [self.peers, str(HERE / "extraction_reference.py"), *outputs]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None

        def feed(pipe: Any) -> None:
            with pipe:
                for page in pages:
                    pipe.write(json.dumps({"key": page.key, "html": page.html}) + "\n")

        feeding = threading.Thread(target=feed, args=(process.stdin,))
        feeding.start()
        with process.stdout as said:
            for line in said:
                yield json.loads(line)
        feeding.join()
        if process.wait():
            raise Missing(f"{' '.join(command)} ended with status {process.returncode}")


class Resiliparse:
    """Main content just as a web archive's is taken out; a page that is too deep has none."""

    def __init__(self) -> None:
        self.engine = open_engine({"engine": "resiliparse"}, main_text=True)

    def __call__(self, page: Page) -> str:
        try:
            return self.engine(page.html, *parse_page(page.html.encode()))
        except Broken:
            return ""


def load_cache(path: Path) -> Answers:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["key"]: row["text"] for row in rows}


# --- tables ---


def render(figures: dict[str, dict[str, Any]]) -> None:
    console = Console(width=130)
    for name, title in (("articles", "articles, 4-grams of words"), ("segments", "segments")):
        table = Table(title=title)
        table.add_column("engine")
        for column in ("pages", "precision", "recall", "F1", "F1 en", "F1 other", "accuracy"):
            table.add_column(column, justify="right")
        for engine, found in figures.items():
            every, english, other = (found[name][key] for key in ("all", "en", "other"))
            table.add_row(
                f"{engine} {found['version']}",
                str(every["pages"]),
                *(f"{every[key]:.4f}" for key in ("precision", "recall", "f1")),
                *(f"{part['f1']:.4f} ({part['pages']})" for part in (english, other)),
                f"{every['accuracy']:.4f}" if "accuracy" in every else "",
            )
        console.print(table)
    table = Table(title="structure: edit similarity of blocks (of whole pages), lines of code, text of main")
    table.add_column("engine")
    for column in (*KINDS, "code lines", "text P", "text R", "text F1"):
        table.add_column(column, justify="right")
    for engine, found in figures.items():
        structure = found.get("structure")
        if structure:
            table.add_row(
                engine,
                *(f"{structure[k]['similarity']:.3f} ({structure[k]['page_similarity']:.3f})" for k in KINDS),
                f"{structure['code_lines']['recall']:.3f}",
                *(f"{structure['text'][key]:.3f}" for key in ("precision", "recall", "f1")),
            )
    console.print(table)
    for found in figures.values():
        for output, speed in found.get("mb_per_cpu_s", {}).items():
            console.print(f"{output}: {speed:.1f} MB of HTML per CPU second")


if __name__ == "__main__":
    raise SystemExit(main())
