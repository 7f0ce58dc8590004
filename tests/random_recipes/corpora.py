"""Small corpora of hard texts, and the files that sources read them from.

    draw_documents(rng, count, …)    records: texts of many kinds, copies, ids that are missing or equal
    render(path, records)            the bytes of a file, as its name says: a.jsonl.zst, Posts.xml, c.tar
    MADE                             files that are made of nothing but their name: tokenizers, models, hooks

A record is a mapping, or a string: bytes that are no record, as Latin-1.
"""

from __future__ import annotations

import base64
import bz2
import csv
import functools
import gzip
import io
import json
import lzma
import random
import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import sentencepiece
import tokenizers

from made_fasttext import write_model
from pdf_files import make_pdf
from written import ZstdFile

Record = dict[str, Any] | str

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "with",
    "that",
    "have",
    "be",
    "a",
    "in",
    "it",
    "is",
    "was",
    "for",
    "on",
    "as",
    "by",
    "at",
    "from",
    "this",
    "are",
    "not",
    "or",
    "which",
    "mill",
    "river",
    "miller",
    "grain",
    "flour",
    "bread",
    "stone",
    "wheel",
    "water",
    "winter",
    "summer",
    "turns",
    "grinds",
    "keeps",
    "sells",
    "bakes",
    "carries",
    "slowly",
    "often",
    "never",
    "village",
    "market",
    "road",
    "bridge",
    "garden",
    "old",
    "small",
    "heavy",
    "white",
    "house",
    "people",
    "children",
    "morning",
    "evening",
    "weather",
    "price",
    "barrel",
    "sack",
    "horse",
    "cart",
    "song",
    "letter",
    "word",
    "number",
    "answer",
    "question",
    "reason",
    "time",
]


def prose(seed: int, sentences: int) -> str:
    """English enough for the rules: stop words, sentences, paragraphs. Of one seed always the same."""
    chance = random.Random(seed)
    found = [
        " ".join(chance.choices(WORDS, k=chance.randrange(5, 18))).capitalize() + ". "
        for _ in range(sentences)
    ]
    return "".join(s[:-1] + "\n\n" if n % 5 == 4 else s for n, s in enumerate(found)).strip()


