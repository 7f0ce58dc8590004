"""Which pages a corpus may not have: by domain, by URL, by words in the URL, and by what robots are told.

    lists ─ lines ─ one form ─┐
    domains of the recipe ────┴─> Blocklist: entries in a hash table, each with the list that it is of
    meta.url ─ one form ─┬─ a domain, or a URL, of the blocklist ─> blocked_domain, blocked_url
                         ├─ a word ───────────────────────────────> blocked_word
                         └─ there is none ────────────────────────> no_url, where `unknown: drop`
    meta.robots ─ its words ─ one that is not wanted ──────────────> robots_<word>

    domains   example.com             the domain with all that ends in .example.com
    urls      blog.org/spam           the page, what is below it (blog.org/spam/…) and its queries
    words     casino                  between characters that are no letters or digits
              *casino, casino*, *casino*    also as the end, the beginning or a part of a longer word

A list is text, one entry per line, `#` begins a comment: an entry with a path or a query is a URL, others are
domains. Those of the University of Toulouse (UT1) are directories with the files `domains` and `urls`. The
table takes 16 to 24 bytes an entry, and its text: 186 MB for 4.6 million domains.
"""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.clean.urls import URL_NORMALIZATION, meta_strings, normalize_urls
from tokmill.errors import EmptyGlob, InputChanged, InputError, RecipeError
from tokmill.kernels import urls as kernel
from tokmill.schema import string_column
from tokmill.storage.blocks import open_stream, read_exactly
from tokmill.storage.location import InputFile, file_sha256, is_url
from tokmill.storage.patterns import find_files

BLOCKED_DOMAIN, BLOCKED_URL, BLOCKED_WORD, NO_URL = "blocked_domain", "blocked_url", "blocked_word", "no_url"
ROBOTS = "robots_"  # and the word

# What a category of UT1 has; `expressions` are patterns, and of the firewall that the lists were made for.
_UT1_FILES = ("domains", "urls")
_PACKED = ("", ".gz", ".zst", ".bz2", ".xz")
_MAX_BAD_SHARE = 0.01  # of a list's lines: more are another kind of file
_AT_ONCE = 4 << 20  # bytes of a list

_SCHEME = r"^[a-zA-Z][a-zA-Z0-9+.-]*://"
_DOMAIN_ALONE = r"^(\[[^\]]*\]|[^/:]*)(?::[0-9]+)?/$"
_NOT_OF_WORDS = "[^a-z0-9]"
_NONE_MEANS = ("noindex", "nofollow")


class UrlPolicy(msgspec.Struct, frozen=True):
    """The content of the lists is an input of the step."""

    field: str
    domains: tuple[str, ...]
    words: tuple[str, ...]  # in lower case
    lists: tuple[str, ...]  # names of the files
    unknown: Literal["keep", "drop"]
    normalization: str = URL_NORMALIZATION


class RobotsPolicy(msgspec.Struct, frozen=True):
    field: str
    drop: tuple[str, ...]


class Blocklist(NamedTuple):
    entries: kernel.Entries
    names: tuple[str, ...]  # of the lists
    starts: NDArray[np.int64]  # the first entry of each

    def told(self, number: int) -> str:
        """An entry, and the list it is of."""
        data, offsets = self.entries.data, self.entries.offsets
        entry = data[offsets[number] : offsets[number + 1]].tobytes().decode()
        owner = self.names[int(np.searchsorted(self.starts, number, side="right")) - 1]
        return f"{entry} of {owner}"


class Fault(NamedTuple):
    """Documents that are out for one reason, with the URL and what it was found by."""

    reason: str
    rows: NDArray[np.bool_]
    details: Any


# --- lists ---


def find_lists(pattern: str, base: Path) -> list[InputFile]:
    """Files; of a directory, `domains` and `urls`. Matching nothing is an error."""
    if is_url(pattern):
        raise RecipeError(
            "a list of URLs has to be a file here",
            where=pattern,
            next="copy it to a directory of this machine and name it there",
        )
    wanted = str(Path(pattern).expanduser())
    folders = [base / match for match in sorted(glob.glob(wanted, root_dir=base)) if (base / match).is_dir()]  # noqa: PTH207
    found = [
        InputFile(f"{path.parent.name}/{path.name}", path, path.stat().st_size, path.stat().st_mtime_ns)
        for folder in folders
        for path in sorted(folder / (name + suffix) for name in _UT1_FILES for suffix in _PACKED)
        if path.is_file()
    ]
    if folders and not found:
        raise EmptyGlob(
            "has no file `domains` or `urls`",
            where=pattern,
            next="name the files of the list, or a directory of UT1 such as blacklists/adult",
        )
    if found:
        return found
    return find_files(pattern, base)


def load_blocklist(paths: Sequence[Path], digests: Sequence[str], policy: UrlPolicy) -> Blocklist | None:
    """None where nothing is listed. Kept for the tasks that follow: a worker has one or two."""
    if not policy.lists and not policy.domains:
        return None
    assert len(paths) == len(policy.lists), "every list that is named is given"
    return _load(tuple(paths), tuple(digests), policy.lists, policy.domains)


@functools.lru_cache(maxsize=2)
def _load(
    paths: tuple[Path, ...], digests: tuple[str, ...], names: tuple[str, ...], domains: tuple[str, ...]
) -> Blocklist:
    parts = [_entries(pa.array(domains, pa.large_string()))]
    for path, digest in zip(paths, digests, strict=True):
        if file_sha256(path) != digest:
            raise InputChanged("the list changed while it was in use", where=str(path), next="run again")
        parts.append(_load_list(path))
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    column = string_column(pa.concat_arrays(parts))
    return Blocklist(kernel.make_entries(column.data, column.offsets), ("urls.block.domains", *names), starts)


