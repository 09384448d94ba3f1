"""The declaration of a circuit breaker: when it opens, for how long, and what happens to jobs that need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from keptwork.core.durations import Span, span_us
from keptwork.core.validation import LARGEST_INT, LONGEST_NAME, check_name
from keptwork.errors import BadInput

HOLD = "breaker:"
"""Prefix of the hold of a breaker. The name of the breaker follows."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker that opens after `failure_threshold` consecutive failures.

    After the `cooldown`, one job at a time runs as a probe, and `success_threshold` successful probes close the
    breaker. Until then, jobs that need it are held and spend no attempt. With `on_open="fail"`, they fail immediately.

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
        """Return a breaker with the default settings for a name, or the breaker itself."""
        return cls(declared) if isinstance(declared, str) else declared

    @property
    def hold(self) -> str:
        """The hold of the jobs that the breaker holds."""
        return hold_of(self.name)

    @property
    def hold_key(self) -> str | None:
        """The hold that marks its jobs, so that they are found when it opens, or None if they are not held."""
        return self.hold if self.on_open == "hold" else None

    @property
    def cooldown_us(self) -> int:
        return span_us(self.cooldown)

    @property
    def settings(self) -> dict[str, int]:
        """The settings that its row stores."""
        return {
            "failure_threshold": self.failure_threshold,
            "cooldown_us": self.cooldown_us,
            "success_threshold": self.success_threshold,
        }

    def agrees_with(self, row: Mapping[str, Any]) -> bool:
        """Return whether the row has these settings."""
        return all(row[column] == value for column, value in self.settings.items())


def hold_of(name: str) -> str:
    """Return the hold of the jobs that a breaker of this name holds.

    >>> hold_of("tool:ruff")
    'breaker:tool:ruff'
    """
    return f"{HOLD}{name}"
