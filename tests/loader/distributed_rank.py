"""One rank of a training that is killed and resumed, as torchrun starts it: RANK and WORLD_SIZE in the
environment. It writes down what it was given, and trains nothing.

    python distributed_rank.py BUILD PLACE BATCH_SIZE EPOCHS STOP_AT

    PLACE/state.pt      of the loader, every SAVE_EVERY steps; there at the start: resumed from it
    PLACE/rank-<r>-of-<n>.jsonl     a line for each step: {"step", "state", "rows"}

At step STOP_AT it says so and waits for its end, which does not come by itself.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tokmill.loader import Batches, open_dataset
from tokmill.loader.torch import Feed

SAVE_EVERY = 4


def main() -> None:
    build, place, batch_size, epochs, stop_at = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}/met-{world_size}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=120),  # if another rank ends, so does this one
    )
    dataset = open_dataset(build)
    batches = Batches(
        dataset,
        batch_size,
        seed=11,
        length=dataset.facts.seq_len,
        rank=rank,
        world_size=world_size,
        names="huggingface",
    )
    if (place / "state.pt").exists():
        batches.load_state_dict(torch.load(place / "state.pt"))
    step = 0
    with (place / f"rank-{rank}-of-{world_size}.jsonl").open("w") as log:
        while batches.epoch < epochs:
            for batch in Feed(batches, num_workers=2):
                step += 1
                state = batches.state_dict()
                seen = torch.tensor([len(batch["input_ids"])])
                dist.all_reduce(seen)  # a step of training: nobody is ahead
                line = {"step": step, "state": state, "rows": batch["input_ids"].tolist()}
                log.write(json.dumps(line) + "\n")
                log.flush()
                if step == stop_at:
                    print("waiting", flush=True)
                    sys.stdin.read()
                if rank == 0 and step % SAVE_EVERY == 0:
                    torch.save(state, place / "state.tmp")
                    (place / "state.tmp").replace(place / "state.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
