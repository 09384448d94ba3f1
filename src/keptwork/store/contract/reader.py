"""The read half of the store's contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from keptwork.core.decide import Lifecycle
from keptwork.store.contract.access import ApiKeyRow, LiveApiKey
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.agents_transcripts import Line
from keptwork.store.contract.breakers import BreakerView, Row, Watched
from keptwork.store.contract.budgets import Bucket, Budget, BudgetView, Charge, Cost, Sum
from keptwork.store.contract.checkpoints import Checkpoint
from keptwork.store.contract.checkpoints_blobs import Artifact
from keptwork.store.contract.crews import InLine, Quota
from keptwork.store.contract.events_digest import Digest
from keptwork.store.contract.events_seals import Seal
from keptwork.store.contract.flows_steps import FlowFilter, Output
from keptwork.store.contract.flows_templates import Template
from keptwork.store.contract.outbox import Delivery
from keptwork.store.contract.queues import Schedule
from keptwork.store.contract.records import (
    Counter,
    Event,
    EventFilter,
    Expired,
    Expiry,
    Held,
    Hold,
    Job,
    JobFilter,
    LimitRule,
    LimitUse,
    Place,
    Pruned,
    QueueSummary,
    Telemetry,
    Tenant,
    WorkerFilter,
)
from keptwork.store.contract.waits_approvals import Approval
from keptwork.store.contract.waits_signals import Signal


class Reader(Protocol):
    """Read operations. Each sees one committed state of the database, never part of a transaction."""

    async def now(self) -> int:
        """Return the database's time in microseconds. Leases and schedules use no other clock."""
        ...

    async def tenant(self, name: str) -> int:
        """Return the ID of the tenant with this name. Raise `NotFound` if there is none."""
        ...

    async def tenants(self) -> list[Tenant]:
        """Return all tenants in the order of their creation."""
        ...

    async def tenant_limits(self, tenant_id: int) -> str | None:
        """Return the limits last set for a tenant as JSON. Return None if none were set or the tenant does not
        exist."""
        ...

    async def waiting_jobs(self, tenant_id: int, most: int) -> int:
        """Return how many jobs of a tenant are queued, held or not, counting at most `most`."""
        ...

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        """Return the whole row of an entity. Return None for another tenant's entity, as for one that does not
        exist."""
        ...

    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ...
    ) -> list[dict[str, Any]]:
        """Return the rows of those entities that exist, whole or with only the named columns."""
        ...

    async def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        """Return the number of entities, and the number of those without a first event."""
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
        """Return one page of the matching jobs in the order of their IDs. The rows are whole or have only the named
        columns. Reading on from the last ID never returns a job twice."""
        ...

    async def queues(self, tenant_id: int, *, unfinished_only: bool = False) -> list[QueueSummary]:
        """Return every queue of the tenant that has jobs or was ever paused. Each has its number of jobs per state, the
        due time of its first claimable job, the time when it was paused, and the number of queued jobs that something
        other than a limit or a quota holds. With `unfinished_only`, finished jobs are not counted."""
        ...

    async def schedules(self, tenant_id: int) -> list[Schedule]:
        """Return the tenant's schedules by name, without those of other tenants."""
        ...

    async def schedule_due(self) -> int | None:
        """Return the microseconds until the next tick of any tenant's schedules, negative if it is past. Return None if
        there is no schedule or all are paused."""
        ...

    async def workers(
        self, wanted: WorkerFilter = ..., *, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return one page of the matching workers, newest first. Reading on from the last ID never returns a worker
        twice."""
        ...

    async def worker_states(self, tenant_id: int) -> dict[str, int]:
        """Return the number of the tenant's workers per state, without states that have none."""
        ...

    async def limit_rules(self) -> list[LimitRule]:
        """Return every declared limit of job kinds and of queues."""
        ...

    async def limit_uses(self, tenant_id: int) -> list[LimitUse]:
        """Return the use of limits per key, for the tenant's limits and those of all tenants. It has the jobs that
        count against a key, and the jobs that the key holds."""
        ...

    async def next_pump(self) -> int | None:
        """Return when the keys of limits must be checked next (µs), or None if no job waits for that."""
        ...

    async def place(self, tenant_id: int, job: int) -> Place | None:
        """Return the position of a job. It has the time when the job's queue was paused, the number of due jobs ahead
        of the job, and the number of its unfinished children. Return None if the tenant has no such job."""
        ...

    async def overdue(self, limit: int) -> list[Job]:
        """Return jobs whose lease has expired, the earliest expiry first. They might have moved on by the time they are
        read."""
        ...

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        """Return those of these jobs that are running under this worker. Jobs that it has lost or completed are left
        out."""
        ...

    async def events(
        self,
        wanted: EventFilter = ...,
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        """Return one page of the log. Reading on from the last cursor, oldest first, never skips or repeats an
        event."""
        ...

    async def event_count(self, tenant_id: int | None = None) -> int:
        """Return the number of events."""
        ...

    async def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        """Return one page of the log sorted by entity, starting after (entity ID, seq, entity)."""
        ...

    async def blob(self, tenant_id: int, hash: str) -> bytes | None:
        """Return the content with this hash as it was stored. Return None for another tenant's content, as for content
        that does not exist."""
        ...

    async def artifacts(self, tenant_id: int, job: int) -> list[Artifact]:
        """Return the artifacts of a job by name. Another tenant's job has none."""
        ...

    async def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        """Return the checkpoints of a job in the order in which its steps saved them. Another tenant's job has none."""
        ...

    async def transcript(self, tenant_id: int, job: int) -> list[Line]:
        """Return the messages of a job's conversations by round and position. Another tenant's job has none."""
        ...

    async def unfinished_children(self, tenant_id: int, jobs: Sequence[int]) -> list[int]:
        """Return the IDs of the unfinished children of these jobs, in order, without those of other tenants."""
        ...

    async def cancelled_parents(self, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` cancelled jobs that have unfinished children, as (tenant, job)."""
        ...

    async def stopped_waits(self, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` jobs that wait despite a cancellation request while they ran, as (tenant, job)."""
        ...

    async def next_signal(self, tenant_id: int, job: int, name: str, after: int) -> Signal | None:
        """Return the first signal of this name after a position, sent to this job or to all jobs. Return None if there
        is none yet."""
        ...

    async def open_waits(self, tenant_id: int, job: int) -> list[tuple[str, int | None]]:
        """Return the open waits of a job that waits for several things at a time, each with its deadline. The list is
        empty for any other job, and after one of the waits has ended. Another tenant's job has none."""
        ...

    async def approval(self, tenant_id: int, id: int) -> Approval | None:
        """Return an approval by its ID. Return None for another tenant's approval, as for one that does not exist."""
        ...

    async def approvals(
        self,
        tenant_id: int,
        *,
        job: int | None = None,
        open_only: bool = True,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """Return at most `limit` approvals of a tenant, newest first, with IDs below `after`. They belong to one job or
        to all, and are open or in any state."""
        ...

    async def template(self, tenant_id: int, id: int) -> Template | None:
        """Return a template by its ID. Return None for another tenant's template, as for one that does not exist."""
        ...

    async def templates(
        self,
        tenant_id: int,
        *,
        name: str | None = None,
        newest_only: bool = True,
        after: tuple[str, int] | None = None,
        limit: int = 100,
    ) -> list[Template]:
        """Return at most `limit` templates of a tenant by name, newest version first. They come after the given name
        and version. They have one name or any, in the newest version only or in every version."""
        ...

    async def steps(
        self, flow: int, *, names: Sequence[str] | None = None, parent: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the steps of a flow in order, without their inputs and outputs. They are all steps, those with these
        names, or the items of one step."""
        ...

    async def steps_by_key(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return those of these steps that exist, in any flow, without their inputs and outputs."""
        ...

    async def outputs(self, flow: int, names: Sequence[str]) -> list[Output]:
        """Return the results and inputs of these steps of a flow."""
        ...

    async def elements(self, parent: int) -> list[Output]:
        """Return the results of the items of a `for_each` step, in order."""
        ...

    async def elements_in(self, parent: int, state: str, limit: int) -> list[dict[str, Any]]:
        """Return the first items of a step that are in this state, in order. There are at most `limit`, without their
        inputs and outputs."""
        ...

    async def step_counts(self, flow: int) -> dict[str, int]:
        """Return the number of steps of a flow per state, without the items of `for_each` steps."""
        ...

    async def element_counts(self, parent: int) -> dict[str, int]:
        """Return the number of items of a step per state."""
        ...

    async def flow_by_key(self, lifecycle: Lifecycle, tenant_id: int, key: str) -> dict[str, Any] | None:
        """Return the flow that was created with an idempotency key, or None if there is none."""
        ...

    async def any_unfinished(self, flow: int, besides: Sequence[str] = ()) -> bool:
        """Return whether a flow has unfinished steps in states other than `besides`. Items of `for_each` steps are not
        counted."""
        ...

    async def unfinished_jobs(self, tree: int) -> list[Job]:
        """Return the unfinished jobs of a tree of flows."""
        ...

    async def subflows(self, lifecycle: Lifecycle, step: int) -> list[dict[str, Any]]:
        """Return the flows of this kind that run for a step of another flow, newest first."""
        ...

    async def resumption(self, lifecycle: Lifecycle, flow: int) -> int | None:
        """Return the flow of this kind that resumes an unsuccessful one, or None if there is none."""
        ...

    async def forks(self, workstream: int) -> list[dict[str, Any]]:
        """Return the workstreams that were forked from this one, newest first."""
        ...

    async def flows(
        self, lifecycle: Lifecycle, wanted: FlowFilter = ..., *, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return at most `limit` flows of one kind, newest first, with IDs below `after`."""
        ...

    async def flows_to_wake(self, lifecycle: Lifecycle, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` flows of one kind whose wake time has passed, the earliest first."""
        ...

    async def next_flow_wake(self) -> int | None:
        """Return when time will next move a flow or expire its approval (µs), or None if it will not."""
        ...

    async def ended_amiss(
        self, lifecycle: Lifecycle, success: str, otherwise: Sequence[str], *, after: int = 0, limit: int = 100
    ) -> list[int]:
        """Return finished flows of one kind that still have an unfinished step or job, or an open approval. Also return
        flows that finished with `success` although a step finished in a state in `otherwise`. There are at most
        `limit`, with IDs above `after`."""
        ...

    async def lost_steps(self, states: Sequence[str], limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` steps in these states that no job runs. Their own job has ended or was deleted."""
        ...

    async def long_at_work(self, states: Sequence[str], before: int, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` claimed jobs that have long been in one of these states. They entered it before
        `before`, the longest ago first."""
        ...

    async def unleased(self, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` jobs in a claimed state that have no lease."""
        ...

    async def holds(self) -> list[Hold]:
        """Return what holds queued jobs, other than limits. Each entry has a tenant, a hold, the number of jobs, and
        since when the oldest is held."""
        ...

    async def unclosed_breakers(self, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` breakers of any tenant that are not closed."""
        ...

    async def expired_gates(self, limit: int) -> list[Approval]:
        """Return at most `limit` open approvals of flow steps whose deadline has passed, the earliest first."""
        ...

    async def gate(self, tenant_id: int, step: int) -> Approval | None:
        """Return the latest approval request of a flow step."""
        ...

    async def delivery(self, tenant_id: int, entity: str, id: int, seq: int) -> Delivery | None:
        """Return the webhook delivery for one move of an entity. Return None for another tenant's entity, as for one
        that does not exist."""
        ...

    async def deliveries(
        self,
        tenant_id: int,
        *,
        flow: int | None = None,
        state: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[Delivery]:
        """Return at most `limit` webhook deliveries of a tenant, newest first, with IDs below `after`. They belong to
        one flow or to all, in one state or in any."""
        ...

    async def next_delivery(self) -> int | None:
        """Return the microseconds until the next attempt of a webhook delivery, of any tenant. The number is negative
        if it is overdue. Return None if no delivery is pending."""
        ...

    async def breaker(self, tenant_id: int, name: str) -> Row | None:
        """Return a breaker by its name. Return None for another tenant's breaker, as for one that does not exist."""
        ...

    async def breakers(self, tenant_id: int, name: str | None = None) -> list[BreakerView]:
        """Return the tenant's breakers by name, or the one with this name. Each has the number of queued jobs it
        holds."""
        ...

    async def breakers_that_hold(self, limit: int, after: int = 0) -> list[Watched]:
        """Return at most `limit` breakers of any tenant that opened and still need attention. Their IDs are above
        `after`. Each shows whether jobs that need it are not held yet, whether it holds any jobs, and whether its probe
        is running."""
        ...

    async def is_claimed(self, job: int, epoch: int) -> bool:
        """Return whether the claim of a job under this epoch is alive."""
        ...

    async def holds_any(self, tenant_id: int, hold: str) -> bool:
        """Return whether a queued job of the tenant has exactly this hold."""
        ...

    async def budget(self, tenant_id: int, owner: int) -> BudgetView | None:
        """Return a budget by its owner, with the number of queued jobs it holds. Return None if the tenant has no such
        budget."""
        ...

    async def budgets(
        self, tenant_id: int, *, scope: str | None = None, after: tuple[str, int] | None = None, limit: int = 100
    ) -> list[BudgetView]:
        """Return at most `limit` budgets of a tenant, each with the number of queued jobs it holds. The tenant's own
        comes first, then those of days, then all others, newest first. They have one scope or any, and come after the
        budget with the given scope and owner."""
        ...

    async def next_hold(self, after: tuple[int, str] = ...) -> tuple[int, str] | None:
        """Return the next (tenant, hold) of queued jobs after the given pair, without limits. Return None after the
        last pair. Reading on from each pair returns every pair once."""
        ...

    async def charge(self, id: int) -> Charge | None:
        """Return a call in the ledger by its ID."""
        ...

    async def open_charges(self, job: int, call: str | None = None) -> list[Charge]:
        """Return the calls of a job that are in flight, or only the one with this name."""
        ...

    async def charges(
        self,
        tenant_id: int,
        *,
        job: int | None = None,
        tree: int | None = None,
        day: int | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[Charge]:
        """Return at most `limit` calls of a tenant, newest first. They belong to one job, one tree of flows, one day,
        or all of these, in one state or in any."""
        ...

    async def charges_in_flight(self, jobs: Sequence[int]) -> list[Charge]:
        """Return the calls of these jobs that are in flight."""
        ...

    async def uncertain(self, budget: Budget) -> dict[str, Sum]:
        """Return what counts against a budget although its cost is unknown. The states are calls in flight and lost
        calls."""
        ...

    async def step_costs(self, flow: int, tree: int) -> dict[int, Cost]:
        """Return the cost of the calls for each step of a flow, by step. Calls for flows inside a step count for that
        step, and calls for an item of a list also count for the list. Lost calls count as spent and are also shown
        separately, and released calls are left out."""
        ...

    async def tree_cost(self, tenant_id: int, tree: int) -> Cost:
        """Return the cost of all calls for an outermost flow."""
        ...

    async def abandoned_charges(self, limit: int) -> list[Charge]:
        """Return at most `limit` calls recorded as in flight whose job has ended or was deleted."""
        ...

    async def costs(self, by: str, tenant_id: int | None, since: int = 0, limit: int = 1000) -> list[Cost]:
        """Return the cost of calls that started since then, highest first. They are grouped by `model`, `tenant`,
        `flow`, or `day`, for one tenant or for all. Lost calls count as spent and are also shown separately, and
        released calls are left out."""
        ...

    async def bucket(self, provider: str, model: str) -> Bucket | None:
        """Return the tokens that all workers have requested from a model, or None if they were never counted."""
        ...

    async def crew_by_key(self, tenant_id: int, key: str) -> int | None:
        """Return the crew that a tenant created with this idempotency key, or None if there is none."""
        ...

    async def crews(
        self,
        tenant_id: int,
        *,
        states: Sequence[str] | None = None,
        inside: bool = False,
        after: int | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return at most `limit` crews of a tenant, newest first, with IDs below `after`. Crews inside others are
        included only with `inside`."""
        ...

    async def shares(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[Job]:
        """Return the jobs of these crews, all or only the unfinished ones, sorted by crew and creation."""
        ...

    async def subcrews(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[dict[str, Any]]:
        """Return the crews directly inside these crews, all or only the unfinished ones."""
        ...

    async def crews_of_step(self, step: int) -> list[dict[str, Any]]:
        """Return the crews that run for a step of a flow, newest first."""
        ...

    async def quotas(self, tenant_id: int) -> list[Quota]:
        """Return, per depth, the quota of a tenant's crews and its use. Each has the workers that the crews have, and
        whether a share or crew is in line. A depth with none of these is left out. A share counts as a worker until it
        ends, except while its quota holds it."""
        ...

    async def in_line(self, tenant_id: int, depth: int, most: int, limit: int) -> InLine:
        """Return what waits for workers of a depth. It lists shares that only their quota holds, and PENDING crews, at
        most `limit` of each. A crew that needs more than `most` workers is passed over."""
        ...

    async def crew_tenants(self) -> list[int]:
        """Return the tenants that have unfinished crews."""
        ...

    async def crews_amiss(self, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` crews that should have moved, as (tenant, crew). Their deadline has passed, they were
        not validated, their parent crew has ended, the job that created them was cancelled, a share was unsuccessful,
        or no unfinished work is left."""
        ...

    async def outlived_crews(self, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` finished crews that have unfinished shares, as (tenant, crew)."""
        ...

    async def forgotten_askers(self, tenant_id: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` jobs that wait for a crew, with the names of their waits. Every crew that they created
        has ended."""
        ...

    async def agents_of_jobs(self, jobs: Sequence[int]) -> list[dict[str, Any]]:
        """Return the whole rows of the agent jobs that these jobs run, in the order of their creation."""
        ...

    async def agents(
        self, tenant_id: int, *, states: Sequence[str] | None = None, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return at most `limit` agent jobs of a tenant, newest first, with IDs below `after`. They are in one of these
        states, or in any state by default."""
        ...

    async def agents_left_behind(self, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` unfinished agent jobs whose job has ended or was deleted."""
        ...

    async def agent_audits(
        self, tenant_id: int, *, agent: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[AgentAudit]:
        """Return at most `limit` audit records of a tenant's finished agent jobs, newest first. Their IDs are below
        `after`. They are all, or that of one agent job."""
        ...

    async def live_api_key(self, hash: str) -> LiveApiKey | None:
        """Return the valid API key with this hash, of any tenant, and the current time. Return None if there is no such
        key, or if it is revoked or expired."""
        ...

    async def api_key(self, tenant_id: int, id: int) -> ApiKeyRow | None:
        """Return an API key by its ID. Return None for another tenant's key, as for one that does not exist."""
        ...

    async def api_keys(
        self, tenant_id: int, *, ended: bool = False, after: int | None = None, limit: int = 100
    ) -> list[ApiKeyRow]:
        """Return at most `limit` API keys of a tenant, newest first, with IDs below `after`. Revoked and expired keys
        are included only with `ended`."""
        ...

    async def log_end(self) -> str:
        """Return a cursor after which every later commit's events appear. A few events that already exist might appear
        after it, too."""
        ...

    async def digest(self, after: str | None, limit: int) -> Digest:
        """Return the next events in commit order, counted in groups. Each group has the time that its entities spent in
        their previous state. Reading on from the digest's cursor counts every event once."""
        ...

    async def log_position(self, reader: str) -> str | None:
        """Return the cursor that a reader of the log has reached, or None if it has not started."""
        ...

    async def seals(self, *, after: int = 0, limit: int = 100) -> list[Seal]:
        """Return at most `limit` seals of the log, in the order of their numbers, after the given number. They are of
        all tenants together."""
        ...

    async def last_seal(self) -> Seal | None:
        """Return the newest seal, or None if nothing is sealed."""
        ...

    async def counters(self, tenant_id: int) -> list[Counter]:
        """Return all counters of a tenant."""
        ...

    async def job_moves_since(self, tenant_id: int, since: int, until: int | None = None) -> dict[str, int]:
        """Return the number of moves of a tenant's jobs by trigger, from `since` and before `until` if given."""
        ...

    async def prunable(self, lifecycle: Lifecycle, expiry: Expiry, *, after: int = 0, limit: int = 1000) -> Expired:
        """Return one page of jobs, workers, agent jobs, crews, or flows in the order of their IDs. The page lists those
        that retention may delete, and where to continue. A rerun stays while its original job exists, and a worker
        stays while it holds a job. An agent job stays while its job must. A crew stays while one of its shares must, or
        while the job that created it is unfinished. Flows and crews inside others go with the outermost one. A flow
        stays while a job works for it or a webhook delivery of it is pending. Flows and crews stay while money is
        reserved for them. The key of a flow that a schedule started protects the flow for a day."""
        ...

    async def retinues(self, lifecycle: Lifecycle, ids: Sequence[int]) -> dict[int, int]:
        """Return how many rows each of these flows or crews has, itself included. The count has all steps, flows, and
        crews inside. A flow or crew with an unfinished part is left out."""
        ...

    async def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int = 100) -> list[Telemetry]:
        """Return the latest telemetry of an entity, newest first. Another tenant's entity has none."""
        ...

    async def pruned(self) -> list[Pruned]:
        """Return what retention has deleted so far, by tenant, entity, and state."""
        ...

    async def faults(self) -> list[str]:
        """Return the faults of the database itself, such as damaged storage and missing or changed guards."""
        ...
