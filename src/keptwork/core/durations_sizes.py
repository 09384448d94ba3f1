"""Convert amounts of memory between text and bytes."""

from __future__ import annotations

import re

from keptwork.errors import BadInput

_UNITS_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,12})(kB|KB|MB|GB|KiB|MiB|GiB)")

Size = str | int
"""An amount of memory: a string such as "512MB" or "1GiB", or a number of bytes."""


def size_bytes(size: Size) -> int:
    """Return the number of bytes.

    >>> size_bytes("512MB"), size_bytes("1GiB"), size_bytes(1000)
    (512000000, 1073741824, 1000)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise BadInput(what=f"{size!r} is no amount of memory; write one like 512MB or 1GiB, or a number of bytes")
    return int(found[1]) * _UNITS_BYTES[found[2].replace("KB", "kB")]


def size_text(size: int) -> str:
    """Return the shortest exact text, or the rounded number of megabytes.

    >>> size_text(512_000_000), size_text(1 << 30), size_text(123_456_789)
    ('512 MB', '1 GiB', '123.5 MB')
    """
    whole = [(size // unit, name) for name, unit in _UNITS_BYTES.items() if size >= unit and size % unit == 0]
    return "{} {}".format(*min(whole)) if whole else f"{size / 10**6:.1f} MB"
