"""Draw recipes, mill them, and say what does not hold.

    PYTHONPATH=tests python -m random_recipes --seed 7 --count 200 [--only 31] [--case failing.json]

Each kind of fault is told once, shrunk, as a case that `--case` takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TOKMILL_WORKER_MEGABYTES", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from random_recipes.drawing import Suite
from random_recipes.recipes import Case


def main() -> int:
    parser = argparse.ArgumentParser(prog="random_recipes", description=__doc__)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="cases before it are drawn, and not tried")
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--case", type=Path, help="a case as it was printed")
    parser.add_argument(
        "--dear", type=float, default=1.0, help="factor of the chances of dear oracles; 9: always all"
    )
    parser.add_argument(
        "--shrink-seconds", type=float, default=60, help="for each kind of fault; 0: as it was drawn"
    )
    parser.add_argument("--pairs", type=Path, help="where the table of pairs is written")
    parser.add_argument("--faults", type=Path, help="directory for the cases that fail")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        suite = Suite(given.seed, Path(scratch), given.dear, given.shrink_seconds)
        if given.case:
            suite.try_one("given", Case(**json.loads(given.case.read_text())))
        for number in range(given.count if given.only is None else given.only + 1):
            case = suite.draw()
            if not given.case and number >= (given.first if given.only is None else given.only):
                suite.try_one(str(number), case)
        print(suite.told())
        if given.pairs:
            given.pairs.write_text(suite.pairs.table())
        for kind, found in suite.faults.items():
            if given.faults:
                given.faults.mkdir(parents=True, exist_ok=True)
                name = "".join(c if c.isalnum() else "-" for c in kind)[:80]
                (given.faults / f"{name}.json").write_text(
                    json.dumps(found.case.as_json(), ensure_ascii=True, indent=1)
                )
    return 1 if suite.faults else 0


if __name__ == "__main__":
    sys.exit(main())
