"""The webdataset package reads the tars of a build, in their order."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import webdataset

from compare import report_texts

BUILD = {"format": "webdataset"}

splits = {}
for split in ("train", "valid"):
    tars = sorted(map(str, (Path(sys.argv[1]) / split).glob("*.tar")))
    samples = webdataset.WebDataset(tars, shardshuffle=False).decode()
    splits[split] = [{"text": sample["txt"], **sample["json"]} for sample in samples]
report_texts("webdataset", "`WebDataset(…).decode()`: every field, every split", splits)
