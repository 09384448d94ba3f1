"""A breaker as it is declared: when it opens, for how long, and what becomes of the work that needs it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from keptwork.bounds import LARGEST_INT, LONGEST_NAME, check_name
from keptwork.errors import BadInput
from keptwork.moments import Span, span_us

HOLD = "breaker:"
"""What the hold of a breaker begins with; its name follows."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Opens after `failure_threshold` failures in a row. After the `cooldown` one job at a time is let through to try,
    and `success_threshold` good tries close it. Meanwhile the jobs that need it are held back and spend no attempt;
    with `on_open="fail"` they fail at once.

    >>> Breaker("payments-api", cooldown="2m").cooldown_us
    120000000
    """

    name: str
    failure_threshold: int = 5
    cooldown: Span = "60s"
    success_threshold: int = 1
    on_open: Literal["hold", "fail"] = "hold"

    def __post_init__(self) -> None:
        check_name("breaker", self.name)
        if len(self.hold) > LONGEST_NAME:
            longest = LONGEST_NAME - len(HOLD)
            raise BadInput(what=f"the name of a breaker has at most {longest} characters: {self.name[:40]}…")
        for what in ("failure_threshold", "success_threshold"):
            value = getattr(self, what)
            if type(value) is not int or not 1 <= value <= LARGEST_INT:
                raise BadInput(what=f"breaker {self.name}: {what} is {value!r}; it must be a whole number, at least 1")
        if self.on_open not in ("hold", "fail"):
            raise BadInput(what=f"breaker {self.name}: on_open is {self.on_open!r}; say 'hold' or 'fail'")
        span_us(self.cooldown)

    @classmethod
    def of(cls, declared: str | Breaker) -> Breaker:
        """By its name alone, or with its settings."""
        return cls(declared) if isinstance(declared, str) else declared

    @property
    def hold(self) -> str:
        """What the jobs that it holds back are held by."""
        return hold_of(self.name)

    @property
    def hold_key(self) -> str | None:
        """What its jobs are found by when it opens; none if they are not to be held."""
        return self.hold if self.on_open == "hold" else None

    @property
    def cooldown_us(self) -> int:
        return span_us(self.cooldown)

    @property
    def settings(self) -> dict[str, int]:
        """What its row keeps of it."""
        return {
            "failure_threshold": self.failure_threshold,
            "cooldown_us": self.cooldown_us,
            "success_threshold": self.success_threshold,
        }

    def agrees_with(self, row: Mapping[str, Any]) -> bool:
        """Whether the row has these settings."""
        return all(row[column] == value for column, value in self.settings.items())


def hold_of(name: str) -> str:
    """What the jobs that a breaker of that name holds back are held by.

    >>> hold_of("tool:ruff")
    'breaker:tool:ruff'
    """
    return f"{HOLD}{name}"
