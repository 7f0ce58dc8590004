"""The picture of a report that README.md shows: its head, and the rivers of documents, in a light browser.

tokmill recipe init --like stage-a --offline && tokmill run stage-a.yaml && tokmill report out/stage-a
python tests/docs/picture.py out/stage-a/report.html docs/images/report.png
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from browser import open_page

_WIDTH = 1080
_HIDE = "for (const id of ['find', 'warnings']) document.getElementById(id).style.display = 'none'"
# The rivers of documents end where the heading of those of tokens begins.
_BOTTOM = "Math.round(document.querySelector('#flow h3').getBoundingClientRect().top + window.scrollY)"


def main(page: str, picture: str) -> None:
    with open_page() as browser:
        browser.open(Path(page), width=_WIDTH, height=900, scheme="light")
        browser.run(_HIDE)
        bottom = browser.run(_BOTTOM)
        browser.screenshot(Path(picture), width=_WIDTH, height=int(bottom) - 24)


if __name__ == "__main__":
    main(*sys.argv[1:])
