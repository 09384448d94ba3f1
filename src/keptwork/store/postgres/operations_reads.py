"""The store's reads on PostgreSQL. The subclass decides the connection and the transaction."""

# ruff: noqa: S608 - table names come from the declarations; every value is a parameter.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from keptwork.core.decide import Lifecycle
from keptwork.errors import NotFound
from keptwork.store.contract import (
    events,
    jobs_list,
    workers,
)
from keptwork.store.contract.checkpoints import Checkpoint
from keptwork.store.contract.checkpoints_blobs import Artifact
from keptwork.store.contract.flows import Rows
from keptwork.store.contract.queues import Schedule
from keptwork.store.contract.records import (
    Counter,
    Event,
    EventFilter,
    Held,
    Job,
    JobFilter,
    LimitRule,
    LimitUse,
    Place,
    QueueSummary,
    Telemetry,
    Tenant,
    WorkerFilter,
)
from keptwork.store.contract.store_shared_verbs import SharedReads
from keptwork.store.contract.waits_approvals import Approval
from keptwork.store.contract.waits_signals import Signal
from keptwork.store.dialect import POSTGRES
from keptwork.store.postgres.migrate_faults import postgres_faults
from keptwork.store.statements import Catalogue
from keptwork.store.trigger_rules import both, mine


