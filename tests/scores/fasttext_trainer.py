"""Run with the fastText library on the path: trains a classifier, and tells what the library makes of texts.

python fasttext_trainer.py REQUEST.json

    {"train": FILE, "model": FILE, "options": {…}, "quantize": {…} | null,
     "texts": FILE of one line each, "answers": FILE}

The answers: for every text the chance of each label, as `predict` tells it.
"""

import json
import sys
from pathlib import Path

import fasttext

request = json.loads(Path(sys.argv[1]).read_text())
if request.get("train"):
    model = fasttext.train_supervised(request["train"], thread=1, seed=1, verbose=0, **request["options"])
    if request.get("quantize") is not None:
        model.quantize(verbose=0, **{"input": request["train"], **request["quantize"]})
    model.save_model(request["model"])
model = fasttext.load_model(request["model"])
labels = sorted(model.get_labels())
rows = []
# bytes that are no line ends to fastText stay in their line
for line in Path(request["texts"]).read_bytes().decode().split("\n")[:-1]:
    found = dict(zip(*model.predict(line, k=len(labels), threshold=-1.0), strict=True))
    rows.append([float(found.get(label, -1.0)) for label in labels])
Path(request["answers"]).write_text(json.dumps({"labels": labels, "scores": rows}))
