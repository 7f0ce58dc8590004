"""OLMo-core finds our documents by their end token, in uint32."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from olmo_core.data.utils import iter_document_indices, load_array_slice

from compare import given, report, require

BUILD = {"format": "olmo", "pack": {"layout": "indexed"}}

train, _, lengths = given()
eos = json.loads((train / "meta.json").read_bytes())["eos_id"]
documents = []
for path in sorted((train / "ids").glob("*.npy")):
    for start, end in iter_document_indices(str(path), eos_token_id=eos, dtype=np.uint32):
        documents.append(load_array_slice(str(path), start, end, np.uint32))
require([len(one) for one in documents] == lengths.tolist(), "other documents")
report("ai2-olmo-core", "`iter_document_indices` and `load_array_slice`: every document", documents)
