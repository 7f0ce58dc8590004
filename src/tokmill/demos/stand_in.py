"""Small generated files in the shape of the datasets that the recipes of tokmill read:
to run them without a network.

    stand-in/
      pairs.jsonl            translation: {en, fr}                      WMT14
      web.jsonl.zst          id, text, date, language, language_score   FineWeb and FineWeb-Edu
      c4.jsonl.gz            text, url, timestamp                       C4
      slimpajama.jsonl.zst   text, meta                                 SlimPajama
      code.jsonl.zst         hash, content, path, license               codeparrot-clean:
                                                                        modules of this Python
      encyclopedia.parquet   id, url, title, text                       Wikipedia, as the hub has it
      wikitext.parquet       text: a line each, tokenized in 2016       WikiText-103, as the hub has it
      wiki/AA/wiki_00        <doc …>                                    Wikipedia, as WikiExtractor writes it
      qa/Posts.xml           questions and answers                      a Stack Exchange dump
      problems.jsonl         question, answer                           GSM8K
      competition.jsonl      problem, level, type, solution             MATH
      webmath.jsonl.zst      url, text, date                            OpenWebMath
      books/*.txt            a book each                                Project Gutenberg
      notebooks.parquet      content, path, license                     notebooks
      abstracts.jsonl.gz     id, title, abstract                        abstracts of papers

Faults are built in, so that every rule has something to find: copies, near copies, copies in another source,
passages that two documents share, another language, NUL, texts that are too short or too long, bad pairs.
"""

from __future__ import annotations

import hashlib
import itertools
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from zlib_ng import gzip_ng

from tokmill.demos.corpus import generate_pairs, read_modules, write_passage, write_sentence
from tokmill.demos.problems import Draw, generate_problems
from tokmill.storage.disk import ZstdCompressor, commit_bytes, frame_options

SEED = 42
_MODULE_BYTES = 20_000  # a larger module is left out: one of 200 kB would be half of the code

Record = Mapping[str, object]


def write_stand_in(directory: Path) -> list[Path]:
    """The files above, some 2 MB, as far as they are not in `directory` yet; those that were written."""
    written = []
    for name, content in _CONTENTS.items():
        path = Path(directory) / name
        if not path.exists():
            commit_bytes(path, content())
            written.append(path)
    return written


# -- what is in them -------------------------------------------------------------------------------


@cache
def _problems() -> list[dict[str, str]]:
    return generate_problems(1050, SEED)


def _pairs() -> list[Record]:
    pairs = generate_pairs(600, SEED)
    long = " ".join(write_sentence(Draw("long", SEED, number)) for number in range(6))
    bad = [
        {"en": "A", "fr": "À"},
        {"en": "", "fr": "Rien."},
        {"en": "...", "fr": "!"},
        {"en": long, "fr": "Non."},
    ]
    return [{"id": f"pair-{number}", "translation": pair} for number, pair in enumerate([*pairs, *bad])]


@cache
def _web() -> list[Record]:
    texts = [write_passage(Draw("web", SEED, number), 2 + number % 5) for number in range(300)]
    texts += [texts[number] for number in range(4)]
    texts += [f"{texts[number]} {write_sentence(Draw('later', SEED, number))}" for number in (13, 18, 23)]
    texts += ["Too short.", "A NUL\0 hides in this one. " + texts[30], "\n\n".join(texts[40:52])]
    french = [" ".join(pair["fr"] for pair in generate_pairs(12, seed)) for seed in range(5)]
    return [
        {
            "id": f"<urn:uuid:{hashlib.sha256(f'web {number}'.encode()).hexdigest()[:32]}>",
            "text": text,
            "url": f"https://example.org/{number}",
            "date": f"20{10 + number % 14}-05-{1 + number % 28:02}T00:00:00Z",
            "language": "fr" if number >= len(texts) else "en",
            "language_score": 0.98,
        }
        for number, text in enumerate([*texts, *french])
    ]


