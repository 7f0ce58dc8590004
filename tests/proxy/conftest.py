"""PyTorch is an outside package: without it there is nothing here to try, but for what needs none."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

_HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Other tests run beside these."""
    if not _HAS_TORCH:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
