"""The value of an omitted argument, for which the server decides."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class Unset(Enum):
    """The type of UNSET, for arguments where None has a meaning of its own."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


def given(unless_none: Mapping[str, Any], unless_unset: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments to send: the first without None, the second without UNSET.

    >>> given({"a": 1, "b": None, "c": False}, {"d": None, "e": UNSET})
    {'a': 1, 'c': False, 'd': None}
    """
    said = {name: value for name, value in unless_none.items() if value is not None}
    return said | {name: value for name, value in (unless_unset or {}).items() if value is not UNSET}
