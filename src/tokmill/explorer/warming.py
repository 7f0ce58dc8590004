"""What the first questions need, read in a thread as soon as the server answers.

    who was kept ─ columns of two rules ─ why others left ─ of the other rules ─ code that was left out

Between the address that is printed and the first filter that somebody types lie seconds. Who is quicker waits
for what is being read, and does not read it again. A published run is left alone: its files would be brought.
"""

from __future__ import annotations

import threading

from tokmill.errors import TokmillError
from tokmill.explorer.described import list_rules
from tokmill.explorer.routes import late_code
from tokmill.explorer.site import Site

COLUMN_BYTES = 300 << 20  # of the columns that are read before they are asked for
_PAUSE_SECONDS = 0.05  # after each, and longer while a question is answered
_AT_ONCE = 2  # columns: whoever asks for one of them waits for both


class Warming:
    def __init__(self, site: Site) -> None:
        self._site = site

    def start(self) -> threading.Thread | None:
        """The thread; None: nothing is read."""
        return None if self._site.url is not None else self._site.start(self._warm, "tokmill-warming")

    def _warm(self) -> None:
        if self._site.ended.is_set():
            return
        try:
            self._site.queries.prepare()
            for names in self._groups():
                self._site.columns.prepare(names)
                if self._is_over():
                    return
        except TokmillError:
            return  # a file that cannot be read is told to who asks for it
        if not self._site.ended.is_set():
            late_code()

    def _is_over(self) -> bool:
        """Whether the site has ended; known when nobody waits for an answer."""
        while not self._site.ended.wait(_PAUSE_SECONDS):
            if not self._site.is_answering:
                return False
        return True

    def _groups(self) -> list[list[str]]:
        columns = self._site.columns
        ruled = list(dict.fromkeys(rule["measure"] for rule in list_rules(self._site)))
        most = COLUMN_BYTES // max(8 * columns.documents, 1)
        measures = [name for name in ruled if name in columns.known][:most]
        groups = [measures[first : first + _AT_ONCE] for first in range(0, len(measures), _AT_ONCE)]
        return [["verdict"], *groups[:1], ["step", "reason"], *groups[1:], ["source"]]
