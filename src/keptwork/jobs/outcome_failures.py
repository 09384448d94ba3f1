"""Classify an exception for its job. An exception group counts as all of its members together.

This module does not choose the move of the job; see outcome.py.
"""

from __future__ import annotations

from keptwork.outcomes import PermanentError, ValidationError


def members(error: BaseException) -> list[BaseException]:
    """Return the exceptions inside nested groups, in order. Return any other exception as the only member.

    >>> members(ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [KeyError(2)])]))
    [ValueError(1), KeyError(2)]
    """
    found, left = [], [error]
    while left:
        first = left.pop()
        if isinstance(first, BaseExceptionGroup):
            left += reversed(first.exceptions)
        else:
            found.append(first)
    return found


def is_permanent(error: BaseException) -> bool:
    """Return whether another attempt cannot help. One permanent member makes its group permanent."""
    if isinstance(error, BaseExceptionGroup) and any(isinstance(one, ValidationError) for one in members(error)):
        return True
    return any(isinstance(one, PermanentError) or getattr(one, "final", False) for one in (error, *members(error)))


def is_timeout(error: BaseException) -> bool:
    """Return whether the attempt failed by time-outs alone."""
    return all(isinstance(one, TimeoutError) for one in members(error))


def blames_job(error: BaseException) -> bool:
    """Return whether the job itself is wrong, rather than a service that its handler uses."""
    return all(isinstance(one, ValidationError | PermanentError) for one in members(error))


def delay_us(error: BaseException) -> int | None:
    """Return the longest delay that the exception or one of its members requests, or None."""
    asked = (getattr(one, "delay_us", None) for one in (error, *members(error)))
    return max((delay for delay in asked if delay is not None), default=None)
