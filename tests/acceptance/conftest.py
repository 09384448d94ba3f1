"""Tests that race real clocks or kill real processes: `make acceptance` runs them, `make chaos` their long forms."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("chaos") is None:
        item.add_marker(pytest.mark.acceptance)
