"""What a store promises. Two keep these promises, `sqlite` and `postgres`; `tests/conformance` holds both to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from keptwork.store.reader import Reader
from keptwork.store.records import (
    Event,
    EventFilter,
    NewJob,
)
from keptwork.store.tally import Tally
from keptwork.store.writer import Writer

T = TypeVar("T")

__all__ = ["SPOILT", "Enqueues", "Reader", "Store", "Transaction", "Writer"]

SPOILT = "a call in this transaction failed, so all of it was undone"
"""Said where such a call was let pass as if nothing had happened."""


class Transaction(Reader, Writer, Protocol):
    """Several reads and writes that happen together or not at all."""

    async def atomically(self, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
        """What comes of the work, done as a part of this transaction."""
        ...

    def acknowledging(self) -> AbstractAsyncContextManager[Any]:
        """A block of a decision inside the transaction, whose own end waits for the standbys."""
        ...

    async def execute(self, sql: str, *values: Any) -> int:
        """Runs a statement of the caller's own, written for that database, and returns how many rows it changed. The
        guards hold for it as for any other; one that would end the transaction, or outlive it, is `BadInput`."""
        ...

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows that such a statement returns, by the names of their columns."""
        ...


class Enqueues(Protocol):
    """Somewhere to put jobs."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]: ...


class Store(Reader, Writer, Protocol):
    """A database opened for use. Each call is a transaction of its own."""

    @property
    def url(self) -> str:
        """Which database, fit to be shown."""
        ...

    @property
    def tally(self) -> Tally:
        """What was asked of this store and is not yet among the counters; closing it adds it there."""
        ...

    def transaction(self, tenant_id: int | None = None) -> AbstractAsyncContextManager[Transaction]:
        """A transaction over several calls: committed at the end of the block, undone by an exception. With a tenant,
        PostgreSQL lets it see and touch only that tenant's rows."""
        ...

    def narrowed(self, tenant_id: int) -> Store:
        """The same database for the requests of one tenant: PostgreSQL lets it see and touch no other tenant's rows,
        whatever it is asked. It is closed with the whole."""
        ...

    async def cannot_narrow(self) -> str | None:
        """Why `narrowed` is of no use here: the role that sees one tenant is missing, or lacks a right."""
        ...

    async def insist_on_sight(self) -> None:
        """Raise `SeesNoRows` if the database hides its rows from this login. Raise `HoldsNoRows` if it was restored
        from an empty dump."""
        ...

    async def atomically(self, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
        """What comes of the work, done in one transaction. It may be done again from the start where the database asks
        for that, and awaits nothing but calls of the transaction it is given: on SQLite it is done at one go. `weight`
        says about how many rows it will touch."""
        ...

    def acknowledging(self) -> AbstractAsyncContextManager[Any]:
        """A block that decides by reading, as every write does by itself: it ends, also with a refusal, only when the
        synchronous standbys of the database have the rows it read. Without standbys it waits for nothing."""
        ...

    def within(self, transaction: Any) -> Enqueues:
        """The queue from inside a transaction that is open already: one of this store, or on PostgreSQL that of an
        asyncpg connection of the caller's own. Anything else is `BadInput`."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Reader]:
        """Reads that all see the same moment."""
        ...

    def follow(self, wanted: EventFilter = ..., *, after: str | None = None) -> AsyncIterator[Event]:
        """Every event in the order of commits, without end: first those there are, then those to come."""
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back on this event loop soon after jobs were enqueued or a queue was resumed, by whatever process;
        returns how to stop. A ring may get lost or come for nothing, so whoever listens looks by itself now and
        then."""
        ...

    async def close(self) -> None:
        """Gives everything back; what was acknowledged is on disk."""
        ...

    def abandon(self) -> None:
        """Closes the store of an event loop that was closed, without awaiting anything."""
        ...
