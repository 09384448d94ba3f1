"""The outcomes that a handler can return or raise.

Any other returned value is the job's result. Any other exception is a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keptwork.core.durations import Span


@dataclass(frozen=True, slots=True)
class Snooze:
    """Return this to put the job back into the queue for a while, without spending the attempt.

    >>> Snooze("5m").delay
    '5m'
    """

    delay: Span = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Return this to cancel the job, with a reason."""

    reason: str = ""


class TransientError(Exception):
    """Raise this when a retry might help. Any unknown exception has the same meaning."""


class PermanentError(Exception):
    """Raise this when a retry cannot help: the job fails immediately."""


class ValidationError(Exception):
    """Raise this when the payload itself is invalid: the job is dead-lettered as validation_failed."""
