"""The store's operations on SQLite: each hands a call to the thread that owns a connection.

The subclass decides the thread and the transaction: the store itself, a transaction, or a snapshot.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from keptwork.core.decide import Change, Lifecycle
from keptwork.store.contract.checkpoints import Checkpoint, Report, Save
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob, with_blobs
from keptwork.store.contract.claims_turn import Turn
from keptwork.store.contract.events_digest import Digest
from keptwork.store.contract.flows import Rows, as_json
from keptwork.store.contract.queues import Planner, Schedule
from keptwork.store.contract.records import (
    DEFAULT_TENANT,
    Birth,
    Counter,
    Event,
    EventFilter,
    Held,
    Job,
    JobFilter,
    LimitRule,
    LimitUse,
    NewJob,
    Place,
    Progress,
    QueueSummary,
    Seen,
    Standing,
    Telemetry,
    Tenant,
    WorkerFilter,
)
from keptwork.store.contract.store_shared_verbs import SharedReads, SharedVerbs
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import NewSignal, Sent, Signal
from keptwork.store.counters import Tally
from keptwork.store.sqlite.claim import Wanted
from keptwork.store.sqlite.session import Session

T = TypeVar("T")


class SqliteReads(SharedReads):
    """The read operations."""

    @abstractmethod
    async def _read(self, work: Callable[[Session], T]) -> T:
        """Run the work on the thread and in the transaction that the subclass decides."""

    async def _ask(self, statement: str, /, **values: Any) -> Rows:
        return await self._read(lambda session: session.run(statement, **values))

    def _list(self, values: Sequence[Any]) -> str:
        return as_json(values)

    async def now(self) -> int:
        return await self._read(lambda session: session.now)

    async def tenant(self, name: str) -> int:
        return await self._read(lambda session: session.tenant(name))

    async def tenants(self) -> list[Tenant]:
        return await self._read(lambda session: session.tenants())

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        return await self._read(lambda session: session.get(lifecycle, id, tenant_id))

    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ("*",)
    ) -> list[dict[str, Any]]:
        return await self._read(lambda session: session.rows(lifecycle, ids, columns))

    async def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        return await self._read(lambda session: session.counts(lifecycle))

    async def jobs(
        self,
        wanted: JobFilter = JobFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = True,
        columns: Sequence[str] = ("*",),
    ) -> list[dict[str, Any]]:
        return await self._read(lambda session: session.jobs(wanted, after, limit, newest_first, columns))

    async def queues(self, tenant_id: int, *, unfinished_only: bool = False) -> list[QueueSummary]:
        return await self._read(lambda session: session.queues(tenant_id, unfinished_only))

    async def schedules(self, tenant_id: int) -> list[Schedule]:
        return await self._read(lambda session: session.schedules(tenant_id))

    async def schedule_due(self) -> int | None:
        return await self._read(lambda session: session.schedule_due())

    async def workers(
        self,
        wanted: WorkerFilter = WorkerFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        return await self._read(lambda session: session.workers(wanted, after, limit))

    async def worker_states(self, tenant_id: int) -> dict[str, int]:
        return await self._read(lambda session: session.worker_states(tenant_id))

    async def limit_rules(self) -> list[LimitRule]:
        return await self._read(lambda session: session.limit_rules())

    async def limit_uses(self, tenant_id: int) -> list[LimitUse]:
        return await self._read(lambda session: session.limit_uses(tenant_id))

    async def next_pump(self) -> int | None:
        return await self._read(lambda session: session.next_pump())

    async def place(self, tenant_id: int, job: int) -> Place | None:
        return await self._read(lambda session: session.place(tenant_id, job))

    async def overdue(self, limit: int) -> list[Job]:
        return await self._read(lambda session: session.overdue(limit))

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        return await self._read(lambda session: session.held(worker, ids))

    async def events(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen, so safe to share
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        return await self._read(lambda session: session.events(wanted, after, limit, newest_first))

    async def event_count(self, tenant_id: int | None = None) -> int:
        return await self._read(lambda session: session.event_count(tenant_id))

    async def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        return await self._read(lambda session: session.history(after, limit))

    async def blob(self, tenant_id: int, hash: str) -> bytes | None:
        return await self._read(lambda session: session.blob(tenant_id, hash))

    async def artifacts(self, tenant_id: int, job: int) -> list[Artifact]:
        return await self._read(lambda session: session.artifacts(tenant_id, job))

    async def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        return await self._read(lambda session: session.checkpoints(tenant_id, job))

    async def unfinished_children(self, tenant_id: int, jobs: Sequence[int]) -> list[int]:
        return await self._read(lambda session: session.unfinished_children(tenant_id, jobs))

    async def cancelled_parents(self, limit: int) -> list[tuple[int, int]]:
        return await self._read(lambda session: session.cancelled_parents(limit))

    async def stopped_waits(self, limit: int) -> list[tuple[int, int]]:
        return await self._read(lambda session: session.stopped_waits(limit))

    async def next_signal(self, tenant_id: int, job: int, name: str, after: int) -> Signal | None:
        return await self._read(lambda session: session.next_signal(tenant_id, job, name, after))

    async def approval(self, tenant_id: int, id: int) -> Approval | None:
        return await self._read(lambda session: session.approval(tenant_id, id))

    async def approvals(
        self,
        tenant_id: int,
        *,
        job: int | None = None,
        open_only: bool = True,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        return await self._read(lambda session: session.approvals(tenant_id, job, open_only, after, limit))

    async def log_end(self) -> str:
        return await self._read(lambda session: session.log_end())

    async def digest(self, after: str | None, limit: int) -> Digest:
        return await self._read(lambda session: session.digest(after, limit))

    async def log_position(self, reader: str) -> str | None:
        return await self._read(lambda session: session.log_position(reader))

    async def counters(self, tenant_id: int) -> list[Counter]:
        return await self._read(lambda session: session.counters(tenant_id))

    async def job_moves_since(self, tenant_id: int, since: int, until: int | None = None) -> dict[str, int]:
        return await self._read(lambda session: session.job_moves_since(tenant_id, since, until))

    async def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int = 100) -> list[Telemetry]:
        return await self._read(lambda session: session.telemetry(lifecycle, id, tenant_id, limit))

    async def faults(self) -> list[str]:
        return await self._read(lambda session: session.faults())


class SqliteVerbs(SqliteReads, SharedVerbs):
    """The read and write operations."""

    tally: Tally
    _turn: Turn

    @abstractmethod
    async def _write(self, work: Callable[[Session], T], rows: int = 1) -> T:
        """Run the writing work on the thread and in the transaction that the subclass decides."""

    def acknowledging(self) -> AbstractAsyncContextManager[None]:
        """Return a block that does not wait, because a file has no standby."""
        return nullcontext()

    async def _tell(self, statement: str, /, **values: Any) -> Rows:
        return await self._write(lambda session: session.run(statement, **values))

    async def _new_key(self) -> int:
        return await self._write(lambda session: session.new_key())

    async def _announce(self) -> None:
        self._ring()

    @abstractmethod
    def _ring(self) -> None:
        """Notify waiting workers when the transaction commits."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        return await self._write(lambda session: session.enqueue(jobs), len(jobs))

    async def enqueue_started(self, job: NewJob, worker: int, lease_us: int, claim_id: int) -> Job:
        made = await self._write(lambda session: session.enqueue_started(job, worker, lease_us, claim_id))
        self.tally.claimed([made] if made.owner == worker else [], None)
        if made.owner != worker:
            self._ring()
        return made

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        return await self._write(lambda session: session.enqueue_unique(job, key, window_us))

    async def enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        return await self._write(lambda session: session.enqueue_debounced(job, key, wait_us, most_us))

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
        if again:
            return await self._read(lambda session: session.claimed_before(worker, claim_id))
        wanted = Wanted(limit, tenant_id, self._turn.after, without)
        jobs = await self._write(
            lambda session: session.claim(worker, queues, wanted, lease_us, claim_id, start), limit
        )
        self._turn.served(jobs)
        self.tally.claimed(jobs, tenant_id)
        return jobs

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        weight = len(changes) + sum(blob.weight for _, blob in with_blobs(changes))
        late, woken = await self._write(lambda session: session.apply(changes), weight)
        self.tally.late(late)
        if woken:
            self._ring()
        return late

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        lost = await self._write(lambda session: session.renew(worker, tokens, lease_us), len(tokens))
        self.tally.renewed(len(tokens), len(lost))
        return lost

    async def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        return await self._write(lambda session: session.keep_artifact(job, name, blob, media_type), blob.weight)

    async def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        return await self._write(lambda session: session.checkpoint(saves), sum(save.weight for save in saves))

    async def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        await self._write(lambda session: session.checkpoint_changed(tenant_id, job, name))

    async def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        await self._write(lambda session: session.note_progress(reports, ttl_us), len(reports))

    async def lift_holds(self, holds: Sequence[str]) -> int:
        # Usually there are none. This read finds that without blocking other writers.
        if not await self._read(lambda session: session.any_held(holds)):
            return 0
        return await self._write(lambda session: session.lift_holds(holds))

    async def spawn(self, save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        keys = await self._write(lambda session: session.spawn(save, jobs), len(jobs) + 1)
        self._ring()
        return keys

    async def send_signal(self, signal: NewSignal) -> Sent:
        sent = await self._write(lambda session: session.send_signal(signal))
        if sent.woken:
            self._ring()
        return sent

    async def forget_signals(self, older_than: int, limit: int = 500) -> int:
        return await self._write(lambda session: session.forget_signals(older_than, limit), limit)

    async def open_approval(self, job: Job, question: NewApproval) -> Approval | None:
        return await self._write(lambda session: session.open_approval(job, question))

    async def decide_approval(
        self, tenant_id: int, id: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        approval, woken = await self._write(
            lambda session: session.decide_approval(tenant_id, id, decision, by, comment)
        )
        if woken:
            self._ring()
        return approval

    async def withdraw_approvals(self, limit: int = 500) -> int:
        # Usually there are none. This read finds that without blocking other writers.
        if not await self._read(lambda session: session.stale_approvals()):
            return 0
        return await self._write(lambda session: session.withdraw_approvals(limit))

    async def drop_unused_blobs(self, older_than: int, limit: int) -> int:
        # The search does not block other writers. The deletion checks each blob again.
        found = await self._read(lambda session: session.unused_blobs(older_than, limit))
        return await self._write(lambda session: session.drop_blobs(found), len(found)) if found else 0

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
        birth = Birth(tenant_id, actor, reason, correlation_id, trace_id)
        return await self._write(lambda session: session.create(lifecycle, birth, columns))

    async def create_many(
        self,
        lifecycle: Lifecycle,
        rows: Sequence[Mapping[str, Any]],
        birth: Birth = Birth(),  # noqa: B008 - never changed, so safe to share
    ) -> list[int]:
        return await self._write(lambda session: session.create_many(lifecycle, rows, birth), len(rows))

    async def amend(self, lifecycle: Lifecycle, ids: Sequence[int], tenant_id: int, **columns: Any) -> int:
        return await self._write(lambda session: session.amend(lifecycle, ids, tenant_id, columns))

    async def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        await self._write(lambda session: session.keep_blob(tenant_id, blob), blob.weight)

    async def request_stop(self, id: int, tenant_id: int) -> bool:
        return await self._write(lambda session: session.request_stop(id, tenant_id))

    async def beat(self, worker: int) -> Standing | None:
        return await self._write(lambda session: session.beat(worker))

    async def ask_to_end(self, worker: int, tenant_id: int, ending: str) -> bool:
        return await self._write(lambda session: session.ask_to_end(worker, tenant_id, ending))

    async def silent_workers(self, silent_us: int, limit: int) -> list[dict[str, Any]]:
        return await self._write(lambda session: session.silent_workers(silent_us, limit))

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        await self._write(lambda session: session.set_queue_paused(name, paused, tenant_id))

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._write(lambda session: session.put_schedule(schedule))

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        return await self._write(lambda session: session.fire_schedules(plan, limit, most_jobs), most_jobs)

    async def pause_schedule(self, tenant_id: int, name: str) -> bool:
        return await self._write(lambda session: session.pause_schedule(tenant_id, name))

    async def resume_schedule(self, tenant_id: int, name: str, next_at: int) -> bool:
        return await self._write(lambda session: session.resume_schedule(tenant_id, name, next_at))

    async def drop_schedule(self, tenant_id: int, name: str) -> bool:
        return await self._write(lambda session: session.drop_schedule(tenant_id, name))

    async def declare_limits(self, rules: Sequence[LimitRule]) -> None:
        await self._write(lambda session: session.declare_limits(rules), len(rules))

    async def pump(self, limit: int = 500) -> int:
        return await self._write(lambda session: session.pump(limit))

    async def add_tenant(self, name: str) -> int:
        return await self._write(lambda session: session.add_tenant(name))

    async def recall(
        self, tenant_id: int, endpoint: str, key: str, request_hash: str, ttl_us: int = 3_600_000_000
    ) -> Seen | None:
        seen = await self._write(lambda session: session.recall(tenant_id, endpoint, key, request_hash, ttl_us))
        self.tally.recalled(tenant_id, seen)
        return seen

    async def answer(self, tenant_id: int, endpoint: str, key: str, response: str) -> None:
        await self._write(lambda session: session.answer(tenant_id, endpoint, key, response))

    async def count(self, counted: Sequence[Counter], *, progress: Progress | None = None) -> bool:
        return await self._write(lambda session: session.count(counted, progress), len(counted))

    async def forget_requests(self, limit: int = 500) -> int:
        return await self._write(lambda session: session.forget_requests(limit), limit)

    async def forget_limits(self, limit: int = 500) -> int:
        return await self._write(lambda session: session.forget_limits(limit), limit)

    async def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, *, ttl_us: int, tenant_id: int = DEFAULT_TENANT
    ) -> None:
        await self._write(lambda session: session.record_telemetry(lifecycle, id, kind, payload, ttl_us, tenant_id))

    async def forget_telemetry(self, limit: int = 500) -> int:
        return await self._write(lambda session: session.forget_telemetry(limit), limit)

    async def take_duty(self, name: str, every_us: int) -> bool:
        return await self._write(lambda session: session.take_duty(name, every_us))
