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

# Three processes share the tests file by file, in the order of collection (--no-loadscope-reorder). A file of
# a minute that is begun last leaves a core idle for a minute: so these, of 20 seconds and more, come first,
# and what is left for the end takes seconds.
LONGEST = (
    "docs/test_blocks.py",
    "engines/test_slurm.py",
    "loader/test_torch.py",
    "scores/test_fasttext.py",
    "explorer/test_page.py",
    "stages/dedup/test_earlier.py",
    "proxy/test_ablate.py",
    "tokenizers/test_fast.py",
    "faults/test_two_runs.py",
    "engines/test_pilot.py",
    "hub/test_milling.py",
    "stages/test_inference.py",
    "faults/test_object_store.py",
    "loader/test_remote.py",
    "faults/test_engines.py",
    "test_plugins.py",
    "engines/test_clusters.py",
    "stages/build/test_cutting.py",
    "audit/test_trace.py",
    "faults/test_reads.py",
    "test_advice.py",
    "storage/test_objects_runs.py",
    "faults/test_commit_boundaries.py",
    "kernels/test_warm.py",
    "scores/test_transformer.py",
    "explorer/test_ending.py",
    "kernels/test_jit.py",
    "publish/test_stored_runs.py",
    "cli/test_pipes.py",
    "faults/test_hostile_inputs.py",
    "recipes/test_offline.py",
    "faults/test_slurm.py",
    "faults/test_materialize_killed.py",
    "faults/test_kills.py",
    "explorer/test_page_real.py",
    "recipes/test_shapes.py",
    "audit/test_review_figures.py",
    "audit/test_report_figures.py",
    "cli/test_membership.py",
    "proxy/test_overfitting.py",
    "faults/test_surroundings.py",
    "pipeline/test_training.py",
    "pipeline/test_estimate.py",
    "faults/test_disk.py",
    "reviews/test_review.py",
    "duplicates/test_window.py",
    "takedown/test_forget.py",
    "explorer/test_label_routes.py",
    "clean/test_redact.py",
    "explorer/test_text_index.py",
    "pipeline/test_estimate_scores.py",
    "explorer/test_thresholds.py",
    "proxy/test_training.py",
    "stages/build/test_builds.py",
    "sources/test_bad_input.py",
    "faults/test_builds.py",
    "cli/test_finished.py",
    "reviews/test_review_recounted.py",
    "pipeline/test_estimate_bounds.py",
    "clean/test_measures.py",
    "audit/test_run_figures.py",
    "clean/test_lines.py",
    "pipeline/test_estimate_near_the_end.py",
    "faults/test_security.py",
    "faults/test_references.py",
    "cli/test_tokens.py",
    "stages/split/test_split_runs.py",
    "takedown/test_forget_again.py",
    "tokenizers/test_tiktoken_ranks.py",
    "docs/test_site.py",
    "stages/tokens/test_chat.py",
    "formats/test_registry.py",
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
