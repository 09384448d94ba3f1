"""The store that several machines share: a PostgreSQL database, used through a pool of connections."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

import asyncpg

from keptwork.core.lifecycles import Change
from keptwork.core.loop_scope import COMMITTED, ROLLED_BACK, Scope, idle_for
from keptwork.errors import NewerDatabase, NotMigrated, StoreError, TransactionEnded, Unconfirmed, Unreachable
from keptwork.store.contract.checkpoints_blobs import with_blobs
from keptwork.store.contract.claims_turn import Turn
from keptwork.store.contract.flows_steps import STEP_COLUMNS
from keptwork.store.contract.operations_own_sql import insist_harmless
from keptwork.store.contract.records import DEFAULT_TENANT, Event, EventFilter, Job, NewJob
from keptwork.store.contract.store import SPOILT, Enqueues
from keptwork.store.contract.store_follow import following
from keptwork.store.contract.waits import wakes
from keptwork.store.counters import Tally, flush
from keptwork.store.dialect import POSTGRES
from keptwork.store.migrations import newest
from keptwork.store.postgres import connections_server, handover
from keptwork.store.postgres.batches_keys import KeyPages
from keptwork.store.postgres.connections import (
    APP_ROLE,
    AppConnections,
    Connections,
    TenantConnections,
    insist_confirmed,
    new_pool,
    usable,
)
from keptwork.store.postgres.connections_server import (
    FROM_POSTGRES,
    asks_again,
    connect,
    connect_seconds,
    explained,
    explanation,
    lost_answer,
)
from keptwork.store.postgres.external_transaction import Guest
from keptwork.store.postgres.handover_unmoved import Unmoved
from keptwork.store.postgres.migrate import (
    applied,
    applied_at_rest,
    migrate_database,
    realign,
    refuse_foreign,
)
from keptwork.store.postgres.notifier import Bell
from keptwork.store.postgres.operations import PostgresVerbs
from keptwork.store.postgres.row_security import refuse_unseen
from keptwork.store.postgres.standby_acknowledgement import (
    Acknowledging,
    Operation,
    Server,
    acknowledges,
    changed,
    current,
    sent,
)
from keptwork.store.statements import Catalogue
from keptwork.store.url import DatabaseUrl

T = TypeVar("T")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
MOST_ROUNDS = 8


@acknowledges
class PostgresStore(PostgresVerbs):
    """An open PostgreSQL database."""

    __slots__ = ("operation",)

    def __init__(self, url: DatabaseUrl, connections: Connections, tally: Tally) -> None:
        self.operation: Operation | None = None
        self.url = url.shown
        self._url = url
        self._engine = connections
        self._connections: Connections | TenantConnections = connections
        self._app: AppConnections | None = None
        self._catalogue = Catalogue(POSTGRES)
        self._keys = KeyPages()
        self._turn = Turn()
        self.tally = tally
        self._bell = Bell(url, self._ring)
        self._home: str | None = None

    @classmethod
    async def open(
        cls, url: DatabaseUrl, *, migrate: bool = False, create: bool = True, tally: Tally | None = None
    ) -> PostgresStore:
        """Connect, and prepare a new database. Reject a newer schema, and an older one unless `migrate` is set."""
        connection = await connect(url)
        try:
            with explained(url):
                await _bring_up_to_date(connection, url, migrate, create)
        finally:
            await connection.close()
        with explained(url):
            return cls(url, Connections(await new_pool(url)), tally or Tally())

    async def close(self) -> None:
        await flush(self)
        await self._bell.close()
        await self._engine.close()
        if self._app is not None:
            await self._app.close()

    def abandon(self) -> None:
        self._engine.abandon()
        if self._app is not None:
            self._app.abandon()

    @asynccontextmanager
    async def transaction(self, tenant_id: int | None = None) -> AsyncIterator[PostgresTransaction]:
        async with self._begun() as transaction:
            if tenant_id is not None:
                await transaction.narrow_to(tenant_id)
            yield transaction

    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        """Run the work in a transaction. If the server rolled it back because of a deadlock, retry it after a random
        pause."""
        for rounds in range(1, MOST_ROUNDS):
            try:
                return await self._once(work)
            except StoreError as error:
                if not asks_again(error):
                    raise
            await asyncio.sleep(SHORTEST_PAUSE * random.uniform(0, 1 << rounds))  # noqa: S311 - no secret
        return await self._once(work)

    async def _once(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run the work once. At the end, notify workers once of the jobs that the work enqueued and did not claim
        itself."""
        async with self._begun() as transaction:
            transaction.untold = set()
            result = await work(transaction)
            transaction.insist_unspoilt()
            ring = self._bell.due() if transaction.untold else None
            if ring is not None:
                await transaction._fetch("ring", ring=ring)
        if transaction.untold:
            self._bell.rung(to_all=ring is not None)
        return result

    def within(self, transaction: Any) -> Enqueues:
        if isinstance(transaction, PostgresTransaction):
            return transaction
        return Guest(transaction, self._url, self._schema)

    async def _schema(self) -> str:
        """Return the schema of the tables, quoted for a statement."""
        if self._home is None:
            self._home = str((await self._fetch("home"))[0][0])
        return self._home

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PostgresTransaction]:
        async with self._begun(isolation="repeatable_read", readonly=True) as transaction:
            yield transaction

    async def follow(self, wanted: EventFilter | None = None, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in following(self, wanted or EventFilter(), after):
            yield event

    def narrowed(self, tenant_id: int) -> PostgresStore:
        """Return a view of this store whose sessions see one tenant."""
        if self._app is None:
            self._app = AppConnections(self._url)
        lent = self.lent(self.operation)
        lent.__dict__ = {**self.__dict__, "_connections": TenantConnections(self._app, tenant_id)}
        return lent

    def lent(self, operation: Operation | None) -> Self:
        """Return a view of this store for one operation. Everything else is shared."""
        lent = object.__new__(type(self))
        lent.__dict__, lent.operation = self.__dict__, operation
        return lent

    async def cannot_narrow(self) -> str | None:
        try:
            unseen = [row[0] for row in await self.narrowed(DEFAULT_TENANT)._fetch("unseen_tables")]
        except Unreachable:
            raise
        except StoreError as error:
            return str(error.facts["detail"])
        return f"{APP_ROLE} may not read {', '.join(unseen)}" if unseen else None

    async def insist_on_sight(self) -> None:
        async with self._connection() as connection:
            await refuse_unseen(connection, self._url)

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        return self._bell.listen(heard)

    async def _enqueue_as(self, keys: list[int], jobs: Sequence[NewJob], ring: str | None = "") -> list[int]:
        ring = self._bell.due()
        made = await super()._enqueue_as(keys, jobs, ring)
        self._bell.rung(to_all=ring is not None)
        return made

    def _rings(self) -> bool:
        """Whether to notify now. The worker that promotes a job looks for it immediately anyway."""
        return self._bell.due() is not None

    async def _ring(self, ring: str) -> None:
        await self._fetch("ring", ring=ring)

    async def _surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry a call for a while after a lost response. Only this process knows the IDs with which the rows were
        sent."""
        give_up_at, pause = 0.0, SHORTEST_PAUSE
        while True:
            try:
                return await call()
            except Unreachable as error:
                if not give_up_at and lost_answer(error):
                    give_up_at = time.monotonic() + connect_seconds()
                if time.monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def scene(self, table: str, flow: int, names: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return a flow in this table with those of its steps that are named, in one query. Return an empty flow if it
        has none of them."""
        rows = await self._fetch(f"scene_{table}", id=flow, names=list(names))
        return dict(rows[0]["f"]) if rows else {}, [dict(zip(STEP_COLUMNS, row[1:], strict=True)) for row in rows]

    async def hand_over(
        self,
        changes: Sequence[Change],
        unmoved: Sequence[Unmoved],
        job: NewJob,
        worker: int,
        lease_us: int,
        claim_id: int,
    ) -> Job | None:
        """Write these moves and start a job of the same tree on a worker, in one statement, or do nothing.

        It does nothing if another transaction works on the tree, a record has moved since it was read, or the job
        cannot start on that worker. A lost response is not retried here, since a claim with this claim ID finds the
        job.
        """
        if with_blobs(changes) or wakes([changes[:1]]) or any(change.limit_key for change in changes):
            return None
        id = await self._new_key()
        moves = [(change, self._catalogue.given(change)) for change in changes]
        values = {**job._asdict(), "id": id, "worker": worker, "lease_us": lease_us, "claim_id": claim_id}
        statement = self._catalogue.hand_over(changes, unmoved)
        values |= handover.values(moves, unmoved)
        try:
            rows = await self._sent(statement.sql, [values[name] for name in statement.parameters])
        except asyncpg.LockNotAvailableError:  # the statement's signal that something has changed
            return None
        if not rows:
            return None
        self.tally.enqueued([job], [id], [id])
        self.tally.claimed(rows, None)
        return Job(*rows[0])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        with explained(self._url):
            connection = await self._connections.acquired()
            try:
                yield connection
            except BaseException:
                await self._connections.release(connection)
                raise
            await self._connections.put_back(connection)

    async def _sent(self, sql: str, values: Sequence[Any]) -> list[asyncpg.Record]:
        """Send a statement. There are no context managers here, because they take a tenth of the time of a short
        statement."""
        operation = self.operation or current()
        if operation is not None:
            operation.queried = True
        try:
            connection = await self._connections.acquired()
            if operation is not None:
                operation.server = connection._addr
            try:
                rows, wrote = await sent(connection, sql, values)
                insist_confirmed(connection)
            except BaseException:
                await self._connections.release(connection)
                raise
            await self._connections.put_back(connection)
        except asyncpg.LockNotAvailableError:
            raise
        except FROM_POSTGRES as error:
            raise explanation(error, self._url) from error
        if wrote and operation is not None:
            operation.committed()
        return rows

    def acknowledging(self) -> Acknowledging:
        return Acknowledging(self)

    async def confirm(self, server: Server | None) -> None:
        """Write a record to the log, and return when the standbys have it. After a failover the new primary might lack
        the rows that the answer rests on, and its record would vouch for nothing."""
        own = Operation()
        await self._surely(partial(self.lent(own)._fetch, "confirm"))
        if server not in (None, own.server):
            raise Unconfirmed(url=self.url)

    @asynccontextmanager
    async def _begun(self, **options: Any) -> AsyncIterator[PostgresTransaction]:
        """Return a transaction for the caller. Its end waits for the standbys even if it wrote nothing."""
        whole = Acknowledging(self, bound=False, reads_only="readonly" in options)
        async with whole as operation, self._lent(operation, **options) as lent:
            yield lent

    @asynccontextmanager
    async def _lent(self, operation: Operation, **options: Any) -> AsyncIterator[PostgresTransaction]:
        """Return a transaction for the caller. Errors of the caller's own code are not translated as the server's."""
        with explained(self._url):
            connection = await self._connections.acquired()
        try:
            transaction = connection.transaction(**options)
            with explained(self._url):
                await transaction.start()
            lent = PostgresTransaction(connection, self._url, self._catalogue, self._keys, self.tally)
            lent.operation = operation
            operation.server = connection._addr
            try:
                yield lent
                lent.scope.end(COMMITTED)
                lent.insist_unspoilt()
            except BaseException:
                lent.scope.end(ROLLED_BACK)
                # The driver refuses a rollback on a lost connection, where the server has already rolled back.
                with explained(self._url), suppress(asyncpg.InterfaceError):
                    await transaction.rollback()
                raise
            try:
                with explained(self._url):
                    await transaction.commit()
                    insist_confirmed(connection)
            except BaseException:
                lent.scope.end("its commit failed")
                raise
            if lent.wrote:
                operation.committed()
        except BaseException:
            await self._connections.release(connection)
            raise
        await self._connections.put_back(connection)

    def _transaction(self, **options: Any) -> AbstractAsyncContextManager[PostgresVerbs]:
        return self._begun(**options)


class PostgresTransaction(PostgresVerbs):
    """Several calls on one connection, in one transaction."""

    def __init__(
        self, connection: asyncpg.Connection, url: DatabaseUrl, catalogue: Catalogue, keys: KeyPages, tally: Tally
    ) -> None:
        self._own = connection
        self._url = url
        self._catalogue = catalogue
        self._keys = keys
        self._turn = Turn()
        self.tally = tally
        self.scope = Scope()
        self._used_at = time.monotonic()
        self._spoilt = False
        self.operation = Operation()
        self.wrote = False
        """Whether it has written or locked rows, so that its commit waits for the standbys."""
        self.untold: set[int] | None = None
        """The jobs that workers were not notified of yet. None means that each call notifies by itself."""

    def insist_unspoilt(self) -> None:
        """Raise if a call in the transaction failed. PostgreSQL would answer its COMMIT with a silent rollback."""
        self._insist_not_timed_out()
        if self._spoilt:
            raise StoreError(url=self._url.shown, detail=SPOILT)

    async def execute(self, sql: str, *values: Any) -> int:
        insist_harmless(sql)
        async with self._connection() as connection:
            if values:
                return self._counted(await connection.execute(sql, *values))
            # Without values, the driver would use a protocol that allows several statements.
            prepared = await connection.prepare(sql)
            await prepared.fetch()
            return self._counted(prepared.get_statusmsg())

    def _counted(self, status: str) -> int:
        count = changed(status)
        self.wrote |= count > 0
        return count

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        insist_harmless(sql)
        async with self._connection() as connection:
            return [dict(row) for row in await connection.fetch(sql, *values)]

    async def _enqueue_as(self, keys: list[int], jobs: Sequence[NewJob], ring: str | None = "") -> list[int]:
        if self.untold is None:
            return await super()._enqueue_as(keys, jobs, ring)
        self.untold.update(keys)
        return await super()._enqueue_as(keys, jobs, None)

    async def claim(self, *which: Any, **how: Any) -> list[Job]:
        jobs = await super().claim(*which, **how)
        if self.untold is not None:
            self.untold.difference_update(job.id for job in jobs)
        return jobs

    async def narrow_to(self, tenant_id: int) -> None:
        """Restrict the transaction to the rows of this tenant."""
        async with self._connection() as connection:
            await connection.execute("SET LOCAL ROLE keptwork_app")
            await connection.execute("SELECT set_config('keptwork.tenant', $1, true)", str(tenant_id))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        self.scope.insist()
        self.operation.queried = True
        try:
            with explained(self._url):
                yield self._own
        except BaseException as error:
            self._spoilt |= isinstance(error.__cause__ or error, asyncpg.PostgresError)
            self._insist_not_timed_out()
            raise
        self._used_at = time.monotonic()

    def _insist_not_timed_out(self) -> None:
        """Raise if the server ended the session because the transaction was idle for too long."""
        if not usable(self._own) and time.monotonic() - self._used_at > 0.9 * connections_server.IDLE_SECONDS:
            self.scope.end(idle_for(connections_server.IDLE_SECONDS))
            raise TransactionEnded(how=idle_for(connections_server.IDLE_SECONDS))

    async def _sent(self, sql: str, values: Sequence[Any]) -> list[asyncpg.Record]:
        async with self._connection() as connection:
            rows, wrote = await sent(connection, sql, values)
            self.wrote |= wrote
            return rows

    @asynccontextmanager
    async def acknowledging(self) -> AsyncIterator[None]:
        """Do nothing, since the end of the transaction waits for all of it."""
        yield

    @asynccontextmanager
    async def _transaction(self, **options: Any) -> AsyncIterator[PostgresVerbs]:
        yield self


async def _bring_up_to_date(connection: asyncpg.Connection, url: DatabaseUrl, migrate: bool, create: bool) -> None:
    found = await applied(connection)
    if 0 < found < newest() and create and not migrate:
        found = await applied_at_rest(connection)  # another program might be creating it
    if found > newest():
        raise NewerDatabase(url=url.shown, found=found, needed=newest())
    if found < newest():
        if not (migrate if found else create):
            await refuse_foreign(connection)
            raise NotMigrated(url=url.shown, found=found, needed=newest())
        await migrate_database(connection)
    await refuse_unseen(connection, url)
    await realign(connection)
