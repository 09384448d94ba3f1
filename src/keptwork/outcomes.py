"""What a handler can say about a job: by what it returns, or by what it raises.

Anything else returned is the job's result, anything else raised is a transient error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keptwork.moments import Span


@dataclass(frozen=True, slots=True)
class Snooze:
    """Return it to go back into the queue for a while; the attempt is not spent.

    >>> Snooze("5m").delay
    '5m'
    """

    delay: Span = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Return it to end the job as cancelled, with a reason."""

    reason: str = ""


class TransientError(Exception):
    """Raise it when trying again later may help; that is also what any unknown exception means."""


class PermanentError(Exception):
    """Raise it when trying again will not help: the job fails at once."""


class ValidationError(Exception):
    """Raise it when the payload itself is wrong: the job is dead-lettered as validation_failed."""
