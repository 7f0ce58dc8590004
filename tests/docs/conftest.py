"""How-to pages that take long are left out, unless they are asked for: `pytest -m slow_docs tests/docs`."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow_docs: how-to pages that take long, run by make pages")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow_docs" in (config.option.markexpr or ""):
        return
    slow = [item for item in items if item.get_closest_marker("slow_docs")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
