"""Where the files of a published run lie: below a key that follows from what they are.

Apart from the rest, because a trainer that reads them needs no more than this.
"""

from __future__ import annotations

from tokmill.artifacts.manifest import Manifest
from tokmill.storage.location import ObjectUrl

_NAME_CHARS = 32


def publication_prefix(url: ObjectUrl, manifest: Manifest) -> ObjectUrl:
    """All bytes below it follow from the digest: it covers the sha256 of every manifest,
    and these of every file."""
    return url.child(manifest.digest[:_NAME_CHARS])


def is_prefix(name: str) -> bool:
    """True for the last part of such a key."""
    return len(name) == _NAME_CHARS and set(name) <= set("0123456789abcdef")
