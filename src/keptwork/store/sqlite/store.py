"""The in-process store: one SQLite file, one writing thread, and many readers. Other processes can use the file,
too."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import apsw

from keptwork.core.clock import Clock, HostClock
from keptwork.core.loop_scope import COMMITTED, ROLLED_BACK, Scope, idle_for
from keptwork.errors import BadInput, NewerDatabase, NotMigrated, StoreError, TransactionEnded
from keptwork.store.contract.claims_turn import Turn
from keptwork.store.contract.queues import Planner
from keptwork.store.contract.records import DEFAULT_TENANT, Event, EventFilter, Job, NewJob
from keptwork.store.contract.store import SPOILT, Enqueues
from keptwork.store.contract.store_follow import following
from keptwork.store.counters import Tally, flush
from keptwork.store.dialect import SQLITE
from keptwork.store.migrations import newest
from keptwork.store.sqlite.file import MEMORY, connect, explained
from keptwork.store.sqlite.file_migrate import applied, migrate_file
from keptwork.store.sqlite.notifier import Bell, MemoryBell, SocketBell
from keptwork.store.sqlite.operations import SqliteReads, SqliteVerbs
from keptwork.store.sqlite.readers import Readers
from keptwork.store.sqlite.session import Session
from keptwork.store.sqlite.writer import Unit, Writer, tell
from keptwork.store.statements import Catalogue
from keptwork.store.url import DatabaseUrl

T = TypeVar("T")

IDLE_TRANSACTION_SECONDS = 60.0
WHY_NOT_STDLIB = "closing a file through a second SQLite library drops the locks of the first"


class SqliteStore(SqliteVerbs):
    """An open SQLite file."""

    def __init__(self, url: DatabaseUrl, db: apsw.Connection, clock: Clock, tally: Tally) -> None:
        self.url = url.shown
        self._path = url.path
        self._clock = clock
        self._catalogue = Catalogue(SQLITE)
        self.tally = tally
        self._writer = Writer(db, url.path, self._catalogue, clock, tally)
        self._readers = Readers(url.path, self._session_on)
        self._closed = False
        self._turn = Turn()
        self._bell = MemoryBell() if url.path == MEMORY else SocketBell(url.path)

    @classmethod
    async def open(
        cls,
        url: DatabaseUrl,
        *,
        migrate: bool = True,
        create: bool = True,
        clock: Clock | None = None,
        tally: Tally | None = None,
    ) -> SqliteStore:
        """Open or create the file. A file of a newer program is rejected and not changed."""
        db = await asyncio.to_thread(_open, url, migrate, create)
        return cls(url, db, clock or HostClock(), tally or Tally())

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await flush(self)
            self._bell.close()
            await asyncio.to_thread(self._close)

    def abandon(self) -> None:
        if not self._closed:
            self._closed = True
            self._bell.close()
            self._close()

    def _close(self) -> None:
        self._readers.close()
        self._writer.close()

    def transaction(self, tenant_id: int | None = None) -> SqliteTransaction:
        return SqliteTransaction(self._writer, self._bell)

    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        def done(session: Session) -> tuple[T, bool]:
            transaction = SqliteAtOneGo(session, self.tally)
            try:
                result = at_one_go(work(transaction))
            finally:
                transaction.ended = True
            if transaction.spoilt:
                raise StoreError(url=self.url, detail=SPOILT)
            return result, transaction.rings

        result, rings = await self._writer.run(done, rows=weight)
        if rings:
            self._bell.ring()
        return result

    def narrowed(self, tenant_id: int) -> SqliteStore:
        """Return this store. SQLite has no row-level security, but every query names its tenant."""
        return self

    async def cannot_narrow(self) -> str | None:
        return None

    async def insist_on_sight(self) -> None:
        """Accept any file: all its readers see every row."""

    def within(self, transaction: Any) -> Enqueues:
        if isinstance(transaction, SqliteTransaction):
            return transaction
        given = f"{type(transaction).__module__}.{type(transaction).__name__}"
        why = WHY_NOT_STDLIB if given == "sqlite3.Connection" else "a SQLite file has one writer, and this is another"
        raise BadInput(
            what=f"a {given} cannot be _tx: {why}; use: async with app.transaction() as tx, and tx.execute(…)"
        )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqliteReads]:
        if self._path == MEMORY:
            async with self.transaction() as transaction:
                yield transaction
            return
        connection = await asyncio.to_thread(self._readers.connection)
        try:
            with explained(self._path):
                connection.execute("BEGIN")
                session = self._session_on(connection)
            snapshot = SqliteSnapshot(session, self._path, self.tally)
            try:
                yield snapshot
            finally:
                snapshot.scope.end(COMMITTED)
        finally:
            connection.close()

    async def follow(self, wanted: EventFilter | None = None, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in following(self, wanted or EventFilter(), after):
            yield event

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        return self._bell.listen(heard)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        keys = await super().enqueue(jobs)
        self._bell.ring()
        return keys

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        fired = await super().fire_schedules(plan, limit, most_jobs)
        if fired:
            self._bell.ring()
        return fired

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        await super().set_queue_paused(name, paused, tenant_id)
        if not paused:
            self._bell.ring()

    def _ring(self) -> None:
        self._bell.ring()

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        id = await super().enqueue_unique(job, key, window_us)
        self._bell.ring()
        return id

    async def pump(self, limit: int = 500) -> int:
        let_go = await super().pump(limit)
        if let_go:
            self._bell.ring()
        return let_go

    async def _write(self, work: Callable[[Session], T], rows: int = 1) -> T:
        return await self._writer.run(work, rows=rows)

    async def _read(self, work: Callable[[Session], T]) -> T:
        if self._path == MEMORY:
            return await self._write(work)
        return await self._readers.run(work)

    def _session_on(self, connection: apsw.Connection) -> Session:
        session = Session(connection, self._catalogue, self.tally)
        session.now = self._clock.now(session.last_time())
        return session


class SqliteSnapshot(SqliteReads):
    """Reads of one moment, on a connection of their own."""

    def __init__(self, session: Session, path: str, tally: Tally) -> None:
        self._session = session
        self._path = path
        self.tally = tally
        self.scope = Scope()

    async def _read(self, work: Callable[[Session], T]) -> T:
        self.scope.insist()
        return await asyncio.to_thread(self._explained, work)

    def _explained(self, work: Callable[[Session], T]) -> T:
        with explained(self._path):
            return work(self._session)


class SqliteWithin(SqliteVerbs):
    """Calls inside a transaction. Waiting workers are notified after it commits."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._turn = Turn()
        self._told = False
        self._enqueued: set[int] = set()

    @property
    def rings(self) -> bool:
        """Whether to notify workers after the commit. Jobs that the transaction itself claims do not count."""
        return self._told or bool(self._enqueued)

    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        return await work(self)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        keys = await super().enqueue(jobs)
        self._enqueued.update(keys)
        return keys

    async def claim(self, *which: Any, **how: Any) -> list[Job]:
        jobs = await super().claim(*which, **how)
        self._enqueued.difference_update(job.id for job in jobs)
        return jobs

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        self._told = True
        return await super().enqueue_unique(job, key, window_us)

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        self._told = True
        return await super().fire_schedules(plan, limit, most_jobs)

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        self._told |= not paused
        await super().set_queue_paused(name, paused, tenant_id)

    def _ring(self) -> None:
        self._told = True


