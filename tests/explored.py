"""A run to explore, an explorer on a socket of its own, and a client that shares nothing with it."""

from __future__ import annotations

import http.client
import json
import random
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokmill
from cleaned import prose
from mill import write_recipe
from written import Json


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Requests over a socket, with the token unless it is told otherwise."""

    def __init__(self, explorer: Any) -> None:
        address = urllib.parse.urlsplit(explorer.url)
        assert address.hostname is not None
        assert address.port is not None
        self.host, self.port = address.hostname, address.port
        self.token = urllib.parse.parse_qs(address.query)["token"][0]

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
    ) -> Answer:
        """With exactly these headers, besides Host where they have none."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, name: str, pairs: Sequence[tuple[str, object]] = (), **fields: object) -> Answer:
        query = urllib.parse.urlencode([*pairs, *fields.items()])
        return self.ask(f"/api/{name}?{query}", {"Authorization": f"Bearer {self.token}"})

    def post(self, name: str, told: Json) -> Answer:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return self.ask(f"/api/{name}", headers, method="POST", body=json.dumps(told).encode())

    def json(self, name: str, pairs: Sequence[tuple[str, object]] = (), **fields: object) -> Any:
        answer = self.get(name, pairs, **fields)
        assert answer.status == 200, answer.body[:500]
        return answer.json


NULLS = "NUL \0 here"
HOSTILE: dict[str, str] = {
    "script": "<script>window.hacked = 1</script> " + prose(1, 3),
    "img": '<img src=x onerror="window.hacked = 1"> ' + prose(2, 3),
    "svg": "<svg/onload=window.hacked=1> " + prose(3, 3),
    "closing": "</textarea></title></style></script><script>window.hacked=1</script> " + prose(4, 3),
    "template": "{{constructor.constructor('window.hacked=1')()}} ${window.hacked=1} " + prose(5, 3),
    "javascript": "javascript:window.hacked=1 data:text/html,<script>1</script> " + prose(6, 3),
    "bidi": "\u202egnirts\u202c \u2066isolate\u2069 \u200f " + prose(7, 3),
    "zero-width": "ze\u200bro\u200c wi\u200ddth\ufeff\u2060 " + prose(8, 3),
    "nul": NULLS + " " + prose(9, 3),
    "escape": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m " + prose(10, 3),
    "noncharacters": "\ufffe\uffff\U0010ffff " + prose(11, 3),
    "separators": "one\u2028two\u2029three " + prose(12, 3),
    "astral": "😀👩\u200d👩\u200d👧 𝕏 " + prose(13, 3),
    "combining": "Z" + "\u0301" * 500 + " " + prose(14, 3),
    "long-line": "x" * 5_000_000,
    "many-lines": "\n" * 50_000 + prose(15, 3),
    "json": '{"__proto__": {"polluted": 1}} ' + prose(16, 3),
    "crlf": "Set-Cookie: a=b\r\n\r\n<html> " + prose(17, 3),
    "comment": "<!-- --!> <![CDATA[ ]]> <?php ?> " + prose(18, 3),
    "entities": "&lt;script&gt; &#x3c; &amp;amp; " + prose(19, 3),
    "__proto__": prose(20, 4),
    "constructor": prose(21, 4),
    "prototype": prose(22, 4),
    "hasOwnProperty": prose(23, 4),
    "toString": prose(24, 4),
    "__defineGetter__": prose(25, 4),
    "valueOf": prose(26, 4),
    "../../../../etc/passwd": prose(27, 4),
    "..%2f..%2fetc%2fpasswd": prose(28, 4),
    "/etc/passwd": prose(29, 4),
    "C:\\windows\\system32": prose(30, 4),
    "file:///etc/passwd": prose(31, 4),
    "<b>bold</b>": prose(32, 4),
    '"><script>window.hacked=1</script>': prose(33, 4),
    "' OR 1=1 --": prose(34, 4),
    "'; DROP TABLE documents; --": prose(35, 4),
    "a,b,c": prose(36, 4),
    "a:b..c": prose(37, 4),
    "!not": prose(38, 4),
    "null": prose(39, 4),
    "%00": prose(40, 4),
    "%": prose(41, 4),
    "a&b=c#d?e": prose(42, 4),
    "\u202eevil": prose(43, 4),
    "\x1b[31mred": prose(44, 4),
    "ünïcödé 😀": prose(45, 4),
    " leading and trailing ": prose(46, 4),
    "i" * 20_000: prose(47, 4),
    "nul\0id": prose(48, 4),
    "line\nbreak": prose(49, 4),
}

MAIL = " Write to ann.lee@brook-mill.net about the mill."


def corpus() -> dict[str, list[tuple[str, str]]]:
    """Two sources: id and text, in order. Every rule has documents on both sides of it; near duplicates,
    equal ones, edits, and two documents of one id."""
    chance = random.Random(5)
    web = [(f"web-{n:03d}", prose(100 + n, 2 + n % 9) + " 12345 678." * (n % 7)) for n in range(150)]
    web += [(f"mail-{n}", prose(300 + n, 5) + MAIL * (n + 1)) for n in range(3)]
    base = prose(400, 30)
    for n in range(6):
        words = base.split()
        words[chance.randrange(len(words))] = f"other{n}"
        web.append((f"near-{n}", " ".join(words)))
    web += [("same-1", prose(500, 6)), ("same-2", prose(500, 6)), ("twice", prose(501, 6)), ("short", "tiny")]
    books = [(f"book-{n:02d}", prose(600 + n, 6 + n % 5)) for n in range(40)]
    books += [("twice", prose(700, 7)), ("cafe", "Cafe\u0301 by the river. " + prose(701, 5))]
    books += list(HOSTILE.items())
    return {"web": web, "books": books}


def write_corpus(directory: Path, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for source, documents in corpus().items():
        lines = [json.dumps({"id": name, "text": text}) for name, text in documents]
        (directory / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": "looked-at",
        "sources": [
            {"name": "web", "domain": "web", "license": "CC-BY-4.0", "files": "web.jsonl"},
            {"name": "books", "domain": "prose", "license": "MIT", "files": "books.jsonl"},
        ],
        "shards": {"megabytes": 1},
        "normalize": {"unicode": "NFC", "nul": "keep", "newlines": "keep"},
        "filters": [
            {"measure": "words", "min": 50, "reason": "too_few_words"},
            {"measure": "digit_share", "max": 0.08, "reason": "mostly_digits"},
            {"measure": "chars", "min": 10, "reason": "too_short"},
        ],
        "domains": None,
        "redact": ["email"],
        "dedup": {"exact": "folded", "near": {"threshold": 0.7}},
        "split": {"valid_fraction": "0.1"},
    }
    return write_recipe(directory, **{**recipe, **sections})


def mill_corpus(directory: Path, **sections: Any) -> Path:
    """The directory of the run."""
    tokmill.run(write_corpus(directory, **sections), directory / "out", workers=1)
    return directory / "out"
