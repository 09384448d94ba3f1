"""What can be written to a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keptwork.lifecycle.machine import Change, Lifecycle
from keptwork.store.agents import AgentAudit
from keptwork.store.api_keys import ApiKeyRow, NewApiKey
from keptwork.store.approvals import Approval, NewApproval
from keptwork.store.blobs import Artifact, Blob
from keptwork.store.breakers import Row
from keptwork.store.budgets import Bucket, Budget, Closed, Closing, NewBudget, NewCharge
from keptwork.store.checkpoints import Report, Save
from keptwork.store.outbox import Delivery, NewDelivery
from keptwork.store.records import (
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
from keptwork.store.schedules import Planner, Schedule
from keptwork.store.seals import NewSeal
from keptwork.store.signals import NewSignal, Sent
from keptwork.store.steps import NewGate
from keptwork.store.templates import NewTemplate, Template
from keptwork.store.transcripts import NewLine


class Writer(Protocol):
    """Writes. Each is all or nothing, and returns only when it is on disk (in a transaction: when that commits)."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """All jobs are queued, or none; a job whose key was used before is not made, the first one's id is returned."""
        ...

    async def enqueue_started(self, job: NewJob, worker: int, lease_us: int, claim_id: int) -> Job:
        """A job that is due at once, has no key, falls under no limit and works for no crew is queued and, if its queue
        is served and the worker may claim, running under that worker when it is returned: three moves and three events
        in one write; a step it works for starts with it. Otherwise it is returned queued. For a worker that has just
        found nothing due, so that nobody is overtaken."""
        ...

    async def enqueue_unique(self, job: NewJob, key: str, window_us: int) -> int:
        """Makes a job, unless one was made under that key of the tenant less than a window ago; returns which it is,
        whatever became of it."""
        ...

    async def enqueue_debounced(self, job: NewJob, key: str, wait_us: int, most_us: int) -> int:
        """Makes a job that is due after a wait; one made before under that key of the tenant that has not started is
        pushed back by the wait instead, and takes the new payload, queue, priority and ids. It is due at the latest
        `most_us` after it was made. Returns which job it is."""
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
        """Each job goes to one claimer only; tenants take turns, of each the highest priority goes first, then the
        oldest; a worker that is not IDLE or RUNNING gets none. A queue with a limit gives no more than it allows. With
        `start` the jobs are running when they are returned: two moves and two events in one write. With `again`, a
        claim whose answer was lost returns the jobs it took, and takes no more. Jobs of the kinds in `without` are left
        to others."""
        ...

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Each change is written with its event if its record is still as it was decided on; those that came too late
        are returned and have changed nothing. The same change by the same actor a second time counts as written. A
        result that comes as a `Blob` is kept with the move, once for all jobs of the tenant that have the same. A job
        that waits for its children is due with the end of the last of them; one that begins to wait for what has
        happened meanwhile is due at once. Where a job counts no longer against its limit, the next one is let go in the
        same write. An override is written like a move, and leads out of a final state too. A pair of moves has two
        events, one after the other; of several pairs those of the lower key come first."""
        ...

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        """The leases of these (job, epoch) run on from now; those that are no longer held are returned."""
        ...

    async def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        """Keeps content with a claimed job that is running; the same name again replaces it. The same content is stored
        once for a tenant. One that no longer holds the job gets `LeaseLost`: nothing was kept."""
        ...

    async def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        """Keeps the results of steps of claimed jobs that are running. For each, the result that stands is returned:
        that of the first of its name, whoever saved it. None is for a job that is no longer held: nothing was kept."""
        ...

    async def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        """Notes that a worker met the result of a step with other code than made it; the first time is kept."""
        ...

    async def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        """Keeps how far claimed jobs that are running have come, as telemetry until its time is over. A later report of
        a job takes the place of the one before; that of a job no longer held changes nothing."""
        ...

    async def lift_holds(self, holds: Sequence[str]) -> int:
        """Jobs in the queue that are held by exactly one of these names can be claimed again; returns how many."""
        ...

    async def lock_breaker(self, tenant_id: int, name: str) -> Row | None:
        """In a transaction: the breaker of that name, which nobody else changes until it is over; none if there is
        none."""
        ...

    async def hold_back(self, tenant_id: int, hold: str, limit: int, besides: int | None = None) -> int:
        """Jobs in the tenant's queues whose hold key is that name, and that nothing holds, are held by it, at most so
        many; returns how many. One may be left out."""
        ...

    async def let_go(self, tenant_id: int, hold: str, limit: int) -> int:
        """Jobs in the tenant's queues that are held by that name can be claimed again, as far as their limits let them,
        at most so many; returns how many."""
        ...

    async def let_one_go(self, tenant_id: int, hold: str, after: str | None = None) -> tuple[int, str] | None:
        """The same for one that is due: of the queue that comes after that one by name, or of the first again, the
        highest priority, then the oldest; returns it and its queue. None if there is none."""
        ...

    async def spawn(self, save: Save, jobs: Sequence[NewJob]) -> list[int] | None:
        """Queues children of a claimed job that is running, and keeps their ids under the step's name, both or none.
        Under a name that is there already nothing is queued: the ids of the first time are returned. None is for a job
        that is no longer held."""
        ...

    async def send_signal(self, signal: NewSignal) -> Sent:
        """Sends a signal, and makes the jobs due that wait for it; one whose key was used before is not sent again. No
        job that begins to wait at the same time misses it."""
        ...

    async def forget_signals(self, older_than: int, limit: int = 500) -> int:
        """Drops signals that were sent before that time, the oldest first, at most so many; returns how many."""
        ...

    async def open_approval(self, job: Job, question: NewApproval) -> Approval | None:
        """Asks a question for a claimed job that is running. The same one again, at the same step, is the first one as
        it stands; another one at that step withdraws what is open there. None is for a job that is no longer held."""
        ...

    async def decide_approval(
        self, tenant_id: int, id: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        """Decides a question that is open, in time, and whose job has not ended, and makes the job due that waits for
        it; `expired` is decided only when its time is over. Whatever came of it, the question is returned as it stands;
        there is one decision, whoever else decides at the same time."""
        ...

    async def withdraw_approvals(self, limit: int = 500) -> int:
        """Withdraws open questions of jobs that have ended or are gone, at most so many; returns how many."""
        ...

    async def drop_unused_blobs(self, older_than: int, limit: int) -> int:
        """Drops blobs that were first kept before that time and that no result, artifact, checkpoint or transcript
        refers to, the oldest first, at most so many; returns how many. One that somebody is about to refer to
        stays."""
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
        """A new entity in its initial state, with its first event; returns its key. With the correlation `ITSELF` it
        belongs to its own public id."""
        ...

    async def create_many(
        self, lifecycle: Lifecycle, rows: Sequence[Mapping[str, Any]], birth: Birth = ...
    ) -> list[int]:
        """New entities of one kind in their initial state, each with its first event; all or none. Their keys grow in
        the order of the rows, which all name the same columns."""
        ...

    async def amend(self, lifecycle: Lifecycle, ids: Sequence[int], tenant_id: int, **columns: Any) -> int:
        """Sets columns of entities that no move sets; returns of how many. It is no move, and no event."""
        ...

    async def lock_trees(self, trees: Sequence[int]) -> None:
        """In a transaction: whoever else locks one of these trees of flows waits until it is over."""
        ...

    async def put_template(self, template: NewTemplate) -> Template:
        """Keeps a definition as the next version of its name; the same as the newest one is that, and nothing is
        kept."""
        ...

    async def say(self, job: Job, lines: Sequence[NewLine]) -> bool:
        """Keeps messages of a job's conversation in their places, each content once for a tenant. It tells whether the
        job was still held; of one that is not, nothing is kept. What was said at a place before stands."""
        ...

    async def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        """Keeps content, once for a tenant, for a row that is about to refer to it in the same transaction."""
        ...

    async def open_gate(self, gate: NewGate) -> Approval:
        """Asks a question that is a step of a flow. What is open at that step is withdrawn, unless it is the same."""
        ...

    async def close_gate(
        self, tenant_id: int, step: int, decision: str, by: str | None = None, comment: str | None = None
    ) -> Approval | None:
        """Decides what is open at a step of a flow; none if nothing is. `expired` is decided only when its time is
        over, `approved` and `rejected` only before."""
        ...

    async def put_delivery(self, delivery: NewDelivery) -> None:
        """Keeps what is to be told to the outside of a move, due at once; the same move again changes nothing."""
        ...

    async def take_deliveries(self, limit: int, lease_us: int) -> list[Delivery]:
        """Deliveries that are due, at most so many, each one attempt further. Nobody else is given one of them until
        the lease is over."""
        ...

    async def settle_delivery(self, taken: Delivery, state: str, delay_us: int = 0, error: str | None = None) -> bool:
        """What came of an attempt: it is delivered, given up, or pending and due again after a delay. Where a later
        attempt was taken meanwhile, or it has ended, nothing changes and the answer is false."""
        ...

    async def retry_delivery(self, tenant_id: int, id: int) -> bool:
        """Makes a delivery due at once, whatever came of it, with as many attempts before it as at first; false when
        there is none of that key."""
        ...

    async def forget_deliveries(self, older_than: int, limit: int = 500) -> int:
        """Drops deliveries that ended before that time, at most so many; returns how many."""
        ...

    async def make_budgets(self, budgets: Sequence[NewBudget]) -> None:
        """Makes those of these budgets that are not there yet; the others stay as they are."""
        ...

    async def lock_budgets(self, tenant_id: int, owners: Sequence[int]) -> list[Budget]:
        """In a transaction: those of these budgets that are there, which nobody else changes until it is over."""
        ...

    async def keep_budget(self, budget: Budget) -> None:
        """Keeps the cap of a budget and what was noted about it. The sums stay as they are: only calls change them."""
        ...

    async def forget_budgets(self, older_than: int, limit: int = 500) -> int:
        """Drops budgets of days and of jobs that are gone, made before that time, the oldest first, at most so many;
        returns how many. One that has something reserved stays."""
        ...

    async def lock_jobs(self, jobs: Sequence[int]) -> dict[int, tuple[int, int | None]]:
        """Lock jobs until the transaction ends, so that no other session changes them. Return the epoch of each job
        that exists, and when it ended."""
        ...

    async def open_charge(self, charge: NewCharge) -> int:
        """Enters a call into the ledger, and reserves its ceiling in the budgets it counts against; returns its key. A
        call of that job and name that is under way is not entered again: its key is returned."""
        ...

    async def close_charge(self, id: int, closing: Closing) -> Closed | None:
        """What came of a call that is under way: its ceiling is reserved no longer, and its cost is spent. Returns it,
        and its budgets as they stand then. A lost call can be corrected once: its outcome replaces the ceiling that was
        spent for it. The totals of its agent job follow. None if it was settled or released: nothing changes. In a
        transaction, its job cannot end before the transaction does."""
        ...

    async def lock_bucket(self, provider: str, model: str) -> Bucket:
        """In a transaction: the tokens of a model, which nobody else changes until it is over; made when first asked
        for."""
        ...

    async def keep_bucket(self, bucket: Bucket) -> None:
        """Keeps how the tokens of a model stand."""
        ...

    async def put_api_key(self, key: NewApiKey) -> ApiKeyRow:
        """Keeps a new key to the API, by its hash; the same again is the one that is there."""
        ...

    async def rotate_api_key(self, id: int, key: NewApiKey, overlap_us: int) -> ApiKeyRow | None:
        """Keeps a new key in the place of one of the same tenant, which from then on lives for the overlap only, and no
        longer than it would have; the same again is the one that is there. None if the old one is not there, has ended,
        or was rotated before: nothing is kept."""
        ...

    async def revoke_api_key(self, tenant_id: int, id: int, by: str) -> ApiKeyRow | None:
        """A key to the API opens nothing from now on; who was first to revoke it stands. Returns it as it is then; none
        if the tenant has no such key."""
        ...

    async def touch_api_key(self, tenant_id: int, id: int, every_us: int) -> bool:
        """Notes that a key to the API was used, unless that was noted less than so long ago; tells whether it was."""
        ...

    async def set_quotas(self, tenant_id: int, most: Mapping[int, int]) -> None:
        """From now on a tenant's crews of these depths may have so many workers at once."""
        ...

    async def go_on(self, shares: Sequence[int]) -> int:
        """Those of these shares that are held by their quota are so no longer, and can be claimed; returns how many."""
        ...

    async def wake_for_crews(self, jobs: Sequence[int], crews: Sequence[int]) -> int:
        """Those of these jobs that wait for one of these crews are due; returns how many. What holds one back still
        does."""
        ...

    async def still_claimed(self, job: Job) -> bool:
        """In a transaction: whether a job is running under the claim it was returned by, and its lease is not over. If
        so, nobody takes it away before the transaction is."""
        ...

    async def note_call(self, job: int, call: int, said: str) -> None:
        """Stores the last answer to the agent job that this job carries out, and the call that it came with. It is no
        move, and no event."""
        ...

    async def put_agent_audit(self, audit: AgentAudit) -> None:
        """Keeps the record of an agent job that has ended. There is one: what is there already stands."""
        ...

    async def request_stop(self, id: int, tenant_id: int) -> bool:
        """Asks a running job to come to an end by itself; false when it is not running."""
        ...

    async def beat(self, worker: int) -> Standing | None:
        """Notes that a worker's process is alive, and tells how the worker stands; none if there is no such worker. It
        is no move, and no event."""
        ...

    async def ask_to_end(self, worker: int, tenant_id: int, ending: str) -> bool:
        """Asks a worker to come to an end in some way, which is for the worker to read; false if there is none. The
        last one to ask is heard. It is no move, and no event."""
        ...

    async def silent_workers(self, silent_us: int, limit: int) -> list[dict[str, Any]]:
        """Workers that have not ended and were last heard of that long ago, or longer; never one that has yet to say
        its first word. In a transaction none of them can be heard of until it is over."""
        ...

    async def set_queue_paused(self, name: str, paused: bool, tenant_id: int = DEFAULT_TENANT) -> None:
        """From the next claim on, the queue is served or not; asking twice changes nothing."""
        ...

    async def put_schedule(self, schedule: Schedule) -> None:
        """The schedule of that name is made, or is from now on as it is said here. It keeps its pause and how far it
        has got; only where its rule is another is it due when it is said here."""
        ...

    async def fire_schedules(self, plan: Planner, limit: int, most_jobs: int) -> int:
        """Of the schedules that are not paused and whose tick has come, the longest first, at most so many are moved on
        and their jobs enqueued, as the plan says for each; returns how many. One stays as it is if the plan says
        nothing, and if its jobs would make too many. What another is firing is left to it: no tick is fired twice."""
        ...

    async def pause_schedule(self, tenant_id: int, name: str) -> bool:
        """It is never due until it is resumed; pausing twice changes nothing. False where there is no such schedule."""
        ...

    async def resume_schedule(self, tenant_id: int, name: str, next_at: int) -> bool:
        """It is due again from that tick on; one that is not paused stays as it is. False where there is none."""
        ...

    async def drop_schedule(self, tenant_id: int, name: str) -> bool:
        """It is gone, and the jobs that it enqueued stay. False where there was none."""
        ...

    async def declare_limits(self, rules: Sequence[LimitRule]) -> None:
        """From now on these limits hold, for the whole fleet; one that limits nothing is dropped. What waits behind
        them is looked at again."""
        ...

    async def pump(self, limit: int = 500) -> int:
        """Lets go jobs that limits hold back and that are due, never more than the limits allow; returns how many. A
        job that goes back into the queue is held back again."""
        ...

    async def add_tenant(self, name: str) -> int:
        """The key of the tenant of that name, which is made if there is none."""
        ...

    async def set_tenant_limits(self, tenant_id: int, limits: str | None) -> bool:
        """What a tenant may ask of servers is kept with it; none is nothing of its own. False if there is no such
        tenant."""
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

    async def count(self, counted: Sequence[Counter], *, progress: Progress | None = None) -> bool:
        """Adds to the counters. With progress, only if that reader of the log still stands where it began, and then it
        moves on in the same write; false means that another was first, and nothing was added."""
        ...

    async def forget_requests(self, limit: int = 500) -> int:
        """Drops idempotency keys whose time is over, at most so many; returns how many."""
        ...

    async def forget_limits(self, limit: int = 500) -> int:
        """Drops what limits and unique windows have noted and need no longer, at most so much of each; returns how
        much."""
        ...

    async def prune(self, lifecycle: Lifecycle, ids: Sequence[int], expiry: Expiry) -> int:
        """Deletes those of these entities that may still go, and accounts for them in the same write; returns how many.
        Their events stay. A flow or a crew goes with everything inside it or not at all; it stays while somebody else
        is at work on it. The ledger keeps what was spent."""
        ...

    async def record_telemetry(
        self, lifecycle: Lifecycle, id: int, kind: str, payload: str, *, ttl_us: int, tenant_id: int = DEFAULT_TENANT
    ) -> None:
        """Keeps something seen of an entity until its time is over. It is no event, and no move."""
        ...

    async def forget_telemetry(self, limit: int = 500) -> int:
        """Drops telemetry whose time is over, at most so much; returns how much."""
        ...

    async def put_seal(self, seal: NewSeal) -> bool:
        """Keeps the next seal of the log. False, and nothing is changed, if there is one of that number."""
        ...

    async def take_duty(self, name: str, every_us: int) -> bool:
        """True for the first to ask, then for nobody until that time is over."""
        ...