class SqliteAtOneGo(SqliteWithin):
    """A transaction that is a single unit of the writer. Its calls complete immediately, on the calling thread."""

    def __init__(self, session: Session, tally: Tally) -> None:
        super().__init__(tally)
        self._session = session
        self.spoilt = self.ended = False

    async def execute(self, sql: str, *values: Any) -> int:
        return self._session.own(sql, values)[1]

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return self._session.own(sql, values)[0]

    async def _write(self, work: Callable[[Session], T], rows: int = 1) -> T:
        if self.ended:
            raise TransactionEnded(how="with the work that was done in it")
        try:
            return work(self._session)
        except apsw.Error:
            self.spoilt = True  # it might have done a part of its work
            raise

    _read = _write


def at_one_go(work: Awaitable[T]) -> T:
    """Return the result of work that never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("work in a transaction of SQLite waited for something other than that transaction")


class SqliteTransaction(SqliteWithin):
    """Several calls in one transaction. The writing thread serves only this transaction until it ends."""

    def __init__(self, writer: Writer, bell: Bell) -> None:
        super().__init__(writer.tally)
        self._writer = writer
        self._bell = bell
        self._calls: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()
        self._commits = self._forgotten = False

    async def __aenter__(self) -> SqliteTransaction:
        self._scope = Scope()
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._served = asyncio.ensure_future(self._writer.run(self._serve, alone=True))
        try:
            await asyncio.wait({self._begun, self._served}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._scope.end(ROLLED_BACK)
            self._calls.put(None)  # the caller gave up waiting: end it, so that the thread is free
            raise
        if self._served.done():
            self._served.result()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._commits = kind is None
        self._scope.end(COMMITTED if self._commits else ROLLED_BACK)
        self._calls.put(None)
        try:
            await self._served
        except TransactionEnded:
            self._scope.end(idle_for(IDLE_TRANSACTION_SECONDS))
            if self._commits:
                raise
        except BaseException:
            self._scope.end(ROLLED_BACK)
            raise
        if self._commits and self.rings:
            self._bell.ring()

    async def execute(self, sql: str, *values: Any) -> int:
        return (await self._write(lambda session: session.own(sql, values)))[1]

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return (await self._write(lambda session: session.own(sql, values)))[0]

    async def _write(self, work: Callable[[Session], T], rows: int = 1) -> T:
        self._scope.insist()
        loop = asyncio.get_running_loop()
        unit = Unit(work, loop, loop.create_future())
        self._calls.put(unit)
        if self._forgotten:
            self._refuse_calls()
        result: T = await unit.future
        return result

    _read = _write

    def _serve(self, session: Session) -> None:
        """Serve the transaction's calls on the writing thread until it ends or is idle for too long."""
        self._writer.begin()
        try:
            self._begun.get_loop().call_soon_threadsafe(self._begun.set_result, None)
            while (unit := self._calls.get(timeout=IDLE_TRANSACTION_SECONDS)) is not None:
                try:
                    self._writer.attempt_in_savepoint(unit)
                finally:
                    tell([unit])
            self._writer.end("COMMIT" if self._commits else "ROLLBACK")
        except queue.Empty:
            self._writer.end("ROLLBACK")
            self._forgotten = True
            self._refuse_calls()
            raise self._idle() from None
        except BaseException:
            self._writer.end("ROLLBACK")
            raise

    def _refuse_calls(self) -> None:
        """Reject the calls that the writing thread no longer serves. Both threads call this."""
        with suppress(queue.Empty):
            while True:
                unit = self._calls.get_nowait()
                if unit is not None:
                    unit.error = self._idle()
                    tell([unit])

    def _idle(self) -> TransactionEnded:
        return TransactionEnded(how=idle_for(IDLE_TRANSACTION_SECONDS))


def _open(url: DatabaseUrl, migrate: bool, create: bool) -> apsw.Connection:
    db = connect(url.path, create=create, synchronous=url.synchronous, shared=url.shared)
    try:
        with explained(url.path):
            _bring_up_to_date(db, url, migrate, create or url.path == MEMORY)
            # A statement keeps what it might roll back for as long as it runs. Beyond 64 KiB, that would be in a file,
            # page by page. This is not set for a migration, because a new index over all rows can be larger than
            # memory.
            db.pragma("temp_store", "memory")
    except BaseException:
        db.close()
        raise
    return db


def _bring_up_to_date(db: apsw.Connection, url: DatabaseUrl, migrate: bool, create: bool) -> None:
    found = applied(db)
    if found > newest():
        raise NewerDatabase(url=url.shown, found=found, needed=newest())
    if found < newest():
        if not (migrate if found else create):
            raise NotMigrated(url=url.shown, found=found, needed=newest())
        migrate_file(db)
