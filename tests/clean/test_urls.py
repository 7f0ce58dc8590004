"""URLs in one form: by hand, and against the slow twin; and in lists of domains and URLs."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tokmill
from plain import urls as plain_urls
from tokmill.clean.url_policy import check_domain
from tokmill.clean.urls import meta_strings, normalize_urls
from tokmill.errors import RecipeError
from tokmill.kernels.urls import find_entries, make_entries
from tokmill.schema import string_column

ONE_PAGE = [
    "https://example.com/a/b?q=1",
    "http://example.com/a/b?q=1",
    "HTTP://EXAMPLE.com./a/b?q=1",
    "http://www.example.com:80/a/b/?q=1#part",
    "https://me:secret@example.com:443/a/./x/../b?q=1",
    "//example.com//../a/b///?&q=1&",
    "example.com/%61/b?utm_source=feed&q=1&fbclid=xyz",
    " https://example.com/a/b?UTM_Campaign=x&q=%31\n",
]
APART = [
    "https://example.com/a/b?q=1",
    "https://example.com/a/B?q=1",
    "https://example.com/a%2Fb?q=1",
    "https://example.com/a/b?q=1&r=2",
    "https://example.com/a/b?r=2&q=1",
    "https://example.com:8080/a/b?q=1",
    "https://blog.example.com/a/b?q=1",
    "ftp://example.com/a/b?q=1",
    "https://example.com/a/b?utmost=1",
    "https://example.com/a//b?q=1",
]
NONE = [
    "",
    " ",
    "page",
    "mailto:a@b.c",
    "a@b.c",
    "urn:isbn:12",
    "http://",
    "http:///x",
    "http://a b/",
    "/a/b",
]
NONE += [
    "http://a..b/",
    "http://a:99999/",
    "http://a:b/",
    "http://[::1/",
    "http://%ff.com/",
    "http://a%2Fb.c/",
]


def one(url: str) -> str | None:
    found: list[str | None] = tokmill.normalize_urls([url])
    return found[0]


def test_spellings_of_one_page_are_one_and_those_of_others_are_not() -> None:
    assert set(tokmill.normalize_urls(ONE_PAGE)) == {"https://example.com/a/b?q=1"}
    assert len(set(tokmill.normalize_urls(APART))) == len(APART)


def test_what_is_no_url_is_null() -> None:
    assert tokmill.normalize_urls([*NONE, None]) == [None] * (len(NONE) + 1)


@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("http://München.de/Straße", "https://xn--mnchen-3ya.de/Stra%C3%9Fe"),
        ("http://xn--MNCHEN-3ya.de/Stra%c3%9fe", "https://xn--mnchen-3ya.de/Stra%C3%9Fe"),
        ("http://m%C3%BCnchen.de", "https://xn--mnchen-3ya.de/"),
        ("http://例え。テスト/", "https://xn--r8jz45g.xn--zckzah/"),
        ("http://[2001:DB8::1]:8080/x", "https://[2001:db8::1]:8080/x"),
        ("https://www.com/", "https://www.com/"),
        ("http://www.www.example.org", "https://example.org/"),
        ("https://a.b/%7Euser/%zz/100%", "https://a.b/~user/%25zz/100%25"),
        ("https://a.b/?a[]=x y&b", "https://a.b/?a%5B%5D=x%20y&b"),
        ("https://a.b/?gclid=1", "https://a.b/"),
        ("https://a.b/../../c/..", "https://a.b/"),
    ],
)
def test_by_hand(given_url: str, expected: str) -> None:
    assert one(given_url) == expected


_HOSTS = st.sampled_from(
    [
        "a.b",
        "WWW.a.b",
        "www.www.com",
        "é.fr",
        "%41.b",
        "a",
        "[::1]",
        "a.b.",
        "",
        "a..b",
        "x y",
        "ß。c",
        "%ff.c",
    ]
)
_BITS = st.text(st.sampled_from("aZ09-._~%2eF/?&=#:@!$'()*+,;[]{}|\\^` \"<>é例\t\u2028"), max_size=12)
_NAMES = st.sampled_from(["utm_x", "UTM_", "utm", "fbclid", "fbclidx", "_ga", "q", "mc%5Fcid", ""])
_URLS = st.builds(
    lambda scheme, user, host, port, path, name, rest: f"{scheme}{user}{host}{port}{path}{name}{rest}",
    st.sampled_from(["http://", "HTTPS://", "ftp://", "//", "", " http://", "1x://", "a+b.c://", "http:/"]),
    st.sampled_from(["", "", "u@", "u:p@", "@"]),
    _HOSTS,
    st.sampled_from(["", ":", ":80", ":443", ":0080", ":8080", ":65536", ":8a", ":99999999999999999999"]),
    st.one_of(st.just(""), _BITS.map("/".__add__), _BITS.map("/a/../".__add__), st.just("/%2e%2E/.%2e/x/.")),
    st.one_of(st.just(""), _NAMES.map("?".__add__)),
    st.one_of(st.just(""), _BITS, _BITS.map("=".__add__), _BITS.map("&".__add__)),
)


@given(st.lists(st.one_of(_URLS, _BITS), max_size=8))
@example(["http://.."])
@example(["http://a.b/%2", "http://a.b/%", "?", "[::1]/x"])
def test_the_kernel_does_what_urllib_and_the_rfc_do(urls: list[str]) -> None:
    found = normalize_urls(pa.array(urls, pa.large_string())).to_pylist()
    assert found == [plain_urls.normalize_url(url) for url in urls]


@given(st.lists(_URLS, max_size=8))
def test_the_one_form_of_the_one_form_is_itself(urls: list[str]) -> None:
    once = normalize_urls(pa.array(urls, pa.large_string()))
    assert normalize_urls(once).to_pylist() == once.to_pylist()


def test_a_slice_of_a_column_and_its_nulls_stay_where_they_are() -> None:
    column = pa.array(["x", "a.b/c", None, "é.fr", "a.b/"], pa.string()).slice(1)
    assert normalize_urls(column).to_pylist() == [
        "https://a.b/c", None, "https://xn--9ca.fr/", "https://a.b/",
    ]  # fmt: skip


# --- what a document says of itself ---

_VALUES = st.one_of(
    st.none(),
    st.text(st.sampled_from('aé"\\\n,'), max_size=5),
    st.integers(),
    st.lists(st.text("ab", max_size=2), max_size=2),
)


@given(
    st.lists(st.one_of(st.none(), st.dictionaries(st.sampled_from(["url", "a b", "é"]), _VALUES)), max_size=9)
)
def test_a_key_of_meta_is_what_json_reads(rows: list[dict[str, object] | None]) -> None:
    meta = pa.array([None if row is None else json.dumps(row) for row in rows], pa.string())
    for key in ("url", "a b", "é"):
        expected = []
        for row in rows:
            value = (row or {}).get(key)
            value = ", ".join(value) or None if isinstance(value, list) else value
            expected.append(value if isinstance(value, str) else None)
        assert meta_strings(meta, key).to_pylist() == expected


# --- entries of lists ---

_LABELS = st.lists(st.sampled_from(["a", "bc", "com", "x-y"]), min_size=1, max_size=4).map(".".join)
_PATHS = st.lists(st.sampled_from(["p", "q", "pq", ""]), max_size=3).map("/".join)
_QUERIES = st.sampled_from(["", "?p", "?p&q=1", "?p=/q"])


@given(
    st.lists(st.tuples(_LABELS, _PATHS, _QUERIES), max_size=12),
    st.lists(_LABELS, max_size=6),
    st.lists(st.tuples(_LABELS, _PATHS.filter(bool)).map("/".join), max_size=6),
)
def test_entries_are_found_as_in_sets(
    pages: list[tuple[str, str, str]], domains: list[str], urls: list[str]
) -> None:
    entries = [*domains, *urls, "unused.org", "unused.org/path"]
    table = make_entries(*string_column(pa.array(entries, pa.large_string()))[:2])
    column = [f"https://{host}/{path}{query}" for host, path, query in pages] + ["https://[::1]:80/p"]
    found = find_entries(*string_column(pa.array(column, pa.large_string()))[:2], table)
    told = [[entries[number] if number >= 0 else None for number in part.tolist()] for part in found]
    assert list(zip(*told, strict=True)) == [
        plain_urls.is_blocked(url, set(domains), set(urls)) for url in column
    ]


def test_a_hundred_thousand_entries_are_all_found_and_no_other() -> None:
    entries = [f"site{number}.example.org" for number in range(100_000)]
    table = make_entries(*string_column(pa.array(entries, pa.large_string()))[:2])
    asked = [f"https://sub.site{number}.example.org/" for number in range(0, 200_000, 7)]
    domains, urls = find_entries(*string_column(pa.array(asked, pa.large_string()))[:2], table)
    assert domains.tolist() == [n if n < 100_000 else -1 for n in range(0, 200_000, 7)]
    assert set(urls.tolist()) == {-1}


@pytest.mark.parametrize("domain", ["a b", "", "example.com/page", "mailto:x"])
def test_a_domain_that_is_none_is_refused(domain: str) -> None:
    with pytest.raises(RecipeError, match="is no domain"):
        check_domain(domain)
