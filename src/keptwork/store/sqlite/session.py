"""The store's calls inside a SQLite transaction, made on the thread that holds the connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import apsw

from keptwork.core import ids
from keptwork.core.decide import Change, Lifecycle
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.errors import LeaseLost
from keptwork.store.contract.checkpoints import PROGRESS, Report, Save, columns
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob, with_blobs
from keptwork.store.contract.claims import batches
from keptwork.store.contract.jobs_spawned import keys_of, told
from keptwork.store.contract.operations_own_sql import insist_harmless
from keptwork.store.contract.queues import Plan, Planner, Schedule, planned
from keptwork.store.contract.records import (
    DEBOUNCED,
    FORGOTTEN,
    Birth,
    Counter,
    EventFilter,
    Job,
    LimitRule,
    LimitUse,
    NewJob,
    Progress,
    Seen,
    Standing,
    added_up,
    seen_before,
)
from keptwork.store.contract.waits import wakes
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import NewSignal, Sent
from keptwork.store.sqlite import limits, limits_waits
from keptwork.store.sqlite.claim import Wanted, due
from keptwork.store.sqlite.session_reads import SessionReads, named

# The values that an enqueued job is bound from: its fields, its ID, and the time.
_ENQUEUED = (*NewJob._fields, "id", "now")

SEVERAL, SMALL = 10, 1_000
"""One statement for all jobs is faster than one for each if there are at least SEVERAL and their payloads have at most
SMALL characters on average. It needs several times the memory."""

MOST_IN_AN_ARRAY = 1 << 24
"""Larger arrays are written in parts, since SQLite accepts no text of a gigabyte."""

_array = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Serializes rows for a statement. Unpaired surrogates are not escaped, so that binding rejects them; if they were
escaped, SQLite would turn them into invalid text."""


