"""What a store promises. Two keep these promises, `sqlite` and `postgres`; `tests/conformance` holds both to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from detent.lifecycle.machine import Change, Lifecycle
from detent.store.records import (
    DEFAULT_TENANT,
    Event,
    EventFilter,
    Expired,
    Expiry,
    Held,
    Job,
    JobFilter,
    NewJob,
    Pruned,
    QueueSummary,
    Seen,
    Telemetry,
)


class Reader(Protocol):
    """Reads. Each sees one committed state of the database, never half of a transaction."""

    async def now(self) -> int:
        """The database's time in microseconds, the only time leases and schedules are decided by."""
        ...

    async def tenant(self, name: str) -> int:
        """The key of the tenant of that name; an unknown name is `NotFound`."""
        ...

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        """The whole row of an entity; another tenant's is none, exactly like one that does not exist."""
        ...

    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ...
    ) -> list[dict[str, Any]]:
        """The rows of those entities that exist: whole, or only the columns named."""
        ...

    async def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        """How many entities there are, and how many of them have no first event."""
        ...

    async def jobs(
        self,
        wanted: JobFilter = ...,
        *,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = True,
        columns: Sequence[str] = ...,
    ) -> list[dict[str, Any]]:
        """One page of the jobs that match, in the order of their ids; whole, or only the columns named. Read on from
        the last id, no job comes twice."""
        ...

    async def queues(self, tenant_id: int) -> list[QueueSummary]:
        """Every queue of the tenant that has jobs or was ever paused: how many it has in each state, since when the
        first that could be claimed has been due, and since when the queue is paused."""
        ...

    async def overdue(self, limit: int) -> list[Job]:
        """Jobs whose lease is over, the longest first. They may have moved on by the time they are read."""
        ...

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        """Which of these jobs are running under this worker; what it lost, or has settled, is not among them."""
        ...

    async def events(
        self,
        wanted: EventFilter = ...,
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        """One page of the log. Oldest first and read on from the last cursor, no event is ever missed or repeated."""
        ...

    async def event_count(self, tenant_id: int | None = None) -> int:
        """How many events there are."""
        ...

    async def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        """One page of the log entity by entity, beginning after (entity id, seq, entity)."""
        ...

    async def log_end(self) -> str:
        """A cursor: every event that commits from now on comes after it. A few that are there already may, too."""
        ...

    async def prunable(self, lifecycle: Lifecycle, expiry: Expiry, *, after: int = 0, limit: int = 1000) -> Expired:
        """One page of the jobs or workers, in the order of their ids: those that retention may delete, and where to go
        on. A job stays while the one it runs again is there, a worker while it holds a job."""
        ...

    async def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int = 100) -> list[Telemetry]:
        """What was lately seen of an entity, the newest first; another tenant's is none."""
        ...

    async def pruned(self) -> list[Pruned]:
        """What retention has deleted so far, by tenant, entity and state."""
        ...

    async def faults(self) -> list[str]:
        """What is wrong with the database itself: damaged storage, guards that are missing or changed."""
        ...


class Writer(Protocol):
    """Writes. Each is all or nothing, and returns only when it is on disk (in a transaction: when that commits)."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """All jobs are queued, or none; a job whose key was used before is not made, the first one's id is returned."""
        ...

    async def claim(
        self,
        worker: int,
        queues: Sequence[str],
        limit: int,
        lease_us: int,
        *,
        claim_id: int,
        tenant_id: int | None = None,
        start: bool = False,
        again: bool = False,
    ) -> list[Job]:
        """Each job goes to one claimer only, highest priority first, then oldest; a worker that is not IDLE or RUNNING
        gets none. With `start` the jobs are running when they are returned: two moves and two events in one write. With
        `again`, a claim whose answer was lost returns the jobs it took, and takes no more."""
        ...

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Each change is written with its event if its record is still as it was decided on; those that came too late
        are returned and have changed nothing. The same change by the same actor a second time counts as written."""
        ...

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[int]:
        """The leases of these (job, epoch) run on from now; the jobs that are no longer held are returned."""
        ...

    async def create(
        self,
        lifecycle: Lifecycle,
        *,
        tenant_id: int = DEFAULT_TENANT,
        actor: str | None = None,
        reason: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        **columns: Any,
    ) -> int:
        """A new entity in its initial state, with its first event; returns its key."""
        ...

    async def request_stop(self, id: int, tenant_id: int) -> bool:
        """Asks a running job to come to an end by itself; false when it is not running."""
        ...

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        """From the next claim on, the queue is served or not; asking twice changes nothing."""
        ...

    async def recall(
        self, tenant_id: int, endpoint: str, key: str, request_hash: str, ttl_us: int = 3_600_000_000
    ) -> Seen | None:
        """None for the first request of a key, which is from then on this transaction's to answer; else what the first
        one was answered. Another body is `KeyReused`; one still at work after 2 s is `RequestInFlight`."""
        ...

    async def answer(self, tenant_id: int, endpoint: str, key: str, response: str) -> None:
        """What a repeated request will be told; kept if and only if the transaction commits."""
        ...

    async def forget_requests(self, limit: int = 500) -> int:
        """Drops idempotency keys whose time is over, at most so many; returns how many."""
        ...

    async def prune(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        """Deletes those of these jobs or workers that may still go, and accounts for them in the same write; returns
        how many. Their events stay."""
        ...

    async def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, *, ttl_us: int, tenant_id: int = DEFAULT_TENANT
    ) -> None:
        """Keeps something seen of an entity until its time is over. It is no event, and no move."""
        ...

    async def forget_telemetry(self, limit: int = 500) -> int:
        """Drops telemetry whose time is over, at most so much; returns how much."""
        ...

    async def take_duty(self, name: str, every_us: int) -> bool:
        """True for the first to ask, then for nobody until that time is over."""
        ...


class Transaction(Reader, Writer, Protocol):
    """Several reads and writes that happen together or not at all."""


class Store(Reader, Writer, Protocol):
    """A database opened for use. Each call is a transaction of its own."""

    @property
    def url(self) -> str:
        """Which database, fit to be shown."""
        ...

    def transaction(self, tenant_id: int | None = None) -> AbstractAsyncContextManager[Transaction]:
        """A transaction over several calls: committed at the end of the block, undone by an exception. With a tenant,
        PostgreSQL lets it see and touch only that tenant's rows."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Reader]:
        """Reads that all see the same moment."""
        ...

    def follow(self, wanted: EventFilter = ..., *, after: str | None = None) -> AsyncIterator[Event]:
        """Every event in the order of commits, without end: first those there are, then those to come."""
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back on this event loop soon after jobs were enqueued, by whatever process; returns how to stop. A ring
        may get lost or come for nothing, so whoever listens looks by itself now and then."""
        ...

    async def close(self) -> None:
        """Gives everything back; what was acknowledged is on disk."""
        ...
