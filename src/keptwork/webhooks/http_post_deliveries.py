"""Decide what happens to a webhook delivery after an attempt. The decision is pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keptwork.store.contract.outbox import DELIVERED, GIVEN_UP, MOST_ATTEMPTS, PENDING, Delivery

FIRST_PAUSE_US = 5_000_000
LONGEST_PAUSE_US = 4 * 3_600_000_000
GROWTH = 3
MOST_REFUSALS = 3
TEMPORARY = frozenset({408, 425, 429})
LONGEST_TEXT = 300


class Answer(NamedTuple):
    """The result of an attempt: an HTTP status, or why there is none.

    If `refused` is set, the request was not sent, because its address is not allowed.
    """

    status: int | None = None
    error: str | None = None
    retry_after_us: int | None = None
    refused: bool = False


class Verdict(NamedTuple):
    """The new state, the delay until the next attempt, and the error."""

    state: str
    delay_us: int = 0
    error: str | None = None


def verdict(delivery: Delivery, answer: Answer, chance: Callable[[], float]) -> Verdict:
    """Decide the state of a delivery.

    Any 2xx delivers it. Temporary failures (no response, 429, 5xx) are retried for about a day. Other failures
    (redirects, other 4xx, an address that is not allowed) are retried a few times.
    """
    if answer.status is not None and 200 <= answer.status < 300:
        return Verdict(DELIVERED)
    error = (answer.error or f"the answer was {answer.status}")[:LONGEST_TEXT]
    made = delivery.attempts - (delivery.most_attempts - MOST_ATTEMPTS)
    if made >= (MOST_ATTEMPTS if _may_pass(answer) else MOST_REFUSALS):
        return Verdict(GIVEN_UP, error=error)
    return Verdict(PENDING, max(pause_us(made, chance), min(answer.retry_after_us or 0, LONGEST_PAUSE_US)), error)


def pause_us(made: int, chance: Callable[[], float]) -> int:
    """Return the pause before the next attempt: longer each time, with jitter of up to 20 %."""
    longest = min(FIRST_PAUSE_US * int(GROWTH ** (min(made, 20) - 1)), LONGEST_PAUSE_US)
    return round(longest * (1 - chance() / 5))


def _may_pass(answer: Answer) -> bool:
    if answer.status is None:
        return not answer.refused
    return answer.status in TEMPORARY or answer.status >= 500