class Session(SessionReads):
    """The read and write operations."""

    # --- the caller's own statements

    def own(self, sql: str, values: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of a caller's own statement, and how many rows it changed. Each of several statements is
        checked before it runs."""

        def looked_at(_: apsw.Cursor, statement: str, __: object) -> bool:
            insist_harmless(statement)
            return True

        insist_harmless(sql)
        before, cursor = self._db.total_changes(), self._db.cursor()
        cursor.exec_trace = looked_at
        rows = named(cursor.execute(sql, values))
        return rows, self._db.changes() if self._db.total_changes() != before else 0

    # --- writes

    def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        return self._enqueue_as(self._take_keys(len(jobs)), jobs)

    def _enqueue_as(self, keys: Sequence[int], jobs: Sequence[NewJob]) -> list[int]:
        many = len(jobs) >= SEVERAL and not any(job.key is not None for job in jobs)
        together = many and sum(len(job.payload) for job in jobs) <= min(SMALL * len(jobs), MOST_IN_AN_ARRAY)
        made = self._enqueue_batch(keys, jobs) if together else self._enqueue_one_by_one(keys, jobs)
        limited = [
            job for job, key, id in zip(jobs, keys, made, strict=True) if job.limit_key is not None and key == id
        ]
        if limited:
            limits.note_enqueued(self._run, limited, self.now)
        self._tally.enqueued(jobs, keys, made)
        return made

    def _enqueue_batch(self, keys: Sequence[int], jobs: Sequence[NewJob]) -> list[int]:
        (sql, parameters), names = self._catalogue.enqueue_batch
        bindings = _bindings(names)
        rows = _array([bindings((*job, id)) for job, id in zip(jobs, keys, strict=True)])
        values = {"now": self.now, "rows": rows}
        self._db.execute(sql, [values[name] for name in parameters])
        return list(keys)

    def _enqueue_one_by_one(self, keys: Sequence[int], jobs: Sequence[NewJob]) -> list[int]:
        sql, names = self._catalogue["enqueue"]
        bindings = _bindings(names)
        return [self._enqueue_one(job, key, sql, bindings) for job, key in zip(jobs, keys, strict=True)]

    def _enqueue_one(self, job: NewJob, id: int, sql: str, bindings: Callable[[tuple[Any, ...]], Any]) -> int:
        if job.key is not None:
            earlier = self._run("job_by_key", tenant_id=job.tenant_id, key=job.key)
            if earlier:
                return int(earlier[0][0])
        self._db.execute(sql, bindings((*job, id, self.now)))
        return id

    def enqueue_started(self, job: NewJob, worker: int, lease_us: int, claim_id: int) -> Job:
        (id,) = self.enqueue([job])
        served = job.crew_id is None and self._run("is_served", tenant_id=job.tenant_id, queue=job.queue)
        taken = self._take([id], worker, lease_us, claim_id, start=True) if served and self._may_claim(worker) else []
        return taken[0] if taken else Job(*self._run("job", id=id)[0])

    def _may_claim(self, worker: int) -> bool:
        return bool(self._run("may_claim", worker=worker))

    def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        ((made, _, still),) = self._run("recent_job", tenant_id=job.tenant_id, key=key)
        return int(made) if still and made is not None else self._made(job, key, window_us)

    def enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        ((made, first_at, _),) = self._run("recent_job", tenant_id=job.tenant_id, key=key)
        values = {name: getattr(job, name) for name in DEBOUNCED}
        if made and self._run("push_back", **values, id=made, wait_us=wait_us, latest=first_at + most_us):
            self._run("wake_later", ids=json.dumps([made]))
            return int(made)
        return self._made(job._replace(delay_us=min(wait_us, most_us)), key, most_us)

    def _made(self, job: NewJob, key: str, window_us: int) -> int:
        (id,) = self.enqueue([job])
        self._run("job_made", tenant_id=job.tenant_id, key=key, job_id=id, window_us=window_us)
        return id

    def claim(
        self,
        worker: int,
        queues: Sequence[str],
        wanted: Wanted,
        lease_us: int,
        claim_id: int,
        start: bool,
    ) -> list[Job]:
        if not self._may_claim(worker):
            return []
        found = due(self._run, list(dict.fromkeys(queues)), wanted)
        place = {id: number for number, id in enumerate(found.ids)}
        taken = self._take(found.ids, worker, lease_us, claim_id, start)
        jobs = sorted(taken, key=lambda job: place[job.id])
        counted = jobs if found.limited else [job for job in jobs if job.limit_key is not None]
        if counted:
            limits.note_started(self._run, counted, found.limited)
        return jobs

    def _take(self, keys: Sequence[int], worker: int, lease_us: int, claim_id: int, start: bool) -> list[Job]:
        values = {"worker": worker, "claim_id": claim_id, "lease_us": lease_us, "actor": f"w:{worker}"}
        rows = self._run("claim_and_start" if start else "claim", ids=json.dumps(list(keys)), **values)
        return [Job(*row) for row in rows]

    def claimed_before(self, worker: int, claim_id: int) -> list[Job]:
        return [Job(*row) for row in self._run("claimed_before", worker=worker, claim_id=claim_id)]

    def apply(self, changes: Sequence[Change]) -> tuple[list[Change], int]:
        """Apply the changes. Return those that were too late, and the number of jobs that the others woke."""
        runs = batches(changes)
        lost = [late for batch in runs for late in self._apply_batch(batch)]
        for change, blob in with_blobs(changes):
            if change not in lost:
                self.keep_blob(change.tenant_id, blob)
                self._run("refer_to_blob", tenant_id=change.tenant_id, id=change.id, hash=blob.hash)
        touched = wakes(runs)
        woken = limits_waits.wake(self._run, touched) if touched else 0
        limited = [change for change in changes if change.limit_key is not None]
        return lost, woken + (limits.settle(self._run, limited, self.now) if limited else 0)

    def pump(self, limit: int) -> int:
        return limits.pump(self._run, limit, self.now)

    def declare_limits(self, rules: Sequence[LimitRule]) -> None:
        for rule in rules:
            limits = rule.most is not None or rule.rate is not None
            if self._run("declare_limit" if limits else "drop_limit", **rule._asdict()):
                self._run("look_at_kind", name=rule.name)

    def limit_rules(self) -> list[LimitRule]:
        return [LimitRule(*row) for row in self._run("limit_rules")]

    def limit_uses(self, tenant_id: int) -> list[LimitUse]:
        return [LimitUse(*row) for row in self._run("limit_uses", tenant_id=tenant_id)]

    def next_pump(self) -> int | None:
        at: int | None = self._run("next_pump")[0][0]
        return at

    def _apply_batch(self, batch: list[Change]) -> list[Change]:
        first, statement = batch[0], self._catalogue.batch(batch[0], alike=True)
        common = statement.once(first)
        if any(statement.once(change) != common for change in batch):
            statement = self._catalogue.batch(first, alike=False)
        sql, each, once, extras = statement
        rows = _array([(*each(change), *[change.values.get(name) for name in extras]) for change in batch])
        moved = {row[0] for row in self._db.execute(sql, (rows, self.now, *once(first)))}
        if len(moved) == len(batch):
            return []
        return [change for change in batch if change.id not in moved and not self._applied_already(change)]

    def _applied_already(self, change: Change) -> bool:
        wanted = EventFilter(entity=change.lifecycle.name, entity_id=change.id)
        last = change.seq + change.move.events
        trace = [event for event in self.events(wanted, None, last, False) if event.seq == last]
        return any(event.trigger == change.move.trigger and event.actor == change.actor for event in trace)

    def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        lost = []
        for id, epoch in tokens:
            self._run("renew", worker=worker, id=id, epoch=epoch, lease_us=lease_us)
            if not self._db.changes():
                lost.append((id, epoch))
        return lost

    def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        rows = self._run("keep_artifact", **job.claim, name=name, media_type=media_type, hash=blob.hash, size=blob.size)
        if not rows:
            raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="keep")
        self.keep_blob(job.tenant_id, blob)
        return Artifact(name, media_type, blob.size, blob.hash, job.epoch, rows[0][0])

    def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        self._run("keep_blob", tenant_id=tenant_id, hash=blob.hash, size=blob.size, content=blob.content)

    def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        return [self._checkpoint_one(save) for save in saves]

    def _checkpoint_one(self, save: Save) -> str | None:
        values = {name: column[0] for name, column in columns([save]).items()}
        if self._run("checkpoint", **values):
            if save.blob is not None:
                self.keep_blob(save.job.tenant_id, save.blob)
            return save.result
        if not self._run("still_held", job_id=save.job.id, epoch=save.job.epoch, owner=save.job.owner):
            return None
        return next(one.result for one in self.checkpoints(save.job.tenant_id, save.job.id) if one.name == save.name)

    def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        self._run("checkpoint_changed", tenant_id=tenant_id, job_id=job, name=name)

    def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        for job, payload in reports:
            seen = {"entity": JOB.name, "entity_id": job.id, "kind": PROGRESS, "payload": payload, "ttl_us": ttl_us}
            held = self._run("still_held", job_id=job.id, epoch=job.epoch, owner=job.owner)
            if held and not self._run("replace_telemetry", **seen):
                self._run("record_telemetry", **seen, tenant_id=job.tenant_id)

    def any_held(self, holds: Sequence[str]) -> bool:
        return bool(self._run("any_held", holds=json.dumps(list(holds))))

    def lift_holds(self, holds: Sequence[str]) -> int:
        lifted = self._run("lift_holds", holds=json.dumps(list(holds)))
        self._run("look_at_limits_of", ids=json.dumps([id for id, limit_key in lifted if limit_key is not None]))
        return len(lifted)

    def spawn(self, save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        keys = list(self._take_keys(len(jobs)))
        mine = told(keys)
        stands = self._checkpoint_one(save._replace(result=mine))
        if stands is None or stands != mine:
            return None if stands is None else keys_of(stands)
        self._enqueue_as(keys, jobs)
        return keys

    def send_signal(self, signal: NewSignal) -> Sent:
        return limits_waits.send_signal(self._run, signal)

    def forget_signals(self, older_than: int, limit: int) -> int:
        return len(self._run("forget_signals", older_than=older_than, limit=limit))

    def open_approval(self, job: Job, question: NewApproval) -> Approval | None:
        (id,) = self._take_keys(1)
        return limits_waits.open_approval(self._run, job, question, id)

    def decide_approval(
        self, tenant_id: int, id: int, decision: str, by: str | None, comment: str | None
    ) -> tuple[Approval | None, bool]:
        return limits_waits.decide_approval(self._run, tenant_id, id, decision, by, comment)

    def withdraw_approvals(self, limit: int) -> int:
        return len(self._run("withdraw_approvals", limit=limit))

    def drop_blobs(self, found: Sequence[tuple[Any, ...]]) -> int:
        return len(self._run("drop_blobs", found=json.dumps(found)))

    def create(self, lifecycle: Lifecycle, birth: Birth, columns: dict[str, Any]) -> int:
        (id,) = self._take_keys(1)
        statement = self._catalogue.birth(lifecycle, tuple(columns))
        values = {**birth.of(lifecycle, id)._asdict(), **columns, "id": id, "now": self.now}
        self._db.execute(statement.sql, [values[name] for name in statement.parameters])
        return id

    def create_many(self, lifecycle: Lifecycle, rows: Sequence[Mapping[str, Any]], birth: Birth) -> list[int]:
        if not rows:
            return []
        keys = list(self._take_keys(len(rows)))
        self._create_as(keys, lifecycle, rows, birth)
        return keys

    def _create_as(
        self, keys: Sequence[int], lifecycle: Lifecycle, rows: Sequence[Mapping[str, Any]], birth: Birth
    ) -> None:
        columns, half = tuple(rows[0]), len(rows) // 2
        given = _array([(id, *[row[name] for name in columns]) for id, row in zip(keys, rows, strict=True)])
        if half and len(given) > MOST_IN_AN_ARRAY:
            self._create_as(keys[:half], lifecycle, rows[:half], birth)
            self._create_as(keys[half:], lifecycle, rows[half:], birth)
            return
        statement = self._catalogue.births(lifecycle, columns)
        values = {**birth._asdict(), "rows": given, "now": self.now}
        self._db.execute(statement.sql, [values[name] for name in statement.parameters])

    def amend(self, lifecycle: Lifecycle, keys: Sequence[int], tenant_id: int, columns: dict[str, Any]) -> int:
        statement = self._catalogue.amendment(lifecycle, tuple(columns))
        values = {**columns, "tenant_id": tenant_id, "ids": json.dumps(list(keys))}
        return len(list(self._db.execute(statement.sql, [values[name] for name in statement.parameters])))

    def request_stop(self, id: int, tenant_id: int) -> bool:
        return bool(self._run("request_stop", id=id, tenant_id=tenant_id))

    def beat(self, worker: int) -> Standing | None:
        rows = self._run("beat", worker=worker)
        return Standing(*rows[0]) if rows else None

    def ask_to_end(self, worker: int, tenant_id: int, ending: str) -> bool:
        return bool(self._run("ask_to_end", worker=worker, tenant_id=tenant_id, ending=ending))

    def silent_workers(self, silent_us: int, limit: int) -> list[dict[str, Any]]:
        found = self._run("silent_workers", silent_us=silent_us, limit=limit)
        return self.rows(WORKER, [id for (id,) in found])

    def set_queue_paused(self, name: str, paused: bool, tenant_id: int) -> None:
        self._run("pause_queue" if paused else "resume_queue", name=name, tenant_id=tenant_id)

    def put_schedule(self, schedule: Schedule) -> None:
        self._run("put_schedule", **schedule._asdict())

    def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        moved = 0
        for schedule, what in planned(self.due_schedules(limit), plan, self.now, most_jobs):
            if self.move_schedule(schedule, what):
                self.enqueue(what.jobs)
                moved += 1
        return moved

    def due_schedules(self, limit: int) -> list[Schedule]:
        return [Schedule(*row) for row in self._run("due_schedules", limit=limit)]

    def move_schedule(self, schedule: Schedule, what: Plan) -> bool:
        which = {"tenant_id": schedule.tenant_id, "name": schedule.name, "was": schedule.next_at}
        return bool(self._run("move_schedule", **which, next_at=what.next_at, last_at=what.last_at))

    def pause_schedule(self, tenant_id: int, name: str) -> bool:
        return bool(self._run("pause_schedule", tenant_id=tenant_id, name=name))

    def resume_schedule(self, tenant_id: int, name: str, next_at: int) -> bool:
        return bool(self._run("resume_schedule", tenant_id=tenant_id, name=name, next_at=next_at))

    def drop_schedule(self, tenant_id: int, name: str) -> bool:
        return bool(self._run("drop_schedule", tenant_id=tenant_id, name=name))

    def add_tenant(self, name: str) -> int:
        return int((self._run("add_tenant", name=name) or self._run("tenant_by_name", name=name))[0][0])

    def recall(self, tenant_id: int, endpoint: str, key: str, request_hash: str, ttl_us: int) -> Seen | None:
        request = {"tenant_id": tenant_id, "endpoint": endpoint, "key": key}
        self._run("forget_request", **request)
        if self._run("remember_request", **request, request_hash=request_hash, ttl_us=ttl_us):
            return None
        return seen_before(key, request_hash, self._run("request_seen", **request)[0])

    def answer(self, tenant_id: int, endpoint: str, key: str, response: str) -> None:
        self._run("answer_request", tenant_id=tenant_id, endpoint=endpoint, key=key, response=response)

    def count(self, counted: Sequence[Counter], progress: Progress | None) -> bool:
        if progress is not None and not self._run("move_on", **progress._asdict()):
            return False
        self._run("count", counted=json.dumps(added_up(counted)))
        return True

    def forget_requests(self, limit: int) -> int:
        return len(self._run("forget_old_requests", limit=limit))

    def forget_limits(self, limit: int) -> int:
        return sum(len(self._run(name, limit=limit)) for name in FORGOTTEN)

    def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, ttl_us: int, tenant_id: int
    ) -> None:
        seen = {"entity": lifecycle.name, "entity_id": id, "kind": kind, "payload": payload}
        self._run("record_telemetry", **seen, ttl_us=ttl_us, tenant_id=tenant_id)

    def forget_telemetry(self, limit: int) -> int:
        return len(self._run("forget_telemetry", limit=limit))

    def take_duty(self, name: str, every_us: int) -> bool:
        return bool(self._run("take_duty", name=name, every_us=every_us))

    def new_key(self) -> int:
        return self._take_keys(1)[0]

    def _take_keys(self, count: int) -> range:
        first = ids.first_key_of(self.now // 1000)
        last = int(self._run("take_keys", first=first, count=count)[0][0])
        return range(last - count + 1, last + 1)


@cache
def _bindings(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function that gets a statement's values from a new job, its ID, and the time."""
    return itemgetter(*[_ENQUEUED.index(name) for name in names])
