"""What becomes of a message after an attempt to deliver it: a pure decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from keptwork.store.outbox import DELIVERED, GIVEN_UP, MOST_ATTEMPTS, PENDING, Delivery

FIRST_PAUSE_US = 5_000_000
LONGEST_PAUSE_US = 4 * 3_600_000_000
GROWTH = 3
MOST_REFUSALS = 3
TEMPORARY = frozenset({408, 425, 429})
LONGEST_TEXT = 300


class Answer(NamedTuple):
    """What an attempt came to: an HTTP status, or why there was none. `refused` says that the message was not sent, for
    it may not go there."""

    status: int | None = None
    error: str | None = None
    retry_after_us: int | None = None
    refused: bool = False


class Verdict(NamedTuple):
    """What is written: the state, after how long it is due again, and what went wrong."""

    state: str
    delay_us: int = 0
    error: str | None = None


def verdict(delivery: Delivery, answer: Answer, chance: Callable[[], float]) -> Verdict:
    """Delivered by any 2xx. What may pass (no answer, 429, 5xx) is tried again for about a day; what will hardly pass
    (redirects, other 4xx, an address that is refused) a few times."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Verdict(DELIVERED)
    error = (answer.error or f"the answer was {answer.status}")[:LONGEST_TEXT]
    made = delivery.attempts - (delivery.most_attempts - MOST_ATTEMPTS)
    if made >= (MOST_ATTEMPTS if _may_pass(answer) else MOST_REFUSALS):
        return Verdict(GIVEN_UP, error=error)
    return Verdict(PENDING, max(pause_us(made, chance), min(answer.retry_after_us or 0, LONGEST_PAUSE_US)), error)


def pause_us(made: int, chance: Callable[[], float]) -> int:
    """Longer each time, and up to a fifth shorter by chance, so that many do not come back at once."""
    longest = min(FIRST_PAUSE_US * int(GROWTH ** (min(made, 20) - 1)), LONGEST_PAUSE_US)
    return round(longest * (1 - chance() / 5))


def _may_pass(answer: Answer) -> bool:
    if answer.status is None:
        return not answer.refused
    return answer.status in TEMPORARY or answer.status >= 500
