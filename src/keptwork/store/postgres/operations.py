"""The store's operations on PostgreSQL. The subclass decides the connection and the transaction."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import asyncpg

from keptwork.core.decide import Change, Lifecycle
from keptwork.core.lifecycles import JOB
from keptwork.errors import RequestInFlight
from keptwork.store.contract.checkpoints import Report, Save
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob, with_blobs
from keptwork.store.contract.claims import batches
from keptwork.store.contract.claims_turn import Turn
from keptwork.store.contract.events_digest import Digest, digest, start
from keptwork.store.contract.flows import Rows
from keptwork.store.contract.jobs_spawned import keys_of, told
from keptwork.store.contract.queues import Plan, Planner, Schedule, planned
from keptwork.store.contract.records import (
    DEBOUNCED,
    DEFAULT_TENANT,
    FORGOTTEN,
    JOB_COLUMNS,
    JSON_COLUMNS,
    Birth,
    Counter,
    Job,
    LimitRule,
    NewJob,
    Progress,
    Seen,
    Standing,
    added_up,
    seen_before,
)
from keptwork.store.contract.store_shared_verbs import SharedVerbs
from keptwork.store.contract.waits import wakes
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import NewSignal, Sent
from keptwork.store.counters import Tally
from keptwork.store.dialect import POSTGRES
from keptwork.store.postgres import (
    side_writes_blobs,
    side_writes_checkpoints,
    side_writes_limits,
    side_writes_waits,
)
from keptwork.store.postgres.batches import DIFFERING, ENQUEUE_SHAPES, shape
from keptwork.store.postgres.batches_keys import KeyPages
from keptwork.store.postgres.operations_reads import PostgresReads

T = TypeVar("T")

LOCK_WAIT_MS = 2000


class PostgresVerbs(PostgresReads, SharedVerbs):
    """The read and write operations."""

    _keys: KeyPages
    _turn: Turn
    tally: Tally

    @abstractmethod
    def _transaction(self, **options: Any) -> AbstractAsyncContextManager[PostgresVerbs]:
        """Return the same operations inside one transaction: this one, if there already is one."""

    async def _tell(self, statement: str, /, **values: Any) -> Rows:
        return await self._fetch(statement, **values)

    async def _new_key(self) -> int:
        return (await self._new_keys(1))[0]

    async def _new_keys(self, count: int) -> list[int]:
        return self._keys.at_hand(count) or await self._surely(partial(self._keys.take, count, self._reserve_pages))

    async def _announce(self) -> None:
        await self._fetch("ring", ring="")

    async def atomically(self, work: Callable[[Any], Awaitable[T]], weight: int = 1) -> T:
        async with self._transaction() as transaction:
            return await work(transaction)

    async def _surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that has no effect when it is repeated. The store overrides this and retries after a lost
        response. In a transaction there is no retry, since the transaction is lost with its connection."""
        return await call()

    async def digest(self, after: str | None, limit: int) -> Digest:
        """Read the log in the order of its index. Sorting is disabled because the planner, if it knows too little of
        the log, would sort all of it."""
        async with self._transaction(readonly=True) as transaction:
            await transaction._set("enable_sort", "off")
            rows = await transaction._fetch("digest", **start(POSTGRES, after), limit=limit)
            await transaction._set("enable_sort", "on")
            return digest(POSTGRES, rows)

    async def _reserve_pages(self, count: int) -> list[int]:
        return [row[0] for row in await self._fetch("take_pages", count=count)]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        if not jobs:
            return []
        keys = await self._new_keys(len(jobs))
        made = await self._surely(partial(self._enqueue_as, keys, jobs))
        self.tally.enqueued(jobs, keys, made)
        return made

    async def _enqueue_as(self, keys: list[int], jobs: Sequence[NewJob], ring: str | None = "") -> list[int]:
        """Enqueue the jobs whose keys are new. Notify waiting workers, unless `ring` is None."""
        if len(jobs) == 1:
            born = await self._sent(self._catalogue.enqueue(jobs[0].limit_key).sql, [*keys, *jobs[0], ring])
        else:
            columns = {"id": tuple(keys), **dict(zip(NewJob._fields, zip(*jobs, strict=True), strict=True))}
            statement = self._catalogue.enqueue(any(columns["limit_key"]), shape(columns, ENQUEUE_SHAPES))
            born = await self._sent(statement.sql, statement.values({**columns, "ring": (ring,)}))
        return keys if len(born) == len(jobs) else await self._with_earlier(jobs, keys)

    async def _with_earlier(self, jobs: Sequence[NewJob], keys: list[int]) -> list[int]:
        keyed = [job for job in jobs if job.key is not None]
        rows = await self._fetch("jobs_by_key", tenant_id=[j.tenant_id for j in keyed], key=[j.key for j in keyed])
        known = {(tenant_id, key): id for tenant_id, key, id in rows}
        return [known.get((job.tenant_id, job.key), id) for job, id in zip(jobs, keys, strict=True)]

    async def enqueue_started(self, job: NewJob, worker: int, lease_us: int, claim_id: int) -> Job:
        if job.crew_id is not None:
            return await self._enqueue_one(job)
        id = await self._new_key()
        values = {**job._asdict(), "id": id, "worker": worker, "lease_us": lease_us, "claim_id": claim_id}
        rows = await self._surely(partial(self._fetch, "enqueue_started", **values))
        rows = rows or await self._surely(partial(self._fetch, "job", id=id))
        made = Job(*rows[0])
        self.tally.claimed(rows if made.owner == worker else [], None)
        if made.owner != worker:
            await self._announce()
        return made

    async def _enqueue_one(self, job: NewJob) -> Job:
        (row,) = await self.rows(JOB, await self.enqueue([job]), JOB_COLUMNS)
        return Job(**row)

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        return await self._surely(partial(self._enqueue_unique, job, key, window_us))

    async def _enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        async with self._transaction() as transaction:
            ((made, _, still),) = await transaction._fetch("recent_job", tenant_id=job.tenant_id, key=key)
            return int(made) if still and made is not None else await transaction._made(job, key, window_us)

    async def enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        return await self._surely(partial(self._enqueue_debounced, job, key, wait_us, most_us))

    async def _enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        async with self._transaction() as transaction:
            ((made, first_at, _),) = await transaction._fetch("recent_job", tenant_id=job.tenant_id, key=key)
            values = {name: getattr(job, name) for name in DEBOUNCED}
            values |= {"id": made, "wait_us": wait_us, "latest": first_at + most_us}
            if made and await transaction._fetch("push_back", **values):
                await transaction._fetch("wake_later", ids=[made])
                return int(made)
            return await transaction._made(job._replace(delay_us=min(wait_us, most_us)), key, most_us)

    async def _made(self, job: NewJob, key: str, window_us: int) -> int:
        (id,) = await self.enqueue([job])
        await self._fetch("job_made", tenant_id=job.tenant_id, key=key, job_id=id, window_us=window_us)
        return id

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
        without: Sequence[str] = (),
    ) -> list[Job]:
        values: dict[str, Any] = {"worker": worker, "claim_id": claim_id}
        if again:
            return [Job(*row) for row in await self._fetch("claimed_before", **values)]
        values |= {"limit": limit, "lease_us": lease_us, "queues": list(dict.fromkeys(queues))}
        values |= {"tenant_id": tenant_id, "turn": self._turn.after, "without": list(without) or None}
        rows = await self._fetch("claim_and_start" if start else "claim", **values, actor=f"w:{worker}")
        self.tally.claimed(rows, tenant_id)
        jobs = [Job(*row) for row in rows]
        self._turn.served(jobs)
        return jobs

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        runs, large = batches(changes), with_blobs(changes)
        limited = [change for change in changes if change.limit_key is not None]
        if not runs:
            return []
        touched = wakes(runs)
        if len(runs) == 1 and not large and touched is None and not limited:
            return await self._apply_batch(runs[0])
        async with self._transaction() as transaction:
            if touched:
                await side_writes_waits.prepare(transaction._fetch, touched, [change.id for change in changes])
            lost = [late for batch in runs for late in await transaction._apply_batch(batch)]
            await side_writes_blobs.keep_results(transaction._fetch, [one for one in large if one[0] not in lost])
            if touched and await side_writes_waits.wake(transaction._fetch, touched):
                await transaction._fetch("ring", ring="")
            if limited:
                await side_writes_limits.settle(transaction._fetch, limited, self._rings())
            return lost

    def _rings(self) -> bool:
        """Return whether to notify waiting workers of jobs that limits promote."""
        return True

    async def declare_limits(self, rules: Sequence[LimitRule]) -> None:
        async with self._transaction() as transaction:
            for rule in sorted(rules):
                limits = rule.most is not None or rule.rate is not None
                if await transaction._fetch("declare_limit" if limits else "drop_limit", **rule._asdict()):
                    await transaction._fetch("look_at_kind", name=rule.name)

    async def pump(self, limit: int = 500) -> int:
        async with self._transaction() as transaction:
            return await side_writes_limits.pump(transaction._fetch, limit, self._rings())

    async def _apply_batch(self, batch: list[Change]) -> list[Change]:
        first, (_, fields, names, extras) = batch[0], self._catalogue.move(batch[0])
        if len(batch) == 1:
            values = [*fields(first), *map(first.values.get, extras)]
            moved = await self._sent(self._catalogue.shaped(first).sql, values)
        else:
            columns = dict(zip(names, zip(*map(fields, batch), strict=True), strict=True))
            columns |= {name: tuple([change.values.get(name) for change in batch]) for name in extras}
            statement = self._catalogue.shaped(first, shape(columns, [(*DIFFERING, *extras)]))
            moved = await self._sent(statement.sql, statement.values(columns))
        if len(moved) == len(batch):
            return []
        return await self._lost(batch, {row[0] for row in moved})

    async def _lost(self, batch: list[Change], moved: set[int]) -> list[Change]:
        late = [change for change in batch if change.id not in moved]
        rows = await self._fetch(
            "applied_already",
            id=[change.id for change in late],
            seq=[change.seq + change.move.events for change in late],
            trigger=[change.move.trigger for change in late],
            actor=[change.actor for change in late],
            entity=[change.lifecycle.name for change in late],
        )
        done = {row[0] for row in rows}
        lost = [change for change in late if change.id not in done]
        self.tally.late(lost)
        return lost

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        held = await self._renewed("renew_free", worker, tokens, lease_us) if len(tokens) > 1 else set[Any]()
        # The others are lost, or locked: wait for one row at a time.
        held |= {one for token in set(tokens) - held for one in await self._renewed("renew", worker, [token], lease_us)}
        lost = [token for token in tokens if token not in held]
        self.tally.renewed(len(tokens), len(lost))
        return lost

    async def _renewed(self, how: str, worker: int, tokens: Iterable[tuple[int, int]], lease_us: int) -> set[Any]:
        ids, epochs = [list(column) for column in zip(*tokens, strict=True)]
        return {tuple(row) for row in await self._fetch(how, worker=worker, id=ids, epoch=epochs, lease_us=lease_us)}

    async def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        async with self._transaction() as transaction:
            return await side_writes_blobs.keep_artifact(transaction._fetch, job, name, blob, media_type)

    async def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        if not any(save.blob for save in saves):
            return await side_writes_checkpoints.keep(self._fetch, saves)
        async with self._transaction() as transaction:
            return await side_writes_checkpoints.keep(transaction._fetch, saves)

    async def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        await self._fetch("checkpoint_changed", tenant_id=tenant_id, job_id=job, name=name)

    async def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        await side_writes_checkpoints.note_progress(self._fetch, reports, ttl_us)

    async def lift_holds(self, holds: Sequence[str]) -> int:
        async with self._transaction() as transaction:
            lifted = await transaction._fetch("lift_holds", holds=list(holds))
            if limited := [id for id, limit_key in lifted if limit_key is not None]:
                await transaction._fetch("look_at_limits_of", ids=limited)
            return len(lifted)

    async def spawn(self, save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        keys = await self._new_keys(len(jobs))
        made = await self._surely(partial(self._spawn_as, keys, save._replace(result=told(keys)), jobs))
        if made == keys:
            self.tally.enqueued(jobs, keys, keys)
        return made

    async def _spawn_as(self, keys: list[int], save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        """Store the IDs and enqueue the children. The stored checkpoint decides, so a repeated call finds it and the
        jobs."""
        async with self._transaction() as transaction:
            (stands,) = await transaction.checkpoint([save])
            if stands is None or stands != save.result:
                return None if stands is None else keys_of(stands)
            return await transaction._enqueue_as(keys, jobs)

    async def send_signal(self, signal: NewSignal) -> Sent:
        return await self._surely(partial(self._send_signal, signal))

    async def _send_signal(self, signal: NewSignal) -> Sent:
        async with self._transaction() as transaction:
            sent = await side_writes_waits.send_signal(transaction._fetch, signal)
            if sent.woken:
                await transaction._fetch("ring", ring="")
            return sent

    async def forget_signals(self, older_than: int, limit: int = 500) -> int:
        return len(await self._fetch("forget_signals", older_than=older_than, limit=limit))

    async def open_approval(self, job: Job, question: NewApproval) -> Approval | None:
        id = await self._new_key()
        async with self._transaction() as transaction:
            return await side_writes_waits.open_approval(transaction._fetch, job, question, id)

    async def decide_approval(
        self, tenant_id: int, id: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        async with self._transaction() as transaction:
            approval, woken = await side_writes_waits.decide_approval(
                transaction._fetch, tenant_id, id, decision, by, comment
            )
            if woken:
                await transaction._fetch("ring", ring="")
            return approval

    async def withdraw_approvals(self, limit: int = 500) -> int:
        return len(await self._fetch("withdraw_approvals", limit=limit))

    async def drop_unused_blobs(self, older_than: int, limit: int) -> int:
        found = await self._fetch("unused_blobs", older_than=older_than, limit=limit)
        if not found:
            return 0
        async with self._transaction() as transaction:
            return await side_writes_blobs.drop(transaction._fetch, found)

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
        id = await self._new_key()
        birth = Birth(tenant_id, actor, reason, correlation_id, trace_id).of(lifecycle, id)
        statement = self._catalogue.birth(lifecycle, tuple(columns))
        values = {**birth._asdict(), **columns, "id": id}
        await self._surely(partial(self._sent, statement.sql, [values[name] for name in statement.parameters]))
        return id

    async def create_many(
        self,
        lifecycle: Lifecycle,
        rows: Sequence[Mapping[str, Any]],
        birth: Birth = Birth(),  # noqa: B008 - never changed, so safe to share
    ) -> list[int]:
        if not rows:
            return []
        keys = await self._new_keys(len(rows))
        statement = self._catalogue.births(lifecycle, tuple(rows[0]))
        given = ",".join([_object({**row, "id": key}) for row, key in zip(rows, sorted(keys), strict=True)])
        values = {**birth._asdict(), "rows": f"[{given}]"}
        await self._surely(partial(self._sent, statement.sql, [values[name] for name in statement.parameters]))
        return sorted(keys)

    async def amend(self, lifecycle: Lifecycle, ids: Sequence[int], tenant_id: int, **columns: Any) -> int:
        statement = self._catalogue.amendment(lifecycle, tuple(columns))
        values = {**columns, "tenant_id": tenant_id, "ids": list(ids)}
        return len(await self._sent(statement.sql, [values[name] for name in statement.parameters]))

    async def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        async with self._transaction() as transaction:
            await side_writes_blobs.keep(transaction._fetch, [(tenant_id, blob)])

    async def request_stop(self, id: int, tenant_id: int) -> bool:
        return bool(await self._fetch("request_stop", id=id, tenant_id=tenant_id))

    async def beat(self, worker: int) -> Standing | None:
        rows = await self._fetch("beat", worker=worker)
        return Standing(*rows[0]) if rows else None

    async def ask_to_end(self, worker: int, tenant_id: int, ending: str) -> bool:
        return bool(await self._fetch("ask_to_end", worker=worker, tenant_id=tenant_id, ending=ending))

    async def silent_workers(self, silent_us: int, limit: int) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._fetch("silent_workers", silent_us=silent_us, limit=limit)]

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        await self._fetch("pause_queue" if paused else "resume_queue", name=name, tenant_id=tenant_id)

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._fetch("put_schedule", **schedule._asdict())

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        moved = 0
        async with self._transaction() as transaction:
            due = await transaction._due_schedules(limit)
            for schedule, what in planned(due, plan, await transaction.now(), most_jobs):
                if await transaction._move_schedule(schedule, what):
                    await transaction.enqueue(what.jobs)
                    moved += 1
        return moved

    async def _due_schedules(self, limit: int) -> list[Schedule]:
        return [Schedule(*row) for row in await self._fetch("due_schedules", limit=limit)]

    async def _move_schedule(self, schedule: Schedule, what: Plan) -> bool:
        which = {"tenant_id": schedule.tenant_id, "name": schedule.name, "was": schedule.next_at}
        return bool(await self._fetch("move_schedule", **which, next_at=what.next_at, last_at=what.last_at))

    async def pause_schedule(self, tenant_id: int, name: str) -> bool:
        return bool(await self._fetch("pause_schedule", tenant_id=tenant_id, name=name))

    async def resume_schedule(self, tenant_id: int, name: str, next_at: int) -> bool:
        return bool(await self._fetch("resume_schedule", tenant_id=tenant_id, name=name, next_at=next_at))

    async def drop_schedule(self, tenant_id: int, name: str) -> bool:
        return bool(await self._fetch("drop_schedule", tenant_id=tenant_id, name=name))

    async def add_tenant(self, name: str) -> int:
        """Return the tenant's ID, and create the tenant if needed. If two callers choose the same ID for two names, one
        retries."""
        while True:
            found = await self._fetch("add_tenant", name=name) or await self._fetch("tenant_by_name", name=name)
            if found:
                return int(found[0][0])

    async def recall(
        self, tenant_id: int, endpoint: str, key: str, request_hash: str, ttl_us: int = 3_600_000_000
    ) -> Seen | None:
        request = {"tenant_id": tenant_id, "endpoint": endpoint, "key": key}
        async with self._transaction() as transaction:
            await transaction._wait_for_locks(LOCK_WAIT_MS)
            try:
                await transaction._fetch("forget_request", **request)
                first = await transaction._fetch(
                    "remember_request", **request, request_hash=request_hash, ttl_us=ttl_us
                )
            except asyncpg.LockNotAvailableError:
                raise RequestInFlight(key=key) from None
            await transaction._wait_for_locks(0)
            if first:
                self.tally.recalled(tenant_id, None)
                return None
            seen = seen_before(key, request_hash, (await transaction._fetch("request_seen", **request))[0])
            self.tally.recalled(tenant_id, seen)
            return seen

    async def _wait_for_locks(self, milliseconds: int) -> None:
        await self._set("lock_timeout", str(milliseconds))

    async def _set(self, name: str, value: str) -> None:
        """Set a setting for this transaction."""
        async with self._connection() as connection:
            await connection.execute("SELECT set_config($1, $2, true)", name, value)

    async def answer(self, tenant_id: int, endpoint: str, key: str, response: str) -> None:
        await self._fetch("answer_request", tenant_id=tenant_id, endpoint=endpoint, key=key, response=response)

    async def count(self, counted: Sequence[Counter], *, progress: Progress | None = None) -> bool:
        async with self._transaction() as transaction:
            if progress is not None and not await transaction._fetch("move_on", **progress._asdict()):
                return False
            columns = [list(column) for column in zip(*added_up(counted), strict=True)]
            if columns:
                await transaction._fetch("count", **dict(zip(Counter._fields, columns, strict=True)))
            return True

    async def forget_requests(self, limit: int = 500) -> int:
        return len(await self._fetch("forget_old_requests", limit=limit))

    async def forget_limits(self, limit: int = 500) -> int:
        return sum([len(await self._fetch(name, limit=limit)) for name in FORGOTTEN])

    async def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, *, ttl_us: int, tenant_id: int = DEFAULT_TENANT
    ) -> None:
        seen = {"entity": lifecycle.name, "entity_id": id, "kind": kind, "payload": payload}
        await self._fetch("record_telemetry", **seen, ttl_us=ttl_us, tenant_id=tenant_id)

    async def forget_telemetry(self, limit: int = 500) -> int:
        return len(await self._fetch("forget_telemetry", limit=limit))

    async def take_duty(self, name: str, every_us: int) -> bool:
        return bool(await self._fetch("take_duty", name=name, every_us=every_us))


def _object(row: Mapping[str, Any]) -> str:
    """Return a row as JSON. Values that are already JSON are inserted as they are."""
    verbatim = (name in JSON_COLUMNS and value is not None for name, value in row.items())
    texts = [value if raw else json.dumps(value) for raw, value in zip(verbatim, row.values(), strict=True)]
    return f"{{{','.join(f'{json.dumps(name)}:{text}' for name, text in zip(row, texts, strict=True))}}}"
