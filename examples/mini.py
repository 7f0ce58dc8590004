"""The smallest training set: 96 examples to train on, 12 to choose by, 12 to report; rows of 64.

python examples/mini.py out/mini/build/cache
"""

import sys

from tokmill.loader import Batches, open_dataset

train, valid, test = (open_dataset(sys.argv[1], split) for split in ("train", "valid", "test"))
batches = Batches(train, batch_size=8, seed=1, length=64, too_long="cut")
for _epoch in range(3):
    for batch in batches:
        tokens, targets, attn_mask = batch["tokens"], batch["targets"], batch["attn_mask"]
(whole,) = Batches(valid, batch_size=len(valid), length=64, too_long="cut", shuffle="none")
print(len(train), len(valid), len(test), tokens.shape, whole["targets"].shape)
