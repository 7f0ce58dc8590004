"""A run by what a user calls it: a directory, or the URL that it is published at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tokmill.explorer.site import Site
from tokmill.storage.location import is_url, refuse_squeezed_url


@contextlib.contextmanager
def open_site(
    location: str | Path,
    *,
    recipe: Path | None = None,
    labels: Path | None = None,
    compare: str | None = None,
) -> Iterator[Site]:
    refuse_squeezed_url(location)
    if not is_url(location):
        yield Site(Path(location), recipe=recipe, labels=labels, compare=compare)
        return
    from tokmill.explorer.published import open_published

    url = str(location).rstrip("/")
    with open_published(url) as (directory, _):
        yield Site(directory, recipe=recipe, labels=labels, compare=compare, url=url)
