"""The attributes of a start tag."""

from __future__ import annotations

import re
from html import unescape

from tokmill.kernels.jit import Bytes

_NAME = re.compile(rb"<([^\s/>]+)")
_ATTRIBUTE = re.compile(
    rb"""([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+)))?"""
)


def attributes_of(data: Bytes, start: int, end: int) -> dict[str, str]:
    """Names in lower case; the first of a name counts."""
    tag = data[start:end].tobytes()
    name = _NAME.match(tag)
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag, name.end() if name else 0):
        value = match[match.lastindex or 1] if (match.lastindex or 1) > 1 else b""
        key = match[1].decode(errors="replace").lower()
        attributes.setdefault(key, unescape(value.decode(errors="replace")))
    return attributes
