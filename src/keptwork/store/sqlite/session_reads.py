"""The store's reads inside a SQLite transaction, made on the thread that holds the connection."""

# ruff: noqa: S608 - table names come from the declarations; every value is a parameter.

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from keptwork.core.decide import Lifecycle
from keptwork.errors import NotFound
from keptwork.store.contract import events, jobs_list, workers
from keptwork.store.contract.checkpoints import Checkpoint
from keptwork.store.contract.checkpoints_blobs import Artifact
from keptwork.store.contract.events_digest import Digest, digest, start
from keptwork.store.contract.queues import Schedule
from keptwork.store.contract.records import (
    Counter,
    Event,
    EventFilter,
    Held,
    Job,
    JobFilter,
    Place,
    QueueSummary,
    Telemetry,
    Tenant,
    WorkerFilter,
)
from keptwork.store.contract.waits_approvals import Approval
from keptwork.store.contract.waits_signals import Signal
from keptwork.store.counters import Tally
from keptwork.store.dialect import SQLITE
from keptwork.store.sqlite.file_faults import sqlite_faults
from keptwork.store.statements import Catalogue
from keptwork.store.trigger_rules import both, mine


class SessionReads:
    """A connection and the time of its transaction."""

    def __init__(self, db: apsw.Connection, catalogue: Catalogue, tally: Tally) -> None:
        self._db = db
        self._catalogue = catalogue
        self._tally = tally
        self.now = 0

    def last_time(self) -> int:
        """Return the time of the newest event. No transaction gets an earlier time."""
        rows = self._run("last_time")
        return rows[0][0] if rows else 0

    def tenant(self, name: str) -> int:
        rows = self._run("tenant_by_name", name=name)
        if not rows:
            raise NotFound(what="tenant", id=name, listing="keptwork tenants list")
        return int(rows[0][0])

    def tenants(self) -> list[Tenant]:
        return [Tenant(*row) for row in self._run("tenants")]

    def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        rows = [row for row in self.rows(lifecycle, [id]) if tenant_id is None or row["tenant_id"] == tenant_id]
        return rows[0] if rows else None

    def rows(self, lifecycle: Lifecycle, keys: Sequence[int], columns: Sequence[str] = ("*",)) -> list[dict[str, Any]]:
        chosen = both("id IN (SELECT value FROM json_each(?))", mine(lifecycle, lifecycle.table))
        sql = f"SELECT {', '.join(columns)} FROM {lifecycle.table} WHERE {chosen}"
        return named(self._db.execute(sql, (json.dumps(list(keys)),)))

    def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        ours = f"WHERE lifecycle = '{lifecycle.name}'" if lifecycle.shares_table else ""
        unlogged = "count(*) FILTER (WHERE NOT EXISTS (SELECT 1 FROM events WHERE entity_id = t.id AND seq = 1))"
        sql = f"SELECT count(*), {unlogged} FROM {lifecycle.table} AS t {ours}"
        rows: list[tuple[Any, ...]] = self._db.execute(sql).fetchall()
        return rows[0][0], rows[0][1]

    def jobs(
        self, wanted: JobFilter, after: int | None, limit: int, newest_first: bool, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        return named(self._db.execute(*jobs_list.page(SQLITE, wanted, after, limit, newest_first, columns)))

    def queues(self, tenant_id: int, unfinished_only: bool) -> list[QueueSummary]:
        statement = "unfinished_queues" if unfinished_only else "queues"
        return jobs_list.summaries(self._run(statement, tenant_id=tenant_id))

    def schedules(self, tenant_id: int) -> list[Schedule]:
        return [Schedule(*row) for row in self._run("schedules", tenant_id=tenant_id)]

    def schedule_due(self) -> int | None:
        rows = self._run("schedule_due")
        return rows[0][0] if rows else None

    def workers(self, wanted: WorkerFilter, after: int | None, limit: int) -> list[dict[str, Any]]:
        return named(self._db.execute(*workers.page(SQLITE, wanted, after, limit)))

    def worker_states(self, tenant_id: int) -> dict[str, int]:
        return dict(self._run("worker_states", tenant_id=tenant_id))

    def place(self, tenant_id: int, job: int) -> Place | None:
        rows = self._run("place", tenant_id=tenant_id, id=job)
        return Place(*rows[0]) if rows else None

    def overdue(self, limit: int) -> list[Job]:
        return [Job(*row) for row in self._run("overdue", limit=limit)]

    def held(self, worker: int, keys: Sequence[int]) -> dict[int, Held]:
        rows = self._run("held", worker=worker, ids=json.dumps(list(keys)))
        return {id: Held(epoch, bool(stop)) for id, epoch, stop in rows}

    def events(self, wanted: EventFilter, after: str | None, limit: int, newest_first: bool) -> list[Event]:
        sql, values = events.page(SQLITE, wanted, after, limit, newest_first)
        return [events.event(SQLITE, row) for row in self._db.execute(sql, values)]

    def event_count(self, tenant_id: int | None) -> int:
        return int(self._run("event_count", tenant_id=tenant_id)[0][0])

    def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        sql, values = events.history(SQLITE, after, limit)
        return [events.event(SQLITE, row) for row in self._db.execute(sql, values)]

    def blob(self, tenant_id: int, hash: str) -> bytes | None:
        rows = self._run("blob", tenant_id=tenant_id, hash=hash)
        return rows[0][0] if rows else None

    def artifacts(self, tenant_id: int, job: int) -> list[Artifact]:
        return [Artifact(*row) for row in self._run("artifacts", tenant_id=tenant_id, job_id=job)]

    def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        return [Checkpoint(*row) for row in self._run("checkpoints", tenant_id=tenant_id, job_id=job)]

    def unfinished_children(self, tenant_id: int, jobs: Sequence[int]) -> list[int]:
        return [row[0] for row in self._run("unfinished_children", tenant_id=tenant_id, jobs=json.dumps(list(jobs)))]

    def cancelled_parents(self, limit: int) -> list[tuple[int, int]]:
        return [(tenant_id, id) for tenant_id, id in self._run("cancelled_parents", limit=limit)]

    def stopped_waits(self, limit: int) -> list[tuple[int, int]]:
        return [(tenant_id, id) for tenant_id, id in self._run("stopped_waits", limit=limit)]

    def next_signal(self, tenant_id: int, job: int, name: str, after: int) -> Signal | None:
        rows = self._run("next_signal", tenant_id=tenant_id, job_id=job, name=name, after=after)
        return Signal(*rows[0]) if rows else None

    def approval(self, tenant_id: int, id: int) -> Approval | None:
        rows = self._run("approval", tenant_id=tenant_id, id=id)
        return Approval(*rows[0]) if rows else None

    def approvals(
        self, tenant_id: int, job: int | None, open_only: bool, after: int | None, limit: int
    ) -> list[Approval]:
        which = "open_approvals" if open_only else "approvals"
        found = self._run(which, tenant_id=tenant_id, job_id=job, after=after, limit=limit)
        return [Approval(*row) for row in found]

    def stale_approvals(self) -> bool:
        return bool(self._run("stale_approvals"))

    def unused_blobs(self, older_than: int, limit: int) -> list[tuple[Any, ...]]:
        return self._run("unused_blobs", older_than=older_than, limit=limit)

    def log_end(self) -> str:
        return str(self._run("log_end")[0][0])

    def digest(self, after: str | None, limit: int) -> Digest:
        return digest(SQLITE, self._run("digest", **start(SQLITE, after), limit=limit))

    def log_position(self, reader: str) -> str | None:
        rows = self._run("log_position", reader=reader)
        return str(rows[0][0]) if rows else None

    def counters(self, tenant_id: int) -> list[Counter]:
        return [Counter(*row) for row in self._run("counters", tenant_id=tenant_id)]

    def job_moves_since(self, tenant_id: int, since: int, until: int | None) -> dict[str, int]:
        return dict(self._run("job_moves_since", tenant_id=tenant_id, since=since, until=until))

    def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int) -> list[Telemetry]:
        rows = self._run("telemetry", entity=lifecycle.name, entity_id=id, tenant_id=tenant_id, limit=limit)
        return [Telemetry(*row) for row in rows]

    def faults(self) -> list[str]:
        return sqlite_faults(self._db)

    def run(self, statement: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a named statement."""
        return self._run(statement, **values)

    def _run(self, named: str, /, **values: Any) -> list[tuple[Any, ...]]:
        sql, parameters = self._catalogue[named]
        values["now"] = self.now
        return self._db.execute(sql, [values[parameter] for parameter in parameters]).fetchall()


def named(cursor: apsw.Cursor) -> list[dict[str, Any]]:
    """Return rows by column name. The names are known only when there is a first row."""
    first = cursor.fetchone()
    if first is None:
        return []
    names = [column[0] for column in cursor.get_description()]
    return [dict(zip(names, row, strict=True)) for row in (first, *cursor)]
