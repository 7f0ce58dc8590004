"""`tokmill.explore` and `tokmill.documents`: a run in the browser, and what its table would show."""

from __future__ import annotations

import atexit
import contextlib
import html
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.errors import MissingExtra, install_hint

if TYPE_CHECKING:
    from tokmill.explorer.server import Server

_CELL_PIXELS = 720


class Explorer:
    """A server that answers in a thread of this process, until `stop` or the end of the process."""

    def __init__(self, server: Server, location: str, opened: contextlib.ExitStack) -> None:
        self._server, self.location = server, location
        self._opened = opened
        atexit.register(self.stop)  # it answers on where nothing names it any more, as in a script or a cell

    @property
    def url(self) -> str:
        """With the token that a browser needs: whoever has it can read the run."""
        return self._server.url

    def as_json(self) -> Json:
        return {"url": self.url, "path": self.location}

    def wait(self) -> None:
        self._server.wait()

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._server.stop()
        self._opened.close()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Explorer({self.location!r}, {self._server.address!r})"

    def _repr_html_(self) -> str:
        # a cookie is sent in a frame whose page has the same name of a host: notebooks are at localhost
        url = html.escape(self.url.replace("//127.0.0.1:", "//localhost:"), quote=True)
        return (
            f'<iframe src="{url}" width="100%" height="{_CELL_PIXELS}" style="border: 0" '
            f'title="tokmill explore"></iframe><p><a href="{url}" target="_blank" rel="noopener">'
            f"{html.escape(self.location)} in a tab of its own</a></p>"
        )


def explore(
    directory: str | Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    compare: str | Path | None = None,
    recipe: str | Path | None = None,
    labels: str | Path | None = None,
) -> Explorer:
    """Start the explorer of a run; in a notebook, the result shows it in the cell.

    It answers on loopback unless another `host` is given, and always asks for the token that is in its `url`.
    With `recipe`, the recipe that a threshold may be written to, and with `labels` the file that labels are
    saved in; without them it writes nothing but the index of a search, to ~/.cache/tokmill/explore.
    `compare` is an earlier run.
    """
    _need("starlette", "uvicorn", "duckdb")
    from tokmill.explorer.opening import open_site
    from tokmill.explorer.server import Server

    with contextlib.ExitStack() as stack:
        site = stack.enter_context(
            open_site(
                directory,
                recipe=None if recipe is None else Path(recipe),
                labels=None if labels is None else Path(labels),
                compare=None if compare is None else str(compare),
            )
        )
        server = Server(site, host=host, port=port, in_notebook=_is_notebook())
        server.start()
        return Explorer(server, site.location, stack.pop_all())


def _need(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"the explorer needs {', '.join(missing)}",
            where="tokmill explore",
            next=install_hint("explore"),
        )


def _is_notebook() -> bool:
    """Whether a kernel of Jupyter runs this: its cells may frame the page."""
    return "ipykernel" in sys.modules


@short_repr
class Documents(NamedTuple):
    """A page of the documents that were asked for."""

    told: Json

    def as_json(self) -> Json:
        return {key: value for key, value in self.told.items() if key != "seconds"}


def documents(
    directory: str | Path,
    *,
    where: str | Sequence[str] = (),
    text: str | None = None,
    columns: str | None = None,
    sort: str | None = None,
    offset: int = 0,
    limit: int = 50,
) -> Documents:
    """The documents of a run that filters choose, as the table of the explorer has them.

    A filter is `words:10..50` (either end may be missing), `lang:en,de`, `score.edu:null`, or one of these
    with `!` before it for the other documents; `text` is looked for in texts as received. `sort` is a column,
    `-words` for the largest first.
    """
    _need("duckdb")
    from tokmill.explorer.listing import list_documents
    from tokmill.explorer.opening import open_site
    from tokmill.explorer.search import Searches

    with open_site(directory) as site:
        told = list_documents(
            site,
            text=text,
            among=None
            if not text
            else Searches(site, builds=False).find(text, wait=threading.TIMEOUT_MAX).positions,
            filters=[where] if isinstance(where, str) else list(where),
            columns=columns.split(",") if columns else None,
            sort=sort,
            offset=offset,
            limit=limit,
        )
    return Documents(told)
