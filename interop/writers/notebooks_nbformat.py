"""RECORDS as notebooks, each with one cell: python interop/writers/notebooks_nbformat.py RECORDS OUT"""

import json
import sys
from pathlib import Path

import nbformat

SOURCE = {"directory": {"path": ".", "suffixes": [".ipynb"]}, "license": "MIT"}
AS = {"id": "{id}.ipynb", "license": "MIT"}


def main(records: Path, out: Path) -> None:
    rows = [json.loads(line) for line in records.read_bytes().split(b"\n") if line]
    for row in rows:
        cells = [nbformat.v4.new_markdown_cell(row["text"])]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), out / f"{row['id']}.ipynb")
    print(json.dumps({"package": "nbformat", "version": nbformat.__version__}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