class PostgresReads(SharedReads):
    """The read operations."""

    _catalogue: Catalogue

    @abstractmethod
    def _connection(self) -> AbstractAsyncContextManager[asyncpg.Connection]:
        """Return a connection, which the subclass chooses."""

    async def _ask(self, statement: str, /, **values: Any) -> Rows:
        return await self._fetch(statement, **values)

    def _list(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    async def now(self) -> int:
        return int((await self._sent("SELECT keptwork_now()", ()))[0][0])

    async def tenant(self, name: str) -> int:
        rows = await self._fetch("tenant_by_name", name=name)
        if not rows:
            raise NotFound(what="tenant", id=name, listing="keptwork tenants list")
        return int(rows[0][0])

    async def tenants(self) -> list[Tenant]:
        return [Tenant(*row) for row in await self._fetch("tenants")]

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        rows = [row for row in await self.rows(lifecycle, [id]) if tenant_id is None or row["tenant_id"] == tenant_id]
        return rows[0] if rows else None

    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ("*",)
    ) -> list[dict[str, Any]]:
        chosen = both("id = ANY($1::bigint[])", mine(lifecycle, lifecycle.table))
        sql = f"SELECT {', '.join(columns)} FROM {lifecycle.table} WHERE {chosen}"
        return [dict(row) for row in await self._sent(sql, [list(ids)])]

    async def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        ours = f"WHERE lifecycle = '{lifecycle.name}'" if lifecycle.shares_table else ""
        unlogged = "count(*) FILTER (WHERE NOT EXISTS (SELECT 1 FROM events WHERE entity_id = t.id AND seq = 1))"
        async with self._connection() as connection:
            total, bare = await connection.fetchrow(f"SELECT count(*), {unlogged} FROM {lifecycle.table} AS t {ours}")
            return total, bare

    async def jobs(
        self,
        wanted: JobFilter = JobFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = True,
        columns: Sequence[str] = ("*",),
    ) -> list[dict[str, Any]]:
        sql, values = jobs_list.page(POSTGRES, wanted, after, limit, newest_first, columns)
        return [dict(row) for row in await self._sent(sql, values)]

    async def queues(self, tenant_id: int, *, unfinished_only: bool = False) -> list[QueueSummary]:
        statement = "unfinished_queues" if unfinished_only else "queues"
        return jobs_list.summaries(await self._fetch(statement, tenant_id=tenant_id))

    async def schedules(self, tenant_id: int) -> list[Schedule]:
        return [Schedule(*row) for row in await self._fetch("schedules", tenant_id=tenant_id)]

    async def schedule_due(self) -> int | None:
        rows = await self._fetch("schedule_due")
        return rows[0][0] if rows else None

    async def workers(
        self,
        wanted: WorkerFilter = WorkerFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        sql, values = workers.page(POSTGRES, wanted, after, limit)
        return [dict(row) for row in await self._sent(sql, values)]

    async def worker_states(self, tenant_id: int) -> dict[str, int]:
        return dict(await self._fetch("worker_states", tenant_id=tenant_id))

    async def limit_rules(self) -> list[LimitRule]:
        return [LimitRule(*row) for row in await self._fetch("limit_rules")]

    async def limit_uses(self, tenant_id: int) -> list[LimitUse]:
        return [LimitUse(*row) for row in await self._fetch("limit_uses", tenant_id=tenant_id)]

    async def next_pump(self) -> int | None:
        at: int | None = (await self._fetch("next_pump"))[0][0]
        return at

    async def place(self, tenant_id: int, job: int) -> Place | None:
        rows = await self._fetch("place", tenant_id=tenant_id, id=job)
        return Place(*rows[0]) if rows else None

    async def overdue(self, limit: int) -> list[Job]:
        return [Job(*row) for row in await self._fetch("overdue", limit=limit)]

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        rows = await self._fetch("held", worker=worker, ids=list(ids))
        return {id: Held(epoch, stop) for id, epoch, stop in rows}

    async def events(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        sql, values = events.page(POSTGRES, wanted, after, limit, newest_first)
        return [events.event(POSTGRES, row) for row in await self._sent(sql, values)]

    async def event_count(self, tenant_id: int | None = None) -> int:
        return int((await self._fetch("event_count", tenant_id=tenant_id))[0][0])

    async def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        sql, values = events.history(POSTGRES, after, limit)
        return [events.event(POSTGRES, row) for row in await self._sent(sql, values)]

    async def blob(self, tenant_id: int, hash: str) -> bytes | None:
        rows = await self._fetch("blob", tenant_id=tenant_id, hash=hash)
        return rows[0][0] if rows else None

    async def artifacts(self, tenant_id: int, job: int) -> list[Artifact]:
        return [Artifact(*row) for row in await self._fetch("artifacts", tenant_id=tenant_id, job_id=job)]

    async def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        return [Checkpoint(*row) for row in await self._fetch("checkpoints", tenant_id=tenant_id, job_id=job)]

    async def unfinished_children(self, tenant_id: int, jobs: Sequence[int]) -> list[int]:
        return [row[0] for row in await self._fetch("unfinished_children", tenant_id=tenant_id, jobs=list(jobs))]

    async def cancelled_parents(self, limit: int) -> list[tuple[int, int]]:
        return [(tenant_id, id) for tenant_id, id in await self._fetch("cancelled_parents", limit=limit)]

    async def stopped_waits(self, limit: int) -> list[tuple[int, int]]:
        return [(tenant_id, id) for tenant_id, id in await self._fetch("stopped_waits", limit=limit)]

    async def next_signal(self, tenant_id: int, job: int, name: str, after: int) -> Signal | None:
        rows = await self._fetch("next_signal", tenant_id=tenant_id, job_id=job, name=name, after=after)
        return Signal(*rows[0]) if rows else None

    async def approval(self, tenant_id: int, id: int) -> Approval | None:
        rows = await self._fetch("approval", tenant_id=tenant_id, id=id)
        return Approval(*rows[0]) if rows else None

    async def approvals(
        self,
        tenant_id: int,
        *,
        job: int | None = None,
        open_only: bool = True,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        which = "open_approvals" if open_only else "approvals"
        found = await self._fetch(which, tenant_id=tenant_id, job_id=job, after=after, limit=limit)
        return [Approval(*row) for row in found]

    async def log_end(self) -> str:
        return str((await self._fetch("log_end"))[0][0])

    async def log_position(self, reader: str) -> str | None:
        rows = await self._fetch("log_position", reader=reader)
        return str(rows[0][0]) if rows else None

    async def counters(self, tenant_id: int) -> list[Counter]:
        return [Counter(*row) for row in await self._fetch("counters", tenant_id=tenant_id)]

    async def job_moves_since(self, tenant_id: int, since: int, until: int | None = None) -> dict[str, int]:
        return dict(await self._fetch("job_moves_since", tenant_id=tenant_id, since=since, until=until))

    async def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int = 100) -> list[Telemetry]:
        rows = await self._fetch("telemetry", entity=lifecycle.name, entity_id=id, tenant_id=tenant_id, limit=limit)
        return [Telemetry(*row) for row in rows]

    async def faults(self) -> list[str]:
        async with self._connection() as connection:
            return await postgres_faults(connection)

    async def _fetch(self, named: str, /, **values: Any) -> list[asyncpg.Record]:
        statement = self._catalogue[named]
        return await self._sent(statement.sql, [values[parameter] for parameter in statement.parameters])

    @abstractmethod
    async def _sent(self, sql: str, values: Sequence[Any]) -> list[asyncpg.Record]:
        """Send a statement and return its rows."""
