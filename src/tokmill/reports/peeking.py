"""`tokmill peek`: a row of a build as text, or a web page block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.audit.check import Peeked
from tokmill.audit.check import peek as peek_row
from tokmill.errors import RecipeError

if TYPE_CHECKING:
    from tokmill.sources.extract.reasons import Explained


@short_repr
class PeekedPage(NamedTuple):
    """`page` is written; `file` is the web page's, or an archive's with its offset and id."""

    page: Path
    file: Path
    offset: int | None
    id: str | None
    url: str | None
    text: str
    markdown: str
    explained: Explained

    def as_json(self) -> Json:
        return {
            "page": str(self.page),
            "bytes": self.page.stat().st_size,
            "file": str(self.file),
            **{name: getattr(self, name) for name in ("offset", "id", "url", "text", "markdown")},
            **self.explained.as_json(),
        }


def peek(
    build: str | Path | None = None,
    row: int = 0,
    *,
    split: str | None = None,
    tokenizer: str | Path | None = None,
    hooks: str | Path | None = None,
    html: str | Path | None = None,
    id: str | None = None,
    out: str | Path | None = None,
) -> Peeked | PeekedPage:
    """The text of one row, document by document; -1 is the last row.

    With `html`, a web page or an archive of them, instead: write `out`, a page that shows its blocks, kept or
    left out, beside its text. `id` chooses a page of an archive.
    """
    if (build is None) == (html is None):
        raise _misused("needs either BUILD or --html", "see `tokmill peek --help`")
    if build is not None:
        if id is not None or out is not None:
            raise _misused("--id and --out are for --html", "give `--html`, or none of them")
        return peek_row(build, row, split=split, tokenizer=tokenizer, hooks=hooks)
    if row or split is not None or tokenizer is not None or hooks is not None:
        raise _misused(
            "--row, --split, --tokenizer and --hooks are for a BUILD", "give BUILD, or none of them"
        )
    from tokmill.reports.webpage import write_page

    assert html is not None, "one of them is given"
    return write_page(Path(html), id, out)


def _misused(what: str, next: str) -> RecipeError:
    return RecipeError(what, where="tokmill peek", next=next)
