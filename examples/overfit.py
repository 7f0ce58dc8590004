"""Learn one batch of a build by heart, with a model written in NumPy.

    tokmill demo && python examples/overfit.py demo/out/build/rows

Loss goes to about nothing when tokens, targets and mask belong together.
It is what `tokmill check` does at its end.
"""

from __future__ import annotations

import sys

from tokmill.loader import collate, open_dataset
from tokmill.loader.tiny import lowest_loss, overfit


def main(build: str) -> None:
    ds = open_dataset(build)
    examples = [ds[row]["ids"][:64] for row in range(min(8, len(ds)))]
    batch = collate(examples, pad_id=ds.facts.eos_id or 0, mask="causal")
    tokens, targets, allowed = batch["tokens"], batch["targets"], batch["attn_mask"]
    print(f"{tokens.shape} tokens; no model can go below {lowest_loss(tokens, targets, allowed):.3f}")
    for step, loss in enumerate(overfit(tokens, targets, allowed, steps=300, lr=1e-3), 1):
        if step == 1 or step % 50 == 0:
            print(f"step {step:4}  loss {loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