def _c4() -> list[Record]:
    """Some share most of their words with a page of `web`."""
    web = _web()
    texts = [write_passage(Draw("c4", SEED, number), 3 + number % 3) for number in range(120)]
    texts += [f"{web[number]['text']}\n\n{write_sentence(Draw('tail', SEED, number))}" for number in (60, 61)]
    return [
        {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://example.com/{number}"}
        for number, text in enumerate(texts)
    ]


def _slimpajama() -> list[Record]:
    """Five are copies of pages in `web`."""
    web = _web()
    texts = [write_passage(Draw("slim", SEED, number), 2 + number % 4) for number in range(120)]
    texts += [str(web[number]["text"]) for number in range(70, 75)]
    return [{"text": text, "meta": {"redpajama_set_name": "RedPajamaC4"}} for text in texts]


@cache
def _code() -> list[Record]:
    modules = read_modules(Path(sysconfig.get_paths()["stdlib"]))
    small = (module for module in modules if 100 <= len(module["content"]) <= _MODULE_BYTES)
    return [
        {"hash": hashlib.sha256(module["path"].encode()).hexdigest()[:32], **module}
        for module in itertools.islice(small, 70)
    ]


def _articles(kind: str, count: int) -> list[Record]:
    return [
        {
            "id": str(number + 1),
            "url": f"https://en.example.org/wiki?curid={number + 1}",
            "title": f"Place {kind} {number + 1}",
            "text": write_passage(Draw("article", kind, SEED, number), 2 + number % 6),
        }
        for number in range(count)
    ]


def _wikitext(articles: list[Record]) -> list[Record]:
    """A line each, with blanks around signs, as the tokenizer of 2016 left them;
    headings, and lines without a word."""
    lines = []
    for article in articles:
        lines += ["", f" = {article['title']} = \n", ""]
        for paragraph in str(article["text"]).split("\n\n"):
            spaced = "".join(f" {sign}" if sign in ",.;:!?" else sign for sign in " ".join(paragraph.split()))
            lines.append(f" {spaced.replace('-', ' @-@ ')} \n")
    return [{"text": line} for line in lines]


def _gsm8k() -> list[Record]:
    return [{key: problem[key] for key in ("question", "answer")} for problem in _problems()[:300]]


def _competition() -> list[Record]:
    return [
        {
            "problem": problem["question"],
            "level": f"Level {1 + index % 5}",
            "type": "Algebra",
            "solution": problem["answer"],
        }
        for index, problem in enumerate(_problems()[300:600])
    ]


def _web_math() -> list[Record]:
    """Three problems a page."""
    problems = _problems()[600:900]
    pages = [problems[first : first + 3] for first in range(0, len(problems), 3)]
    return [
        {
            "url": f"https://example.net/{number}",
            "text": "\n\n".join(f"{problem['question']}\n\n{problem['answer']}" for problem in page),
            "date": "2023-01-01T00:00:00Z",
        }
        for number, page in enumerate(pages)
    ]


def _notebooks() -> list[Record]:
    return [
        {
            "content": f"# {write_sentence(Draw('cell', SEED, number))}\n\n{str(module['content'])[:1500]}",
            "path": f"notebooks/{number}.ipynb",
            "license": "PSF-2.0",
        }
        for number, module in enumerate(_code()[:40])
    ]


def _abstracts() -> list[Record]:
    return [
        {
            "id": f"2101.{number:05}",
            "title": write_sentence(Draw("title", SEED, number)).rstrip("."),
            "abstract": write_passage(Draw("abstract", SEED, number), 1),
        }
        for number in range(60)
    ]


def _book(number: int) -> bytes:
    return write_passage(Draw("book", SEED, number), 60).encode()


# -- how they are written --------------------------------------------------------------------------


def _lines(records: Iterable[Record]) -> bytes:
    return msgspec.json.Encoder().encode_lines(list(records))


def _zstd(records: Iterable[Record]) -> bytes:
    compressor = ZstdCompressor(options=frame_options())
    return bytes(compressor.compress(_lines(records)) + compressor.flush())


def _gzip(records: Iterable[Record]) -> bytes:
    return bytes(gzip_ng.compress(_lines(records), mtime=0))


def _parquet(records: list[Record]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink, compression="zstd")
    return bytes(sink.getvalue())


def _wiki(articles: list[Record]) -> bytes:
    blocks = [
        f"<doc id={quoteattr(str(a['id']))} url={quoteattr(str(a['url']))} "
        f"title={quoteattr(str(a['title']))}>\n{a['title']}\n\n{escape(str(a['text']))}\n\n</doc>\n"
        for a in articles
    ]
    return "".join(blocks).encode()


def _posts() -> bytes:
    """A question, its accepted answer and a worse one, of each problem."""
    rows = []
    for index, problem in enumerate(_problems()[900:]):
        first = 3 * index + 1
        asked = {
            "AcceptedAnswerId": first + 1,
            "Title": f"How many are there, and why? ({index})",
            "Tags": "<counting>",
            "AnswerCount": 2,
        }
        rows += [
            _row(first, 1, 3, problem["question"], asked),
            _row(first + 1, 2, 2, problem["answer"], {"ParentId": first}),
            _row(first + 2, 2, 0, "I would ask somebody else.", {"ParentId": first}),
        ]
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<posts>", *rows, "</posts>", ""]
    return "\n".join(lines).encode()


def _row(id: int, kind: int, score: int, body: str, more: Record) -> str:
    values = {
        "Id": id,
        "PostTypeId": kind,
        "CreationDate": "2015-01-27T20:03:37.000",
        "Score": score,
        "Body": f"<p>{escape(body)}</p>",
        "ContentLicense": "CC BY-SA 3.0",
        **more,
    }
    return "  <row " + " ".join(f"{name}={quoteattr(str(value))}" for name, value in values.items()) + " />"


_CONTENTS: dict[str, Callable[[], bytes]] = {
    "pairs.jsonl": lambda: _lines(_pairs()),
    "web.jsonl.zst": lambda: _zstd(_web()),
    "c4.jsonl.gz": lambda: _gzip(_c4()),
    "slimpajama.jsonl.zst": lambda: _zstd(_slimpajama()),
    "code.jsonl.zst": lambda: _zstd(_code()),
    "encyclopedia.parquet": lambda: _parquet(_articles("hub", 260)),
    "wikitext.parquet": lambda: _parquet(_wikitext(_articles("text", 260))),
    "wiki/AA/wiki_00": lambda: _wiki(_articles("dump", 120)),
    "qa/Posts.xml": _posts,
    "problems.jsonl": lambda: _lines(_gsm8k()),
    "competition.jsonl": lambda: _lines(_competition()),
    "webmath.jsonl.zst": lambda: _zstd(_web_math()),
    **{f"books/book-{number}.txt": partial(_book, number) for number in range(6)},
    "notebooks.parquet": lambda: _parquet(_notebooks()),
    "abstracts.jsonl.gz": lambda: _gzip(_abstracts()),
}
