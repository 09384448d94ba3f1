"""A secret value that is not shown by accident."""

from __future__ import annotations


class Secret:
    """A string that only `value` reveals: printing and logging hide it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"