def _load_list(path: Path) -> Any:
    parts, bad, total, first_bad = [pa.array([], pa.large_string())], 0, 0, ""
    for lines in _read_lines(path):
        entries = _entries(lines)
        if entries.null_count:
            first_bad = first_bad or lines.filter(entries.is_null())[0].as_py()
        bad, total = bad + entries.null_count, total + len(lines)
        parts.append(entries.drop_null())
    if bad > _MAX_BAD_SHARE * total:
        raise InputError(
            f"{bad:,} of {total:,} lines are neither domains nor URLs, the first of them {first_bad[:80]!r}",
            where=str(path),
            next="a list has one domain or URL per line",
        )
    return pa.concat_arrays(parts)


def _read_lines(path: Path) -> Iterator[Any]:
    """A few megabytes at a time, without comments."""
    with open_stream(path) as stream:
        rest = b""
        while piece := read_exactly(stream, _AT_ONCE, path):
            whole, _, rest = (rest + piece).rpartition(b"\n")
            yield _lines(whole)
        yield _lines(rest)


def _lines(content: bytes) -> Any:
    lines = pa.array(content.decode("utf-8", "replace").removeprefix("\ufeff").split("\n"), pa.large_string())
    if b"#" in content:
        lines = pc.replace_substring_regex(lines, r"(^|\s)#.*$", "")
    lines = pc.utf8_trim_whitespace(lines)
    return lines.filter(pc.not_equal(lines, ""))


def _entries(lines: Any) -> Any:
    """As they are looked up: without a scheme, a domain without its slash; null where one is no entry."""
    relative, nothing = (pa.scalar(text, pa.large_string()) for text in ("//", ""))
    hosts = pc.binary_join_element_wise(relative, lines, nothing)
    is_odd = pc.match_substring_regex(lines, rf"{_SCHEME}|^\*?\.")
    if pc.any(is_odd).as_py():  # few lists have such
        odd = pc.replace_substring_regex(lines.filter(is_odd), r"^\*?\.", "//")
        hosts = pc.replace_with_mask(hosts, is_odd, odd)
    normal = pc.replace_substring_regex(normalize_urls(hosts), _SCHEME, "")
    return pc.replace_substring_regex(normal, _DOMAIN_ALONE, r"\1")


def check_domain(domain: str) -> None:
    """RecipeError where it is none."""
    (entry,) = _entries(pa.array([domain], pa.large_string())).to_pylist()
    if entry is None or "/" in entry:
        raise RecipeError(
            f"{domain!r} is no domain",
            where="urls.block.domains",
            next="write `domains: [example.com]`; URLs are entries of files, in `urls.block.lists`",
        )


# --- verdicts ---


def urls_of(meta: Any, policy: UrlPolicy) -> Any:
    """In one form; null where a document has none."""
    return normalize_urls(meta_strings(meta, policy.field))


def judge_urls(urls: Any, policy: UrlPolicy, blocklist: Blocklist | None) -> Iterator[Fault]:
    """Of URLs in one form. A document may have several faults: the first counts."""
    if blocklist is not None:
        column = string_column(urls)
        found = kernel.find_entries(column.data, column.offsets, blocklist.entries)
        for reason, numbers in zip((BLOCKED_DOMAIN, BLOCKED_URL), found, strict=True):
            rows = numbers >= 0
            entries = [blocklist.told(number) for number in numbers[rows].tolist()]
            yield Fault(reason, rows, _details(urls, rows, entries))
    if policy.words:
        pattern = "|".join(f"(?:{_pattern(word)})" for word in policy.words)
        lowered = pc.ascii_lower(urls)
        rows = np.asarray(pc.match_substring_regex(lowered, pattern).fill_null(False))
        words = [_first_word(url, policy.words) for url in lowered.filter(pa.array(rows)).to_pylist()]
        yield Fault(
            BLOCKED_WORD, rows, _details(urls, rows, [f"{word} of urls.block.words" for word in words])
        )
    if policy.unknown == "drop":
        yield Fault(NO_URL, np.asarray(urls.is_null()), pa.nulls(len(urls), pa.string()))


def _pattern(word: str) -> str:
    core = re.escape(word.strip("*"))
    before = "" if word.startswith("*") else f"(?:^|{_NOT_OF_WORDS})"
    after = "" if word.endswith("*") else f"(?:{_NOT_OF_WORDS}|$)"
    return f"{before}{core}{after}"


def _first_word(url: str, words: Sequence[str]) -> str:
    """In the order of the recipe."""
    return next(word for word in words if re.search(_pattern(word), url))


def _details(urls: Any, rows: NDArray[np.bool_], found_by: list[str]) -> Any:
    mask = pa.array(rows)
    told = [f"{url}: {what}" for url, what in zip(urls.filter(mask).to_pylist(), found_by, strict=True)]
    return pc.replace_with_mask(pa.nulls(len(urls), pa.string()), mask, pa.array(told, pa.string()))


def judge_robots(meta: Any, policy: RobotsPolicy) -> Iterator[Fault]:
    """`noindex, noai`, of all robots or of one (`googlebot: noindex`); `none` is noindex and nofollow."""
    coded = meta_strings(meta, policy.field).dictionary_encode()
    values = coded.dictionary.to_pylist()
    said = [_robot_words(value) for value in values]
    codes = np.asarray(coded.indices.fill_null(len(values)))
    for word in policy.drop:
        rows = np.array([*(word in words for words in said), False], np.bool_)[codes]
        yield Fault(ROBOTS + word.replace("-", "_"), rows, coded.cast(pa.string()))


def _robot_words(value: str) -> set[str]:
    words = set(re.findall(r"[a-z0-9_-]+", value.lower()))
    return words | set(_NONE_MEANS) if "none" in words else words
