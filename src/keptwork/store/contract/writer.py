"""The write half of the store's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keptwork.core.decide import Change, Lifecycle
from keptwork.store.contract.access import ApiKeyRow, NewApiKey
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.agents_transcripts import NewLine
from keptwork.store.contract.breakers import Row
from keptwork.store.contract.budgets import Bucket, Budget, Closed, Closing, NewBudget, NewCharge
from keptwork.store.contract.checkpoints import Report, Save
from keptwork.store.contract.checkpoints_blobs import Artifact, Blob
from keptwork.store.contract.events_seals import NewSeal
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.flows_templates import NewTemplate, Template
from keptwork.store.contract.outbox import Delivery, NewDelivery
from keptwork.store.contract.queues import Planner, Schedule
from keptwork.store.contract.records import (
    DEFAULT_TENANT,
    Birth,
    Counter,
    Expiry,
    Job,
    LimitRule,
    NewJob,
    Progress,
    Seen,
    Standing,
)
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import NewSignal, Sent


class Writer(Protocol):
    """Write operations. Each takes full effect or none, and returns only when its changes are on disk. In a
    transaction, they are on disk when it commits."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Enqueue all jobs or none, and return their IDs. A job whose key was used before is not created, and the ID of
        the first job is returned instead."""
        ...

    async def enqueue_started(self, job: NewJob, worker: int, lease_us: int, claim_id: int) -> Job:
        """Enqueue a job and, if its queue is served and the worker may claim, start it under that worker. The job must
        be due now and have no key, no limit, and no crew. Both are three moves and three events in one write. A flow
        step that the job runs starts with it. If the job cannot start, it is returned queued. Only a worker that has
        just found nothing due may call this, so that the job overtakes no other."""
        ...

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        """Create a job unless this key of the tenant created one less than a window ago. Return the ID of the new or
        the earlier job, in whatever state that is."""
        ...

    async def enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        """Create a job that is due after a wait, or postpone the earlier one of this key. Only a job of the tenant that
        has not started is postponed, by the wait. It takes the new payload, queue, priority, and IDs. It is due at most
        `most_us` after its creation. Return the ID of the job."""
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
        without: Sequence[str] = (),
    ) -> list[Job]:
        """Claim due jobs, each for one worker only. Tenants take turns, and each tenant's jobs go by highest priority,
        then by earliest due time. A worker that is not IDLE or RUNNING gets none. A queue with a limit gives no more
        than its limit allows. With `start`, the jobs are running when they are returned. Claim and start are two moves
        and two events in one write. With `again`, a repeated claim whose response was lost returns the jobs it took and
        takes no more. Jobs of the kinds in `without` are left to other workers."""
        ...

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Write each change and its event if its record is still as it was when it was decided. Changes that are too
        late are returned and have no effect. A repeated change by the same actor counts as written. A result that is a
        `Blob` is stored with the move, once for all jobs of the tenant with the same content. A job that waits for its
        children is due when the last of them ends. A job that starts to wait for something that has already happened is
        due immediately. When a job no longer counts against its limit, the same write promotes the next one. An
        override is written like a move and also leaves final states. A combined move has two events in sequence. Among
        several combined moves, the events of the lower ID come first."""
        ...

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        """Extend the leases of these (job, epoch) pairs from now. Return the pairs that are no longer held."""
        ...

    async def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        """Store an artifact with a running job under its claim. The same name replaces the earlier artifact. The same
        content is stored once per tenant. Raise `LeaseLost` if the claim no longer holds the job. In that case, nothing
        is stored."""
        ...

    async def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        """Store the results of steps of running jobs under their claims. Return the result that counts for each save.
        The first result stored under a name counts, whichever claim saved it. The entry is None if the claim no longer
        holds the job. In that case, nothing is stored."""
        ...

    async def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        """Record that a worker met a checkpoint that other code had saved. The first time stays recorded."""
        ...

    async def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        """Store the progress of running jobs as telemetry with an expiry. A later report replaces the job's previous
        one. A report has no effect if its claim no longer holds the job."""
        ...

    async def lift_holds(self, holds: Sequence[str]) -> int:
        """Lift all holds with exactly these names from queued jobs, and return the number of jobs."""
        ...

    async def lock_breaker(self, tenant_id: int, name: str) -> Row | None:
        """In a transaction, lock the breaker with this name against changes until the transaction ends. Return None if
        there is none."""
        ...

    async def hold_back(self, tenant_id: int, hold: str, limit: int, besides: int | None = None) -> int:
        """Hold at most `limit` queued jobs of the tenant that have this hold key and no hold yet. Leave out the job
        `besides`. Return the number of held jobs."""
        ...

    async def let_go(self, tenant_id: int, hold: str, limit: int) -> int:
        """Lift this hold from at most `limit` queued jobs of the tenant, as far as their limits allow. Return the
        number of jobs."""
        ...

    async def let_one_go(self, tenant_id: int, hold: str, after: str | None = None) -> tuple[int, str] | None:
        """Lift this hold from one due job, and return the job and its queue, or None if there is none. It comes from
        the next queue by name after `after`, or from the first queue again. Within the queue, the highest priority goes
        first, then the earliest due time."""
        ...

    async def spawn(self, save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        """Enqueue children of a running job and store their IDs under the step's name, or do neither. If the name
        already has a result, no job is enqueued. Then the IDs of the first time are returned. Return None if the claim
        no longer holds the job."""
        ...

    async def send_signal(self, signal: NewSignal) -> Sent:
        """Send a signal and make the jobs due that wait for it. A signal whose key was used before is not sent again. A
        job that starts to wait at the same time does not miss it."""
        ...

    async def forget_signals(self, older_than: int, limit: int = 500) -> int:
        """Delete at most `limit` signals sent before this time, oldest first, and return their number."""
        ...

    async def open_approval(self, job: Job, question: NewApproval) -> Approval | None:
        """Open an approval request for a running job under its claim. The same request at the same step returns the
        first one as it is now. A different request at that step withdraws the open one. Return None if the claim no
        longer holds the job."""
        ...

    async def decide_approval(
        self, tenant_id: int, id: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        """Decide an open approval before its deadline, and make the waiting job due. The job must be unfinished. Only
        after the deadline can the decision be `expired`. Return the approval as it is afterward, whether or not this
        call decided it. Concurrent calls lead to one decision."""
        ...

    async def withdraw_approvals(self, limit: int = 500) -> int:
        """Withdraw at most `limit` open approvals whose jobs have ended or were deleted. Return their number."""
        ...

    async def drop_unused_blobs(self, older_than: int, limit: int) -> int:
        """Delete at most `limit` blobs that nothing refers to and that were first stored before this time. The oldest
        go first. References from results, artifacts, checkpoints, and transcripts count. Return their
        number. A blob stays if an open transaction is about to refer to it."""
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
        """Create an entity in its initial state, with its first event. Return its ID. With the correlation `ITSELF`,
        the entity's own public ID is its correlation ID."""
        ...

    async def create_many(
        self, lifecycle: Lifecycle, rows: Sequence[Mapping[str, Any]], birth: Birth = ...
    ) -> list[int]:
        """Create entities of one kind in their initial state, each with its first event. Create all of them or none.
        The IDs increase in the order of the rows, which must all have the same columns."""
        ...

    async def amend(self, lifecycle: Lifecycle, ids: Sequence[int], tenant_id: int, **columns: Any) -> int:
        """Set columns that no move sets, without a move or an event. Return the number of entities."""
        ...

    async def lock_trees(self, trees: Sequence[int]) -> None:
        """In a transaction, lock these trees of flows until it ends. Other callers that lock one of them wait."""
        ...

    async def put_template(self, template: NewTemplate) -> Template:
        """Store a definition as the next version of its name. If it equals the newest version, return that and store
        nothing."""
        ...

    async def say(self, job: Job, lines: Sequence[NewLine]) -> bool:
        """Store messages of a job's conversations at their positions, each content once per tenant. Return whether the
        claim still holds the job. If it does not, nothing is stored. A message already stored at a position stays."""
        ...

    async def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        """Store content, once per tenant, for a row that will refer to it in the same transaction."""
        ...

    async def open_gate(self, gate: NewGate) -> Approval:
        """Open the approval request of a flow step. A different open request of that step is withdrawn."""
        ...

    async def close_gate(
        self, tenant_id: int, step: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        """Decide the open approval of a flow step, or return None if the step has none. Only after the deadline can the
        decision be `expired`, and only before it `approved` or `rejected`."""
        ...

    async def put_delivery(self, delivery: NewDelivery) -> None:
        """Store the webhook delivery for a move, due immediately. Storing the same move again has no effect."""
        ...

    async def take_deliveries(self, limit: int, lease_us: int) -> list[Delivery]:
        """Take at most `limit` due webhook deliveries and count an attempt for each. No other caller gets one of them
        until its lease expires."""
        ...

    async def settle_delivery(self, taken: Delivery, state: str, delay_us: int = 0, error: str | None = None) -> bool:
        """Record the outcome of a delivery attempt. The delivery is delivered, has failed, or is pending and due again
        after a delay. Return False and change nothing if a later attempt was taken or the delivery has ended."""
        ...

    async def retry_delivery(self, tenant_id: int, id: int) -> bool:
        """Make a delivery due immediately, in whatever state it is. It gets its initial number of further attempts.
        Return False if there is no such delivery."""
        ...

    async def forget_deliveries(self, older_than: int, limit: int = 500) -> int:
        """Delete at most `limit` webhook deliveries that ended before this time, and return their number."""
        ...

    async def make_budgets(self, budgets: Sequence[NewBudget]) -> None:
        """Create those of these budgets that do not exist yet, and leave the others unchanged."""
        ...

    async def lock_budgets(self, tenant_id: int, owners: Sequence[int]) -> list[Budget]:
        """In a transaction, lock these budgets against changes until it ends. Budgets that do not exist are left
        out."""
        ...

    async def keep_budget(self, budget: Budget) -> None:
        """Store the cap and the notes of a budget. Its sums stay unchanged, since only calls change them."""
        ...

    async def forget_budgets(self, older_than: int, limit: int = 500) -> int:
        """Delete at most `limit` budgets of days and of deleted jobs, oldest first. They were created before
        `older_than`. Return their number. A budget with a reservation stays."""
        ...

    async def lock_jobs(self, jobs: Sequence[int]) -> dict[int, tuple[int, int | None]]:
        """Lock jobs until the transaction ends, so that no other session changes them. Return the epoch of each job
        that exists, and when it ended."""
        ...

    async def open_charge(self, charge: NewCharge) -> int:
        """Record a call in the ledger and reserve its ceiling in its budgets. Return its ID. If the job already has a
        call in flight with this name, return the ID of that call."""
        ...

    async def close_charge(self, id: int, closing: Closing) -> Closed | None:
        """Record the outcome of a call that is in flight. Its ceiling is no longer reserved, and its cost is spent.
        Return the call and its budgets as they are then. A lost call can be corrected once. Its outcome then replaces
        the ceiling that was spent for it. The totals of its agent job are updated. Return None if the call was already
        settled or released. In that case, nothing changes. In a
        transaction, its job cannot end before the transaction does."""
        ...

    async def lock_bucket(self, provider: str, model: str) -> Bucket:
        """In a transaction, lock the token bucket of a model against changes until the transaction ends. Create the
        bucket on its first use."""
        ...

    async def keep_bucket(self, bucket: Bucket) -> None:
        """Store the state of a model's token bucket."""
        ...

    async def put_api_key(self, key: NewApiKey) -> ApiKeyRow:
        """Store a new API key by its hash. The same key again returns the stored one."""
        ...

    async def rotate_api_key(self, id: int, key: NewApiKey, overlap_us: int) -> ApiKeyRow | None:
        """Store a new API key that replaces one of the same tenant. The old key then expires after the overlap at the
        latest. The same key again returns the stored one. Return None if the old key does not exist, is revoked or
        expired, or was rotated before. In that case, nothing is stored."""
        ...

    async def revoke_api_key(self, tenant_id: int, id: int, by: str) -> ApiKeyRow | None:
        """Revoke an API key and return its row, or None if the tenant has no such key. The first revocation wins."""
        ...

    async def touch_api_key(self, tenant_id: int, id: int, every_us: int) -> bool:
        """Record the use of an API key, unless a use was recorded less than `every_us` ago. Return whether it was
        recorded."""
        ...

    async def set_quotas(self, tenant_id: int, most: Mapping[int, int]) -> None:
        """Set the maximum concurrent workers of a tenant's crews for these depths."""
        ...

    async def go_on(self, shares: Sequence[int]) -> int:
        """Lift the quota hold of these shares so that they can be claimed, and return their number."""
        ...

    async def wake_for_crews(self, jobs: Sequence[int], crews: Sequence[int]) -> int:
        """Make those of these jobs due that wait for one of these crews, and return their number. Other holds of a job
        stay."""
        ...

    async def still_claimed(self, job: Job) -> bool:
        """In a transaction, return whether a job still runs under the claim that returned it. The claim's lease must be
        valid. If so, the claim cannot be lost before the transaction ends."""
        ...

    async def note_call(self, job: int, call: int, said: str) -> None:
        """Store the last answer of the agent job that this job runs, and the number of its call. This is not a move and
        writes no event."""
        ...

    async def put_agent_audit(self, audit: AgentAudit) -> None:
        """Store the audit record of a finished agent job. An existing record stays."""
        ...

    async def request_stop(self, id: int, tenant_id: int) -> bool:
        """Request cancellation of a running job. Return False if the job is not running."""
        ...

    async def beat(self, worker: int) -> Standing | None:
        """Record a worker's heartbeat and return the worker's state, or None if there is no such worker. This is not a
        move and writes no event."""
        ...

    async def ask_to_end(self, worker: int, tenant_id: int, ending: str) -> bool:
        """Request that a worker ends, in a way that the worker interprets. The last request wins. Return False if there
        is no such worker. This is not a move and writes no event."""
        ...

    async def silent_workers(self, silent_us: int, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` workers that have not ended and whose last heartbeat is at least that old. A worker
        that has not sent its first heartbeat is never included. In a transaction, none of them can send a heartbeat
        until it ends."""
        ...

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        """Pause or resume a queue from the next claim on. Repeating the call changes nothing."""
        ...

    async def put_schedule(self, schedule: Schedule) -> None:
        """Create a schedule or replace the definition of the one with this name. A replaced schedule keeps its pause
        and its next tick. Only if its rule changed does it take the given next tick."""
        ...

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        """Fire at most `limit` schedules that are due and not paused, the longest overdue first. For each, move it to
        its next tick and enqueue the jobs that the plan returns. Return their number. A schedule stays unchanged if the
        plan returns nothing or if its jobs would exceed `most_jobs`. A schedule that another caller is firing is
        skipped. Each tick is fired once."""
        ...

    async def pause_schedule(self, tenant_id: int, name: str) -> bool:
        """Pause a schedule, so that it is never due until it is resumed. Repeating the call changes nothing. Return
        False if there is no such schedule."""
        ...

    async def resume_schedule(self, tenant_id: int, name: str, next_at: int) -> bool:
        """Resume a paused schedule from this tick. A schedule that is not paused stays unchanged. Return False if there
        is no such schedule."""
        ...

    async def drop_schedule(self, tenant_id: int, name: str) -> bool:
        """Delete a schedule and leave the jobs that it enqueued. Return False if there is no such schedule."""
        ...

    async def declare_limits(self, rules: Sequence[LimitRule]) -> None:
        """Set these limits for all workers, and check the jobs that they hold again. A rule without a limit is
        deleted."""
        ...

    async def pump(self, limit: int = 500) -> int:
        """Promote due jobs that limits hold, never more than the limits allow. Return their number. A job that returns
        to the queue is held by its limit again."""
        ...

    async def add_tenant(self, name: str) -> int:
        """Return the ID of the tenant with this name, and create the tenant if it does not exist."""
        ...

    async def set_tenant_limits(self, tenant_id: int, limits: str | None) -> bool:
        """Store a tenant's own request limits, or remove them with None. Return False if there is no such tenant."""
        ...

    async def recall(
        self, tenant_id: int, endpoint: str, key: str, request_hash: str, ttl_us: int = 3_600_000_000
    ) -> Seen | None:
        """Return None for the first request with this key, which this transaction must then answer. For a later
        request, return the stored response of the first. Raise `KeyReused` if the request body differs. Raise
        `RequestInFlight` if the first request is still running after 2 s."""
        ...

    async def answer(self, tenant_id: int, endpoint: str, key: str, response: str) -> None:
        """Store the response for repeated requests. It is stored if and only if the transaction commits."""
        ...

    async def count(self, counted: Sequence[Counter], *, progress: Progress | None = None) -> bool:
        """Add these values to the counters. With `progress`, add them only if that reader of the log is still at its
        start cursor, and advance the reader in the same write. Return False and add nothing if another caller advanced
        it first."""
        ...

    async def forget_requests(self, limit: int = 500) -> int:
        """Delete at most `limit` expired idempotency keys of requests, and return their number."""
        ...

    async def forget_limits(self, limit: int = 500) -> int:
        """Delete records of limits and unique windows that are no longer needed. At most `limit` of each kind are
        deleted. Return their number."""
        ...

    async def prune(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        """Delete those of these entities that retention still allows, and record that in the same write. Return their
        number. Their events stay. A flow or a crew is deleted with everything inside it or not at all. It stays while
        another transaction works on it. The ledger keeps what was spent."""
        ...

    async def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, *, ttl_us: int, tenant_id: int = DEFAULT_TENANT
    ) -> None:
        """Store telemetry of an entity until it expires. This is not a move and writes no event."""
        ...

    async def forget_telemetry(self, limit: int = 500) -> int:
        """Delete at most `limit` expired telemetry rows, and return their number."""
        ...

    async def put_seal(self, seal: NewSeal) -> bool:
        """Store the next seal of the log. Return False and change nothing if a seal with its number exists."""
        ...

    async def take_duty(self, name: str, every_us: int) -> bool:
        """Return True to the first caller, then False to all callers until the interval has elapsed."""
        ...
