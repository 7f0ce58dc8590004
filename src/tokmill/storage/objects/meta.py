"""What a store tells of an object, without sending it and with it."""

from __future__ import annotations

from typing import NamedTuple


class Meta(NamedTuple):
    key: str
    size: int
    etag: str  # changes whenever the bytes do
    modified: str  # as text: nothing is computed from it


class Loaded(NamedTuple):
    data: bytes
    etag: str


def wrong_etag(scheme: str) -> str:
    """Of no object: a write or read on its condition must be refused."""
    return '"none"@1' if scheme == "gs" else '"none"'
