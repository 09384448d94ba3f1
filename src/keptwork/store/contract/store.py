"""The contract of a store, which `sqlite` and `postgres` implement. `tests/conformance` holds both to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from keptwork.store.contract.reader import Reader
from keptwork.store.contract.records import (
    Event,
    EventFilter,
    NewJob,
)
from keptwork.store.contract.writer import Writer
from keptwork.store.counters import Tally

T = TypeVar("T")

__all__ = ["SPOILT", "Enqueues", "Reader", "Store", "Transaction", "Writer"]

SPOILT = "a call in this transaction failed, so all of it was undone"
"""The message where such a failed call was caught as if nothing had happened."""


class Transaction(Reader, Writer, Protocol):
    """Several reads and writes that take effect together or not at all."""

    async def atomically(self, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
        """Run the work as a part of this transaction and return its result."""
        ...

    def acknowledging(self) -> AbstractAsyncContextManager[Any]:
        """Return a block for a decision inside the transaction, whose own end waits for the standbys."""
        ...

    async def execute(self, sql: str, *values: Any) -> int:
        """Run a caller's own statement, written for this database, and return the number of rows it changed. The guards
        apply as to any other statement. A statement that would end the transaction, or outlive it, raises
        `BadInput`."""
        ...

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of such a statement, by column name."""
        ...


class Enqueues(Protocol):
    """Anything that accepts new jobs."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]: ...


class Store(Reader, Writer, Protocol):
    """An open database. Each call is a transaction of its own."""

    @property
    def url(self) -> str:
        """The database URL, safe to display."""
        ...

    @property
    def tally(self) -> Tally:
        """Request figures of this store that are not among the counters yet. Closing the store adds them."""
        ...

    def transaction(self, tenant_id: int | None = None) -> AbstractAsyncContextManager[Transaction]:
        """Return a transaction over several calls. It commits at the end of the block, and an exception rolls it back.
        With a tenant, PostgreSQL lets it read and write only that tenant's rows."""
        ...

    def narrowed(self, tenant_id: int) -> Store:
        """Return this database for the requests of one tenant. PostgreSQL lets the returned store read and write no
        other tenant's rows in any request. Closing this store closes the returned one."""
        ...

    async def cannot_narrow(self) -> str | None:
        """Return why `narrowed` cannot be used: its role is missing or lacks a right. Return None if it can."""
        ...

    async def insist_on_sight(self) -> None:
        """Raise `SeesNoRows` if the database hides its rows from this login. Raise `HoldsNoRows` if it was restored
        from an empty dump."""
        ...

    async def atomically(self, work: Callable[[Transaction], Awaitable[T]], weight: int = 1) -> T:
        """Run the work in one transaction and return its result. The database can require that the work runs again from
        the start, so it awaits only calls of the given transaction. On SQLite, it runs without interruption. `weight`
        is about the number of rows that it will touch."""
        ...

    def acknowledging(self) -> AbstractAsyncContextManager[Any]:
        """Return a block for a decision made from reads, with the guarantee that every write has. The block ends,
        also with an error, only when the database's synchronous standbys have the rows it read. Without standbys, it
        does not wait."""
        ...

    def within(self, transaction: Any) -> Enqueues:
        """Return the queue inside a transaction that is already open. The transaction is one of this store or, on
        PostgreSQL, that of a caller's asyncpg connection. Anything else raises `BadInput`."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Reader]:
        """Return a block whose reads all see the same moment."""
        ...

    def follow(self, wanted: EventFilter = ..., *, after: str | None = None) -> AsyncIterator[Event]:
        """Yield every event in commit order, without end. Existing events come first, then new ones."""
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for new work. It runs on this event loop soon after any process enqueues jobs or resumes
        a queue. Return a function that removes it. A notification can be lost or spurious, so callers must also
        poll."""
        ...

    async def close(self) -> None:
        """Release all resources. Acknowledged writes are on disk."""
        ...

    def abandon(self) -> None:
        """Close the store of a closed event loop without awaiting anything."""
        ...
