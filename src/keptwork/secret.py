"""A secret as a value: carried about without being shown."""

from __future__ import annotations


class Secret:
    """A text that only `value` gives away: neither printing nor logging it does."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"
