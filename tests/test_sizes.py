"""Amounts of memory as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.core.durations import size_bytes, size_text
from keptwork.errors import BadInput


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512_000_000), ("1GiB", 1 << 30), ("64KiB", 65_536), ("1kB", 1000), ("1KB", 1000), (0, 0), (17, 17)],
)
def test_a_size_is_read_in_thousands_and_in_powers_of_two(text: Any, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "512", "512 MB", "-1MB", "1.5GB", "1TB", "9" * 13 + "MB", "\u0661MB", -1, 1.5, True, None]
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(BadInput, match="is no amount of memory; write one like 512MB"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(512_000_000, "512 MB"), (512 << 20, "512 MiB"), (1 << 30, "1 GiB"), (123_456_789, "123.5 MB"), (10, "0.0 MB")],
)
def test_a_size_is_shown_as_it_was_written_if_it_can_be(size: int, text: str) -> None:
    assert size_text(size) == text