HARD = [
    *(
        "",
        " ",
        "\n\n\t",
        "x",
        ".",
        "\0",
        "a\0b\0c",
        "\ufeffmark",
        "no\r\nunix\rlines\r\n",
        "line\u2028sep\u2029para",
    ),
    *("e\u0301a\u030a n\u0303 \u1e9b\u0323 \ufb01", "שלום עולם, זה טקסט \u202e הפוך", "العربية نص من اليمين"),
    *(
        "👩\u200d👩\u200d👧 🇫🇷 ❤️‍🔥 🥺🥺",
        "漢字と仮名。日本語の文章です。中文没有空格的句子。",
        "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    ),
    *(
        "<|endoftext|>",
        "text with <|im_end|> and </s> and <s> in it, and <fim_middle>",
        "\u200b\u00ad\u2060",
        "\ufdd0 \uffff",
    ),
    *(
        "3.14159 2.71828 1,000,000 2024-02-30 192.168.0.1 a@b.example +49 30 1234567",
        "====",
        "a" * 3000,
        "\x85\x0b\x0c",
    ),
    *(
        "- \n- \n• x\n...\n…",
        '{"json": "in text"}',
        "```\n\tcode()\n```",
        "İstanbul ſtraße ǅ K",
        "0" * 40,
        "'ſ ’s IT'S",
    ),
]
BAD = [
    *('{"text": "\\ud800"}', '{"text": 1}', "{}", "not json", '{"text": NaN}', '{"text": "a", "text": "b"}'),
    *('{"text": null, "id": "nothing"}', '{"id": "bad-1", "text": "\xff\xfe"}', "[1, 2]", '{"text": "cut'),
]
LICENSES = [
    "MIT",
    "Apache-2.0",
    "apache 2",
    "GPL-3.0",
    "CC-BY-SA-4.0",
    "cc by 4.0",
    "proprietary",
    "MIT OR GPL-3.0",
    "",
]
HOSTS = ["www.mill.example", "mill.example", "blog.flour.example:8080", "127.0.0.1"]
DATES = ["2019-01-05", "2024-02-29T12:00:00Z", "yesterday", "2021", ""]
LANGUAGES = ["en", "fr", "de", "th", ""]
PARTS = ["train", "train", "train", "validation", "test", "dev", "", "other"]
MENU = ["Home | About | Contact", "Subscribe to our newsletter!", "© 2024 The miller. All rights reserved."]


def draw_documents(rng: random.Random, count: int, tag: str, earlier: list[Record]) -> list[Record]:
    """Records of one source; `earlier` has those of all, of which some are copied."""
    has_ids, has_urls, has_licenses = (rng.random() < chance for chance in (0.75, 0.4, 0.6))
    has_dates, is_clean = rng.random() < 0.4, rng.random() < 0.7
    found: list[Record] = []
    for number in range(count):
        if not is_clean and rng.random() < 0.04:
            found.append(rng.choice(BAD))
            continue
        record: dict[str, Any] = {
            "text": _draw_text(rng, f"{tag}{number}", [r for r in earlier if isinstance(r, dict)])
        }
        if has_ids and rng.random() < 0.95:
            record["id"] = _draw_id(rng, tag, number)
        if has_urls and rng.random() < 0.9:
            host, page = rng.choice(HOSTS), rng.randrange(2 * count)
            slash, query = rng.choice(["", "/"]), rng.choice(["", "", "?utm_source=x", "#top"])
            record["url"] = (
                f"{rng.choice(['http', 'https'])}://{host}/"
                f"{rng.choice(['a', 'casino', 'b'])}/{page}{slash}{query}"
            )
            if rng.random() < 0.6:
                record["text"] = "\n".join([MENU[0], record["text"], *MENU[1:]])
        if has_licenses and rng.random() < 0.5:
            record["license"] = rng.choice(LICENSES)
        if has_dates:
            record["created_at"] = rng.choice(DATES)
        record |= {
            "lang": rng.choice(LANGUAGES),
            "part": rng.choice(PARTS),
            "weight": round(rng.random() * 5, 2),
        }
        record |= {"robots": rng.choice(["", "", "noai", "noindex, nofollow"]), "quality": rng.randrange(10)}
        found.append(record)
        earlier.append(record)
    return found


def _draw_id(rng: random.Random, tag: str, number: int) -> Any:
    if rng.random() < 0.06:
        number = rng.randrange(number + 1)  # two documents of one id
    odd = [
        number,
        f"{tag}/{number}",
        f"{tag} {number}\n",
        f"{tag}é{number}",
        f"http://x/{number}?a=b",
        f"sha256:{number}",
    ]
    return rng.choice(odd) if rng.random() < 0.1 else f"{tag}-{number}"


def _draw_text(rng: random.Random, name: str, earlier: Sequence[dict[str, Any]]) -> str:
    kind = rng.random()
    if earlier and kind < 0.24:
        return _draw_copy(rng, name, str(rng.choice(earlier).get("text", "")))
    if kind < 0.4:
        return rng.choice(HARD)
    own = f"zq{random.Random(name).getrandbits(60):x}"  # a word that no other document has
    if kind < 0.5:
        lines = [f"def {own}_{n}(x):\n    return x + {n}" for n in range(rng.randrange(1, 12))]
        return "\n\n".join(lines) + rng.choice(["", "\n"])
    if kind < 0.56:
        body = f"<h1>{own}</h1><p>{prose(rng.randrange(999), 4)}</p>"
        return f"<html><head><title>{own}</title></head><body>{body}</body></html>"
    if kind < 0.62:
        return " ".join(f"{rng.random():.6f}" for _ in range(rng.randrange(5, 90))) + f" {own}"
    if kind < 0.63:
        times = 20 if rng.random() < 0.9 else 500  # more than a row, or than a shard of 1 MB
        return " ".join(f"{prose(rng.randrange(10**6), 20)} {own}{n}" for n in range(times))
    before, after = (prose(rng.randrange(10**6), rng.randrange(1, most)) for most in (14, 8))
    return f"{before} {own} {after}"


def _draw_copy(rng: random.Random, name: str, text: str) -> str:
    words = text.split(" ")
    own = f"zc{random.Random(name).getrandbits(48):x}"
    near = " ".join([*words[: len(words) // 2], own, *words[len(words) // 2 :]])
    passage = f"{prose(rng.randrange(10**6), 3)} {own}\n{text[:1500]}\n{prose(rng.randrange(10**6), 3)}"
    upper, spaced = text.upper(), text.replace(" ", "  ") + "\n"
    return rng.choice([text, text, upper, spaced, near, near, passage])


def draw_conversations(rng: random.Random, count: int, tag: str, role: str, content: str) -> list[Record]:
    names = {"system": "system", "user": "human", "assistant": "gpt"} if role == "from" else {}
    found: list[Record] = []
    for number in range(count):
        turns = ["user", "assistant"] * rng.randrange(1, 4)
        said = [rng.choice([*HARD[3:], prose(rng.randrange(10**6), 2)]) or "yes" for _ in turns]
        turns, said = (["system", *turns], ["Be kind.", *said]) if rng.random() < 0.3 else (turns, said)
        messages = [
            {role: names.get(turn, turn), content: text} for turn, text in zip(turns, said, strict=True)
        ]
        record: dict[str, Any] = {
            "id": _draw_id(rng, tag, number),
            "messages": messages,
            "quality": number % 7,
        }
        record |= {"license": rng.choice(LICENSES)} if rng.random() < 0.5 else {}
        found.append(
            record if rng.random() < 0.97 else {"id": f"bad{number}", "messages": [{role: "nobody"}]}
        )
    return found


def draw_pairs(rng: random.Random, count: int, tag: str) -> list[Record]:
    return [
        {
            "id": f"{tag}{n}",
            "src_text": rng.choice(HARD[3:]) if rng.random() < 0.2 else prose(n, 1),
            "tgt_text": prose(n + 5, 1),
        }
        for n in (rng.randrange(5 * count) for _ in range(count))
    ]


# --- files ---


def render(path: str, records: Sequence[Record]) -> bytes:
    name, _, packed = path.rpartition(".")
    if packed in _PACKERS:
        if name.endswith((".warc", ".wet")) and packed == "gz":
            return b"".join(gzip.compress(one, mtime=0) for one in _archive(name, records))
        return _PACKERS[packed](render(name, records))
    for ending, writer in _WRITERS.items():
        if path.endswith(ending):
            return writer(records)
    if path.endswith((".warc", ".wet")):
        return b"".join(_archive(path, records))
    return "\n\n".join(str(text_of(record)) for record in records).encode("utf-8", "replace")


def text_of(record: Record) -> str:
    return record if isinstance(record, str) else str(record.get("text", ""))


def _mappings(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [record for record in records if isinstance(record, dict)]


def _lines(records: Sequence[Record]) -> bytes:
    lines = [
        r.encode("latin-1") if isinstance(r, str) else json.dumps(r, ensure_ascii=len(r) % 2 > 0).encode()
        for r in records
    ]
    return b"".join(line + b"\n" for line in lines)


def _separated(records: Sequence[Record], dialect: str) -> bytes:
    rows = _mappings(records)
    keys = list(dict.fromkeys(key for row in rows for key in row)) or ["text"]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, keys, dialect=dialect, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _table(records: Sequence[Record]) -> pa.Table:
    rows = _mappings(records)
    keys = list(dict.fromkeys(key for row in rows for key in row)) or ["text"]
    columns = {}
    for key in keys:
        values = [row.get(key) for row in rows]
        mixed = len({type(value) for value in values if value is not None}) > 1
        columns[key] = [str(value) if mixed and value is not None else value for value in values]
    return pa.table(columns)


def _parquet(records: Sequence[Record]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(records), sink, row_group_size=7)
    return sink.getvalue()


def _arrow(records: Sequence[Record]) -> bytes:
    sink, table = io.BytesIO(), _table(records)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=5)
    return sink.getvalue()


def _feather(records: Sequence[Record]) -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(_table(records), sink)
    return sink.getvalue()


def _archive(path: str, records: Sequence[Record]) -> list[bytes]:
    """A response for each of a .warc, and a conversion for each of a .wet."""
    found = []
    for number, record in enumerate(_mappings(records)):
        text = text_of(record)
        page = f"<html><title>t{number}</title><body><article><p>{escape(text)}</p></article></body></html>"
        http = f"HTTP/1.1 {200 if number % 9 else 404} OK\r\n"
        http += f"Content-Type: text/html; charset=utf-8\r\n\r\n{page}"
        is_page = path.endswith(".warc")
        body = (http if is_page else text).encode("utf-8", "replace")
        kind, media = (
            ("response", "application/http; msgtype=response") if is_page else ("conversion", "text/plain")
        )
        url = record.get("url", f"http://pages.example/{number}")
        head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\n"
        head += f"WARC-Date: 2024-03-0{1 + number % 9}T00:00:00Z\r\nContent-Type: {media}\r\n"
        head += f"WARC-Record-ID: <urn:uuid:{number:08x}-0000-0000-0000-000000000000>\r\n"
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n")
    return found


def _posts(records: Sequence[Record]) -> bytes:
    lines = []
    for number, record in enumerate(_mappings(records)):
        text, key = re.sub(r"[^\t\n\r\x20-\ud7ff]", "", text_of(record)), 2 * number + 1
        date = 'CreationDate="2019-01-01T00:00:00.000"'
        title = f'Title="Question {number}" Tags="&lt;mill&gt;" AcceptedAnswerId="{key + 1}"'
        lines.append(
            f'<row Id="{key}" PostTypeId="1" Score="{number % 5 - 1}" {date} {title} Body="{escape(text)}" />'
        )
        lines.append(
            f'<row Id="{key + 1}" PostTypeId="2" ParentId="{key}" Score="{number % 3}" {date} '
            f'Body="{escape(text[:9])} yes." />'
        )
    return ('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(lines) + "\n</posts>\n").encode()


def _wikiextractor(records: Sequence[Record]) -> bytes:
    blocks = [
        f'<doc id="{n}" url="http://wiki/{n}" title="T{n}">\nT{n}\n\n{text_of(r)}\n</doc>\n'
        for n, r in enumerate(records)
    ]
    return "".join(blocks).encode("utf-8", "replace")


def _mail(records: Sequence[Record]) -> bytes:
    found = []
    for number, record in enumerate(_mappings(records)):
        body = base64.encodebytes(text_of(record).encode("utf-8", "replace")).decode()
        name = str(record.get("id", number)).replace("\n", "")
        head = f"From a@b.example Mon Jan  1 00:00:00 2024\nMessage-ID: <{name}@b.example>\n"
        head += f"Subject: mill {number}\nDate: Mon, 1 Jan 2024 00:00:0{number % 9} +0000\n"
        head += "Content-Type: text/plain; charset=utf-8\n"
        found.append(f"{head}Content-Transfer-Encoding: base64\n\n{body}\n")
    return "".join(found).encode("utf-8", "replace")


def _tar(records: Sequence[Record]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number, record in enumerate(_mappings(records)):
            meta = {key: value for key, value in record.items() if key != "text"}
            for ending, data in (
                ("txt", text_of(record).encode("utf-8", "replace")),
                ("json", json.dumps(meta).encode()),
            ):
                member = tarfile.TarInfo(f"shard/{number:04d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def _zstd(data: bytes) -> bytes:
    sink = io.BytesIO()
    with ZstdFile(sink, "w") as file:
        file.write(data)
    return sink.getvalue()


def _lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as file:
        file.write(data)
    return sink.getvalue().to_pybytes()


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": _zstd,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lz4": _lz4,
}
_WRITERS: dict[str, Callable[[Sequence[Record]], bytes]] = {
    ".jsonl": _lines,
    ".json": lambda records: json.dumps(_mappings(records)).encode(),
    ".csv": lambda records: _separated(records, "excel"),
    ".tsv": lambda records: _separated(records, "excel-tab"),
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _feather,
    "Posts.xml": _posts,
    "wiki_00": _wikiextractor,
    ".mbox": _mail,
    ".tar": _tar,
    ".box": lambda records: "".join(f"b{n}\n\n{text_of(r)}%%\n" for n, r in enumerate(records)).encode(
        "utf-8", "replace"
    ),
    ".pdf": lambda records: make_pdf(
        [re.sub(r"[^ -~\n]", "", text_of(r)).split("\n")[:40] or ["-"] for r in records]
    ),
}

# --- files that are made of their name alone ---

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<fim_prefix>",
    "<fim_middle>",
    "<fim_suffix>",
    "<|pad|>",
]
_SENTENCES = [prose(seed, 3) for seed in range(60)]
HOOKS = '''
import json

INPUTS = []


def exclamations(columns):
    return [text.count("!") for text in columns["text"]]


def vowels(columns):
    return [sum(text.count(letter) for letter in "aeiou") / (1 + len(text)) for text in columns["text"]]


def without_marks(columns):
    return [text.replace("grain", "corn") for text in columns["text"]]


def short_lines(columns):
    return ["\\n".join(line for line in text.split("\\n") if len(line) < 2000) for text in columns["text"]]


def read_box(path, separator="%%"):
    for number, part in enumerate(path.read_text().split(f"{separator}\\n")):
        doc_id, _, text = part.partition("\\n\\n")
        yield {"id": doc_id, "text": text, "quality": number % 7}


class Letters:
    """A byte is a token; one more ends a document."""

    def __init__(self, end="<|endoftext|>"):
        self.vocab_size, self.end = 257, end
        self.specials = {end: 256}

    def encode_batch(self, texts):
        return [list(text.encode()) for text in texts]

    def decode(self, ids):
        return bytes(id for id in ids if id < 256).decode(errors="replace")

    def token_id(self, token):
        return self.specials.get(token)
'''


def _byte_bpe(size: int = 400) -> bytes:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        _SENTENCES,
        tokenizers.trainers.BpeTrainer(
            vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return trained.to_str().encode()


def _sentencepiece(kind: str) -> bytes:
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES),
        model_writer=sink,
        model_type=kind,
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        num_threads=1,
        character_coverage=1.0,
    )
    return sink.getvalue()


def _ranks() -> bytes:
    tokens = [bytes([byte]) for byte in range(256)] + [
        b"th",
        b"the",
        b" the",
        b"wi",
        b"with",
        b" with",
        b"in",
        b"ing",
    ]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def _trained(kind: str) -> bytes:
    """A model that the mill trains: an input here, whose making is not what is tried."""
    import tokmill

    with tempfile.TemporaryDirectory() as place:
        for name, seeds in (("good", range(30)), ("bad", range(30, 60))):
            lines = [json.dumps({"text": prose(seed, 4) + f" {name}" * (seed % 3)}) for seed in seeds]
            (Path(place) / f"{name}.jsonl").write_text("\n".join(lines))
        negative = [f"{place}/bad.jsonl"] if kind != "perplexity" else ()
        out = Path(place) / "model"
        tokmill.score_train(positive=f"{place}/good.jsonl", negative=negative, out=out, kind=kind)  # type: ignore[arg-type]
        file = (
            out if out.is_file() else next(path for path in sorted(out.iterdir()) if path.suffix != ".json")
        )
        return file.read_bytes()


def _fasttext() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        return write_model(Path(place) / "good.bin").read_bytes()


_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
_MADE: dict[str, Callable[[], bytes]] = {
    "hooks.py": HOOKS.encode,
    "tok/tokenizer.json": _byte_bpe,
    "tok/tokenizer_config.json": lambda: b'{"eos_token": "<|endoftext|>"}',
    "models/bpe.json": _byte_bpe,
    "models/unigram.model": lambda: _sentencepiece("unigram"),
    "models/pieces.model": lambda: _sentencepiece("bpe"),
    "models/ranks.tiktoken": _ranks,
    "models/good.bin": _fasttext,
    "models/linear.model": lambda: _trained("linear"),
    "models/weights.model": lambda: _trained("importance"),
    "models/language.model": lambda: _trained("perplexity"),
    "chat_template.jinja": _TEMPLATE.encode,
    "lists/hosts.txt": lambda: b"flour.example\nhttp://mill.example/casino/3\n",
    "benchmark.jsonl": lambda: b"".join(
        json.dumps({"question": prose(seed, 2), "answer": prose(seed + 1, 1)}).encode() + b"\n"
        for seed in range(0, 990, 90)
    ),
}


@functools.cache
def made(path: str) -> bytes:
    return _MADE[path]()


def made_files(mentioned: str) -> list[str]:
    """The files that a recipe, as text, names; of the directory of a tokenizer, all."""
    return [path for path in _MADE if path in mentioned or path.split("/")[0] + '/"' in mentioned]
