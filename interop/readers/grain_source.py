"""Grain takes a dataset of our loader for a source: in this process, and in workers that it is sent to.

The one reader that imports tokmill: what is tried is its own dataset, in Grain's hands.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

import grain

from compare import given, report, require

BUILD = {"format": "memmap", "dtype": "uint16"}


def main() -> None:
    from tokmill.loader import open_dataset

    train, _, lengths = given()
    source = open_dataset(train)
    require(isinstance(source, grain.sources.RandomAccessDataSource), "no source for Grain")
    dataset = grain.MapDataset.source(source)
    require(len(dataset) == len(lengths), "other rows")
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    rows = [dataset[row]["ids"] for row in range(len(dataset))]
    there = list(dataset.to_iter_dataset().mp_prefetch(options))
    require(
        all((one["ids"] == row).all() for one, row in zip(there, rows, strict=True)), "other rows of workers"
    )
    shuffled = dataset.seed(1).shuffle().batch(8).to_iter_dataset()
    expected = [batch["ids"] for batch in shuffled]
    steps = iter(shuffled)
    next(steps)
    state = steps.get_state()
    resumed = iter(shuffled)
    resumed.set_state(state)
    left = [batch["ids"] for batch in resumed]
    require(
        all((one == other).all() for one, other in zip(left, expected[1:], strict=True)),
        "it resumes elsewhere",
    )
    compared = (
        "`MapDataset.source` of `open_dataset`: every row, here and from two workers; resumed after a batch"
    )
    report("grain", compared, rows)


if __name__ == "__main__":
    main()
