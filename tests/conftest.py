"""For all: files that take long come first, and pools whose workers are forked where their beginning is not
tested."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import fork_workers

# Both cores are at work on tests. A small model that learns a batch takes 22 CPU seconds with two threads
# that wait for each other, and 5 with one. Read when NumPy is loaded, which no module above does; processes
# that are started inherit it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Corpora of tests are so small that the driver would do it all alone; those that ask for workers want them.
os.environ.setdefault("TOKMILL_WORKER_MEGABYTES", "0")

# A quarter of the time of a test that runs a recipe is fsync, rename and unlink on a disk;
# in memory they cost nothing. Those that need the faults of a disk make their own (`faults/disk.py`).
if os.access("/dev/shm", os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Two processes share the tests file by file, in the order of collection (--no-loadscope-reorder). A file of a
# minute that is begun last leaves a core idle for a minute: so these, of 15 seconds and more, come first, and
# what is left for the end takes seconds.
LONGEST = (
    "docs/test_blocks.py",
    "stages/dedup/test_earlier.py",
    "explorer/test_page.py",
    "hub/test_milling.py",
    "scores/test_fasttext.py",
    "loader/test_remote.py",
    "faults/test_object_store.py",
    "tokenizers/test_fast.py",
    "proxy/test_ablate.py",
    "test_advice.py",
    "engines/test_pilot.py",
    "tokenizers/test_tiktoken_ranks.py",
    "test_plugins.py",
    "faults/test_hostile_inputs.py",
    "stages/test_inference.py",
    "stages/build/test_cutting.py",
    "publish/test_stored_runs.py",
    "faults/test_two_runs.py",
    "explorer/test_page_hostile.py",
    "recipes/test_offline.py",
    "explorer/test_page_real.py",
    "kernels/test_jit.py",
    "faults/test_kills.py",
    "sources/test_warc_spans.py",
    "faults/test_growing.py",
    "takedown/test_forget.py",
    "tokenizers/test_train_sentencepiece.py",
    "pipeline/test_estimate.py",
    "storage/test_jsonl.py",
    "sources/test_sources.py",
    "kernels/test_warm.py",
    "scores/test_transformer.py",
    "pipeline/test_training.py",
    "faults/test_reads.py",
    "audit/test_review_figures.py",
    "hub/test_hub.py",
    "storage/test_objects_runs.py",
    "stages/dedup/test_near.py",
    "audit/test_trace.py",
    "stages/build/test_mixture.py",
    "sources/test_warc.py",
    "engines/test_slurm.py",
    "engines/test_clusters.py",
    "reviews/test_review.py",
    "audit/test_run_figures.py",
    "cli/test_pipes.py",
    "audit/test_report_figures.py",
    "proxy/test_overfitting.py",
    "sources/test_stackexchange.py",
    "faults/test_builds.py",
    "faults/test_engines.py",
    "storage/test_compressions.py",
    "sources/test_bad_input.py",
    "sources/test_fields.py",
    "proxy/test_training.py",
    "faults/test_surroundings.py",
    "faults/test_damage.py",
    "loader/test_distributed.py",
    "stages/dedup/test_adding_a_method.py",
    "sources/test_parallel.py",
    "stages/dedup/test_templates.py",
    "sources/test_mbox.py",
    "test_dockerfile.py",
    "faults/test_power.py",
    "faults/test_references.py",
)
_TESTS = Path(__file__).resolve().parent
_PLACES = {_TESTS / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _PLACES.get(item.path, len(LONGEST)))


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """A pool of two costs 3.5 CPU seconds to load; forked, 0.1.
    The task, the queues and the deaths are the same."""
    with fork_workers():
        yield
