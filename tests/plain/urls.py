"""URLs in one form (docs/urls.md): urllib and RFC 3986 step by step, one URL at a time."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes, urlsplit

TRACKING = re.compile(
    "utm_.*|mtm_.*|gclid|gclsrc|dclid|gbraid|wbraid|srsltid|_ga|_gl|fbclid|igshid|msclkid|yclid|twclid|ttclid"
    "|li_fat_id|epik|mc_cid|mc_eid|_hsenc|_hsmi|mkt_tok|vero_id|pk_campaign|pk_kwd",
    re.IGNORECASE,
)
UNRESERVED = "-._~"
SUB_DELIMS = "!$&'()*+,;="
BLANK = "".join(map(chr, range(0x21)))


def normalize_url(url: str) -> str | None:
    url = url.strip(BLANK)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    has_scheme, is_relative = scheme is not None, url.startswith("//")
    name = scheme[1].lower() if scheme else "https"
    rest = url[scheme.end() :] if scheme else url[2:] if is_relative else url
    cut = re.search("[/?#]", rest)
    authority, after = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    if "@" in authority and not has_scheme and not is_relative:
        return None
    place = authority.rpartition("@")[2]
    parts = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::([0-9]*))?", place, re.DOTALL)
    if parts is None:
        return None
    host, port = ascii_host(parts[1]), int(parts[2] or 0)
    if host is None or port > 65535 or ("." not in host and not has_scheme and not is_relative):
        return None
    web = name in ("http", "https")
    while re.match(r"www\.[^.]+\.", host):
        host = host[4:]
    shown = f":{port}" if port and not (web and port in (80, 443)) else ""
    # urlsplit takes tabs and line ends out; they are escaped here, so that it has none
    split = urlsplit("//host" + re.sub("[\t\r\n]", lambda m: quote(m[0]), after))
    path = without_dots(escaped(split.path, SUB_DELIMS + ":@/")).rstrip("/") or "/"
    query = "&".join(
        one
        for one in (escaped(part, SUB_DELIMS + ":@/?") for part in split.query.split("&"))
        if one and not TRACKING.fullmatch(one.partition("=")[0])
    )
    return f"{'https' if web else name}://{host}{shown}{path}{'?' if query else ''}{query}"


def ascii_host(host: str) -> str | None:
    if host.startswith("["):
        return host.lower()
    if "%" in host or not host.isascii():
        try:
            host = unquote_to_bytes(host).decode()
        except UnicodeDecodeError:
            return None
        host = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", host).lower())
        labels = host.replace("\u3002", ".").split(".")
        host = ".".join(
            label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in labels
        )
    host = host.lower().removesuffix(".")
    return host if all(re.fullmatch("[a-z0-9_-]+", label) for label in host.split(".")) else None


def escaped(text: str, allowed: str) -> str:
    """Each escape is read and written again; a percent sign that begins none is one itself."""
    parts = re.split("(%[0-9A-Fa-f]{2})", text)
    return "".join(
        quote(part, safe=UNRESERVED + allowed)
        if number % 2 == 0
        else quote(unquote_to_bytes(part), safe=UNRESERVED)
        for number, part in enumerate(parts)
    )


def without_dots(path: str) -> str:
    """RFC 3986, 5.2.4."""
    out = ""
    while path:
        if path.startswith("../"):
            path = path[3:]
        elif path.startswith("./"):
            path = path[2:]
        elif path.startswith("/./") or path == "/.":
            path = "/" + path[3:]
        elif path.startswith("/../") or path == "/..":
            path = "/" + path[4:]
            out = out.rpartition("/")[0]
        elif path in (".", ".."):
            path = ""
        else:
            segment = re.match("/?[^/]*", path)
            assert segment is not None
            out += segment[0]
            path = path[segment.end() :]
    return out


def is_blocked(url: str, domains: set[str], urls: set[str]) -> tuple[str | None, str | None]:
    """Of a URL in one form: the shortest domain that it is of, the shortest URL that it is, or is below."""
    rest = url.partition("://")[2]
    place, slash, after = rest.partition("/")
    host = re.fullmatch(r"(\[.*\]|[^:]*)(?::\d+)?", place)
    assert host is not None
    labels = host[1].split(".")
    ends = [".".join(labels[at:]) for at in reversed(range(len(labels)))]
    starts = [place + slash + after[: m.start()] for m in re.finditer("[/?&]|$", after)]
    return next((d for d in ends if d in domains), None), next((u for u in starts if u in urls), None)
