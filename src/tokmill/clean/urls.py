"""What a document says of the page that it comes from, and URLs in one form.

    meta ─ one key of every object ─> strings, null where there is none
    URLs ─ kernel ─┬─> one form
                   └─ a host beyond ASCII ─ Unicode, Punycode ─ kernel ─> one form

The one form is for comparing, and not for fetching: `meta` keeps the URL as it came.

    scheme and host   in lower case; http is https; a user, `www.`, a last dot and the ports 80 and 443 go
    host              Unicode in NFKC and lower case, as Punycode: `xn--…` and the letters are one
    path              `.` and `..` resolved; slashes at its end go, but for `/` alone
    query             in its order; without parameters of TRACKING, and without empty ones; none: no `?`
    %xx               in capitals; what needs no escape has none, what needs one has it (RFC 3986, 6.2.2)
    fragment          goes
    no scheme         `//host/…` and `host.tld/…` are https

Anything else is no URL: `mailto:`, a path without a host, a host with a space, a port above 65535.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.kernels import urls as kernel
from tokmill.schema import large_strings, one_piece, string_column

# The rules above, and the tables that hosts are folded by: a new number is a new result.
URL_NORMALIZATION = f"1, unicode {unicodedata.unidata_version}"

# Parameters that tell how somebody came to a page, and not which page it is. Of Google (Analytics and Ads),
# Meta, Microsoft, Yandex, X, TikTok, LinkedIn, Pinterest, Mailchimp, HubSpot, Marketo, Vero, Matomo.
TRACKING = (
    "utm_*", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "srsltid", "_ga", "_gl", "fbclid", "igshid",
    "msclkid", "yclid", "twclid", "ttclid", "li_fat_id", "epik", "mc_cid", "mc_eid", "_hsenc", "_hsmi",
    "mkt_tok", "vero_id", "pk_campaign", "pk_kwd", "mtm_*",
)  # fmt: skip

_AUTHORITY = re.compile(r"([\x00-\x20]*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//|[\x00-\x20]*)([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"[a-z0-9._-]+")
_FULL_STOP = "\u3002"
# Objects of JSON that are read by one call: a call for each takes three times as long.
_AT_ONCE = 16_384


def normalize_urls(urls: Any) -> Any:
    """A string column in one form; null where it is no URL."""
    column = string_column(urls)
    found = kernel.normalize(column.data, column.offsets, _parameters())
    normal = large_strings(found.data, found.offsets)
    is_other = found.kinds == kernel.OTHER_HOST
    is_url = pa.array((found.kinds == kernel.NORMAL) & column.is_valid)
    normal = pc.if_else(is_url, normal, None)
    if is_other.any():
        others = one_piece(urls).filter(pa.array(is_other)).to_pylist()
        ascii_only = pa.array([_with_ascii_host(url) for url in others], pa.large_string())
        normal = pc.replace_with_mask(normal, pa.array(is_other), normalize_urls(ascii_only))
    return normal


@functools.cache
def _parameters() -> tuple[Any, Any]:
    names = string_column(pa.array(TRACKING, pa.large_string()))
    return names.data, names.offsets


def _with_ascii_host(url: str) -> str | None:
    """The URL with its host in Punycode; None where that cannot be."""
    match = _AUTHORITY.fullmatch(url)
    assert match is not None, "every part of it may be empty"
    before, authority, after = match.groups()
    user, at, place = authority.rpartition("@")
    host, colon, port = place.partition(":")
    try:
        spelled = unicodedata.normalize("NFKC", unquote(host, errors="strict")).lower()
        spelled = unicodedata.normalize("NFKC", spelled).replace(_FULL_STOP, ".")
        labels = [_ascii_label(label) for label in spelled.split(".")]
    except UnicodeError:
        return None
    name = ".".join(labels)
    return f"{before}{user}{at}{name}{colon}{port}{after}" if _HOST.fullmatch(name) else None


def _ascii_label(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode('ascii')}"


def meta_strings(meta: Any, key: str) -> Any:
    """What every object of the column has under `key`: a string, or a list of some, joined by commas.
    Null where it has neither."""
    decode, spelled, found = _decoder(key).decode, meta.cast(pa.string()).fill_null("{}"), []
    for start in range(0, len(meta), _AT_ONCE):
        some = spelled.slice(start, _AT_ONCE)
        whole = pc.binary_join(pa.ListArray.from_arrays([0, len(some)], some), ",")[0]
        found += [item.value for item in decode(f"[{whole.as_py()}]")]
    return pa.array([one if isinstance(one, str) else _joined(one) for one in found], pa.large_string())


def _joined(value: Any) -> str | None:
    if not isinstance(value, list):
        return None
    return ", ".join(part for part in value if isinstance(part, str)) or None


@functools.lru_cache(maxsize=16)
def _decoder(key: str) -> Any:
    """Of lists of objects, of which it looks at one key."""
    one = msgspec.defstruct("One", [("value", Any, None)], rename={"value": key})
    return msgspec.json.Decoder(list[one])  # type: ignore[valid-type]
