"""The address of an object: scheme, bucket and key; and what a store tells of it, without sending it and with it.

An address is written down and shown, so it carries no secret.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tokmill.errors import StorageError

SCHEMES = ("s3", "gs", "az", "memory")

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+)://")
_SQUEEZED = re.compile(rf"^({'|'.join(SCHEMES)}):/[^/]")
# "?" is also a wildcard: only what a signed URL carries is taken for a query
_SIGNED = re.compile(
    r"[?&](x-amz-|x-goog-|awsaccesskeyid=|googleaccessid=|signature=|sig=|sv=|token=)", re.IGNORECASE
)


class ObjectUrl(NamedTuple):
    """`key` may be empty (the bucket itself), has no leading slash, and is not percent-encoded."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def child(self, path: str) -> ObjectUrl:
        return self._replace(key=f"{self.key}/{path}" if self.key else path)


def is_url(location: object) -> bool:
    return _SCHEME.match(str(location)) is not None


def parse_url(text: str) -> ObjectUrl:
    scheme = _SCHEME.match(text)
    name = scheme[1] if scheme else ""
    if name not in SCHEMES:
        raise StorageError(
            f"{name}:// is not an object store that tokmill knows",
            where=_shown(text),
            next="give an s3://, gs://, az:// or memory:// URL, or a directory of this machine",
        )
    bucket, _, key = text[len(name) + 3 :].partition("/")
    if "@" in bucket or _SIGNED.search(text):
        raise StorageError(
            "the URL has a secret in it, and URLs are written down",
            where=_shown(text),
            next="take it out; credentials come from the environment (docs/object-storage.md)",
        )
    if not bucket:
        raise StorageError("the URL names no bucket", where=text, next=f"write {name}://BUCKET/KEY")
    key = key.strip("/")
    if "//" in key or any(part in (".", "..") for part in key.split("/")):
        raise StorageError(
            "the key has an empty part, or one that is `.` or `..`", where=text, next="write the key as it is"
        )
    return ObjectUrl(name, bucket, key)


def refuse_url(location: object, what: str) -> None:
    """For whatever works on directories of this machine."""
    if is_url(location):
        raise StorageError(
            f"{what} works on a directory of this machine",
            where=_shown(str(location)),
            next="bring it here first: `tokmill fetch URL DIRECTORY`",
        )
    refuse_squeezed_url(location)


def refuse_squeezed_url(location: object) -> None:
    """Path("s3://a/b") is "s3:/a/b": nobody means the directory `s3:`."""
    if _SQUEEZED.match(str(location)):
        raise StorageError(
            "a Path has made one slash of the two of a URL",
            where=_shown(str(location)),
            next="give the URL as a string",
        )


def _shown(text: str) -> str:
    """Without user, password and query."""
    text = re.sub(r"://[^/]*@", "://***@", text)
    signed = _SIGNED.search(text)
    return f"{text[: signed.start()]}?***" if signed else text


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
