"""The picture that the tutorial shows: a threshold that is moved, in a light browser.

    python tests/explorer/picture.py out/stories docs/images/explore.png

`out/stories` is the run of the tutorial, after its eighth section.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from explorer.browsed import open_explored

_WIDTH, _HEIGHT = 1080, 980


def main(run: str, picture: str) -> None:
    with open_explored(Path(run)) as explored:
        explored.start(width=_WIDTH, height=_HEIGHT)
        explored.go("threshold?rule=chars.min&value=9")
        explored.page.wait("document.querySelectorAll('.border .excerpt').length > 3")
        explored.page.screenshot(Path(picture), width=_WIDTH, height=_HEIGHT)


if __name__ == "__main__":
    main(*sys.argv[1:])
