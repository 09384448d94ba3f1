"""A clock the tests set, for either database: SQLite takes one, PostgreSQL has its one time function replaced."""

from __future__ import annotations

from typing import Protocol

from keptwork.core.clock import ManualClock
from tests.conformance.by_hand import Hand

START = 1_800_000_000_000_000
SECOND = 1_000_000


class SetClock(Protocol):
    """The database's time; it stands still unless it is told to move."""

    @property
    def now(self) -> int: ...

    async def advance(self, microseconds: int) -> None: ...


class SqliteClock:
    def __init__(self) -> None:
        self.manual = ManualClock(START)

    @property
    def now(self) -> int:
        return self.manual.now()

    async def advance(self, microseconds: int) -> None:
        self.manual.advance(microseconds)


class PostgresClock:
    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.now = START

    async def advance(self, microseconds: int) -> None:
        self.now += microseconds
        await set_time(self._hand, self.now)


DEFINITION = "SELECT pg_get_functiondef('keptwork_now'::regproc)"
"""Run what it returns to give a PostgreSQL database its own clock back."""


async def set_time(hand: Hand, now: int) -> None:
    """Stop the clock of a PostgreSQL database at this time."""
    await hand.run(
        "CREATE OR REPLACE FUNCTION keptwork_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS 'SELECT {now}::bigint'"
    )
