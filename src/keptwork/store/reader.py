"""What can be read from a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from keptwork.lifecycle.machine import Lifecycle
from keptwork.store.agents import AgentAudit
from keptwork.store.api_keys import ApiKeyRow, LiveApiKey
from keptwork.store.approvals import Approval
from keptwork.store.blobs import Artifact
from keptwork.store.breakers import BreakerView, Row, Watched
from keptwork.store.budgets import Bucket, Budget, BudgetView, Charge, Cost, Sum
from keptwork.store.checkpoints import Checkpoint
from keptwork.store.crews import InLine, Quota
from keptwork.store.digest import Digest
from keptwork.store.outbox import Delivery
from keptwork.store.records import (
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
from keptwork.store.schedules import Schedule
from keptwork.store.seals import Seal
from keptwork.store.signals import Signal
from keptwork.store.steps import FlowFilter, Output
from keptwork.store.templates import Template
from keptwork.store.transcripts import Line


class Reader(Protocol):
    """Reads. Each sees one committed state of the database, never half of a transaction."""

    async def now(self) -> int:
        """The database's time in microseconds, the only time leases and schedules are decided by."""
        ...

    async def tenant(self, name: str) -> int:
        """The key of the tenant of that name; an unknown name is `NotFound`."""
        ...

    async def tenants(self) -> list[Tenant]:
        """Every tenant, in the order they were made."""
        ...

    async def tenant_limits(self, tenant_id: int) -> str | None:
        """What was set for a tenant last; none if nothing was, or there is no such tenant."""
        ...

    async def waiting_jobs(self, tenant_id: int, most: int) -> int:
        """How many jobs of a tenant are queued, whatever holds them back, counted no further than that."""
        ...

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> dict[str, Any] | None:
        """The whole row of an entity; another tenant's is none, exactly like one that does not exist."""
        ...

    async def rows(
        self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ...
    ) -> list[dict[str, Any]]:
        """The rows of those entities that exist: whole, or only the columns named."""
        ...

    async def counts(self, lifecycle: Lifecycle) -> tuple[int, int]:
        """How many entities there are, and how many of them have no first event."""
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
        """One page of the jobs that match, in the order of their ids; whole, or only the columns named. Read on from
        the last id, no job comes twice."""
        ...

    async def queues(self, tenant_id: int, *, unfinished_only: bool = False) -> list[QueueSummary]:
        """Every queue of the tenant that has jobs or was ever paused: how many it has in each state, since when the
        first that could be claimed has been due, since when the queue is paused, and how many of those queued are held
        back by something else than a limit or a quota. With `unfinished_only` jobs that have ended do not count."""
        ...

    async def schedules(self, tenant_id: int) -> list[Schedule]:
        """The schedules of a tenant, by name; those of another are not shown."""
        ...

    async def schedule_due(self) -> int | None:
        """How many microseconds it is until a schedule of any tenant has its next tick, or since one had; none where
        there is no schedule, or all are paused."""
        ...

    async def workers(
        self, wanted: WorkerFilter = ..., *, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """One page of the workers that match, the newest first. Read on from the last id, no worker comes twice."""
        ...

    async def worker_states(self, tenant_id: int) -> dict[str, int]:
        """How many workers of the tenant there are in each state that some are in."""
        ...

    async def limit_rules(self) -> list[LimitRule]:
        """Every limit that was declared, of kinds of jobs and of queues."""
        ...

    async def limit_uses(self, tenant_id: int) -> list[LimitUse]:
        """What counts against limits of the tenant, or of all, and what waits behind them, key by key."""
        ...

    async def next_pump(self) -> int | None:
        """When the keys of limits are to be looked at next; none if nothing waits for that."""
        ...

    async def place(self, tenant_id: int, job: int) -> Place | None:
        """Where a job stands: since when its queue is paused, how many jobs are due before it, and how many of its
        children have not ended; none if there is no such job of the tenant."""
        ...

    async def overdue(self, limit: int) -> list[Job]:
        """Jobs whose lease is over, the longest first. They may have moved on by the time they are read."""
        ...

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        """Which of these jobs are running under this worker; what it lost, or has settled, is not among them."""
        ...

    async def events(
        self,
        wanted: EventFilter = ...,
        *,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        """One page of the log. Oldest first and read on from the last cursor, no event is ever missed or repeated."""
        ...

    async def event_count(self, tenant_id: int | None = None) -> int:
        """How many events there are."""
        ...

    async def history(self, after: tuple[int, int] | tuple[int, int, str], limit: int) -> list[Event]:
        """One page of the log entity by entity, beginning after (entity id, seq, entity)."""
        ...

    async def blob(self, tenant_id: int, hash: str) -> bytes | None:
        """The content of that hash, as it was kept; another tenant's is none, exactly like one that does not exist."""
        ...

    async def artifacts(self, tenant_id: int, job: int) -> list[Artifact]:
        """What a job keeps beside its result, by name; that of another tenant's job is not shown."""
        ...

    async def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        """What the steps of a job have left, in the order they did; that of another tenant's job is not shown."""
        ...

    async def transcript(self, tenant_id: int, job: int) -> list[Line]:
        """What was said in the conversations of a job, by round and place; that of another tenant's job is not
        shown."""
        ...

    async def unfinished_children(self, tenant_id: int, jobs: Sequence[int]) -> list[int]:
        """The children of these jobs that have not ended, by their ids; another tenant's are not shown."""
        ...

    async def cancelled_parents(self, limit: int) -> list[tuple[int, int]]:
        """Cancelled jobs that have children which have not ended, as (tenant, job), at most so many."""
        ...

    async def stopped_waits(self, limit: int) -> list[tuple[int, int]]:
        """Jobs that wait for something although they were asked to end while they ran, as (tenant, job), at most so
        many."""
        ...

    async def next_signal(self, tenant_id: int, job: int, name: str, after: int) -> Signal | None:
        """The first signal of that name after a place in its sequence, of those sent to this job or to everyone; none
        while there is none."""
        ...

    async def open_waits(self, tenant_id: int, job: int) -> list[tuple[str, int | None]]:
        """Return what a job waits for that waits for several things at a time, each with its end. It is empty for any
        other job, and once one of them has come. Another tenant's job has none."""
        ...

    async def approval(self, tenant_id: int, id: int) -> Approval | None:
        """A question to people by its key; another tenant's is none, exactly like one that does not exist."""
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
        """A tenant's questions, the newest first: of one job or of all, those that are open or those of any kind; after
        that key, at most so many."""
        ...

    async def template(self, tenant_id: int, id: int) -> Template | None:
        """A definition by its key; another tenant's is none, exactly like one that does not exist."""
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
        """A tenant's definitions by name, newest version first: of one name or of all, the newest only or every one;
        after that name and version, at most so many."""
        ...

    async def steps(
        self, flow: int, *, names: Sequence[str] | None = None, parent: int | None = None
    ) -> list[dict[str, Any]]:
        """The steps of a flow in order, without what they take and give: all, those of these names, or the elements of
        one."""
        ...

    async def steps_by_key(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Those of these steps that exist, whatever flow they are of, without what they take and give."""
        ...

    async def outputs(self, flow: int, names: Sequence[str]) -> list[Output]:
        """What came of these steps of a flow, and what they were given."""
        ...

    async def elements(self, parent: int) -> list[Output]:
        """What came of the elements of a step that runs once for each of a list, in order."""
        ...

    async def elements_in(self, parent: int, state: str, limit: int) -> list[dict[str, Any]]:
        """The first elements of a step that are in a state, in order, without what they take and give: at most so
        many."""
        ...

    async def step_counts(self, flow: int) -> dict[str, int]:
        """How many steps of a flow there are in each state; elements of others are not counted."""
        ...

    async def element_counts(self, parent: int) -> dict[str, int]:
        """How many elements of a step there are in each state."""
        ...

    async def flow_by_key(self, lifecycle: Lifecycle, tenant_id: int, key: str) -> dict[str, Any] | None:
        """The flow that an idempotency key has made, if it has."""
        ...

    async def any_unfinished(self, flow: int, besides: Sequence[str] = ()) -> bool:
        """Whether a flow has steps that have not ended, in other states than these; elements of others are not
        counted."""
        ...

    async def unfinished_jobs(self, tree: int) -> list[Job]:
        """The jobs that work for a tree of flows and have not ended."""
        ...

    async def subflows(self, lifecycle: Lifecycle, step: int) -> list[dict[str, Any]]:
        """The flows of that kind that a step of another flow consists of, the newest first."""
        ...

    async def resumption(self, lifecycle: Lifecycle, flow: int) -> int | None:
        """The flow of that kind that continues one which ended without success, or None if there is none."""
        ...

    async def forks(self, workstream: int) -> list[dict[str, Any]]:
        """The workstreams that were forked from one, the newest first."""
        ...

    async def flows(
        self, lifecycle: Lifecycle, wanted: FlowFilter = ..., *, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Flows of one kind, the newest first: after that key, at most so many."""
        ...

    async def flows_to_wake(self, lifecycle: Lifecycle, limit: int) -> list[dict[str, Any]]:
        """Flows of one kind that time will move, and whose time has come, the longest first."""
        ...

    async def next_flow_wake(self) -> int | None:
        """When the next flow or question of one will be moved by time; none if none will."""
        ...

    async def ended_amiss(
        self, lifecycle: Lifecycle, success: str, otherwise: Sequence[str], *, after: int = 0, limit: int = 100
    ) -> list[int]:
        """Flows of one kind that have ended although a step, a job or a question of theirs has not, or with `success`
        although a step ended in one of the other states: after that key, at most so many."""
        ...

    async def lost_steps(self, states: Sequence[str], limit: int) -> list[dict[str, Any]]:
        """Steps in these states whose job has ended or is gone, and for which no other job works, at most so many."""
        ...

    async def long_at_work(self, states: Sequence[str], before: int, limit: int) -> list[dict[str, Any]]:
        """Jobs with workers that have been in one of these states since before then, the longest first, at most so
        many."""
        ...

    async def unleased(self, limit: int) -> list[dict[str, Any]]:
        """Jobs that a worker is said to have though none has a lease on them, at most so many."""
        ...

    async def holds(self) -> list[Hold]:
        """What holds back jobs in queues, other than limits; how many jobs of which tenant, and since when at the
        longest."""
        ...

    async def unclosed_breakers(self, limit: int) -> list[dict[str, Any]]:
        """Breakers of any tenant that are not closed, at most so many."""
        ...

    async def expired_gates(self, limit: int) -> list[Approval]:
        """Open questions that are steps of flows, and whose time is over, the longest first."""
        ...

    async def gate(self, tenant_id: int, step: int) -> Approval | None:
        """The last question asked at a step of a flow."""
        ...

    async def delivery(self, tenant_id: int, entity: str, id: int, seq: int) -> Delivery | None:
        """What is told to the outside of one move of an entity; another tenant's is none, exactly like one that does
        not exist."""
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
        """What a tenant's flows tell to the outside, the newest first: of one or of all, in one state or in any; after
        that key, at most so many."""
        ...

    async def next_delivery(self) -> int | None:
        """How many microseconds it is until an attempt to deliver something of any tenant is due, or since one was;
        none where nothing is to be delivered."""
        ...

    async def breaker(self, tenant_id: int, name: str) -> Row | None:
        """A breaker by its name; another tenant's is none, exactly like one that does not exist."""
        ...

    async def breakers(self, tenant_id: int, name: str | None = None) -> list[BreakerView]:
        """A tenant's breakers by name, all or one, with how many jobs in the queue each holds back."""
        ...

    async def breakers_that_hold(self, limit: int, after: int = 0) -> list[Watched]:
        """Breakers of any tenant that have opened and have not been done with since: after that key, at most so many.
        Each says whether jobs that need it are not held back yet, whether it holds any, and whether its probe is at
        work."""
        ...

    async def is_claimed(self, job: int, epoch: int) -> bool:
        """Whether the claim of a job under that epoch is alive."""
        ...

    async def holds_any(self, tenant_id: int, hold: str) -> bool:
        """Whether a job in the queue of the tenant is held by exactly that name."""
        ...

    async def budget(self, tenant_id: int, owner: int) -> BudgetView | None:
        """A budget by what it is for, with how many jobs in the queue it holds back; none if there is none of the
        tenant."""
        ...

    async def budgets(
        self, tenant_id: int, *, scope: str | None = None, after: tuple[str, int] | None = None, limit: int = 100
    ) -> list[BudgetView]:
        """A tenant's budgets, each with how many jobs in the queue it holds back: that of the tenant first, then those
        of days and then the others, the newest first; of one scope or of any, after the one of that scope and owner, at
        most so many."""
        ...

    async def next_hold(self, after: tuple[int, str] = ...) -> tuple[int, str] | None:
        """The tenant and the name by which jobs in its queues are held, other than by limits, that comes next after
        another; none after the last. Read on from each, every one comes once."""
        ...

    async def charge(self, id: int) -> Charge | None:
        """A call in the ledger by its key."""
        ...

    async def open_charges(self, job: int, call: str | None = None) -> list[Charge]:
        """The calls of a job that are under way: all, or the one of that name."""
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
        """A tenant's calls, the newest first: of one job, one tree of flows, one day or all, in one state or in any."""
        ...

    async def charges_in_flight(self, jobs: Sequence[int]) -> list[Charge]:
        """The calls of these jobs that are under way."""
        ...

    async def uncertain(self, budget: Budget) -> dict[str, Sum]:
        """What counts against a budget although its cost is unknown, by state: calls in flight and lost calls."""
        ...

    async def step_costs(self, flow: int, tree: int) -> dict[int, Cost]:
        """What the calls for the steps of a flow cost, by step; those of flows inside a step count for that step, and
        those for an item of a list for the list, too. What is lost counts as spent, and is told apart; what was
        released is left out."""
        ...

    async def tree_cost(self, tenant_id: int, tree: int) -> Cost:
        """What all calls for an outermost flow cost."""
        ...

    async def abandoned_charges(self, limit: int) -> list[Charge]:
        """Calls that are said to be under way though their job has ended or is gone, at most so many."""
        ...

    async def costs(self, by: str, tenant_id: int | None, since: int = 0, limit: int = 1000) -> list[Cost]:
        """What was spent on calls that were begun since then, the most first: by `model`, `tenant`, `flow` or `day`, of
        one tenant or of all. What is lost counts as spent, and is told apart; what was released is left out."""
        ...

    async def bucket(self, provider: str, model: str) -> Bucket | None:
        """How many tokens the fleet has asked a model for; none if that was never counted."""
        ...

    async def crew_by_key(self, tenant_id: int, key: str) -> int | None:
        """The crew of a tenant that was made under that key; none if none was."""
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
        """A tenant's crews, the newest first: those inside others only if asked for; after that key, at most so
        many."""
        ...

    async def shares(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[Job]:
        """The jobs of crews, crew by crew in the order they were made: all, or those that have not ended."""
        ...

    async def subcrews(self, crews: Sequence[int], *, unfinished_only: bool = False) -> list[dict[str, Any]]:
        """The crews directly inside others: all, or those that have not ended."""
        ...

    async def crews_of_step(self, step: int) -> list[dict[str, Any]]:
        """The crews that a step of a flow consists of, the newest first."""
        ...

    async def quotas(self, tenant_id: int) -> list[Quota]:
        """Of each depth, how many workers a tenant's crews may have, how many they have, and whether anyone is in line;
        one without any of it is left out. A share has one until it ends, except while it is held by its quota."""
        ...

    async def in_line(self, tenant_id: int, depth: int, most: int, limit: int) -> InLine:
        """Who wants workers of a depth: shares held by their quota that wait for nothing else, and crews that are
        PENDING; of each at most so many. A crew that needs more than `most` is passed over."""
        ...

    async def crew_tenants(self) -> list[int]:
        """The tenants that have crews which have not ended."""
        ...

    async def crews_amiss(self, limit: int) -> list[tuple[int, int]]:
        """Crews that should have moved, as (tenant, crew), at most so many: their time is over, they were not
        validated, what they belong to has ended, a share of theirs has failed, or nothing is left of them to be
        done."""
        ...

    async def outlived_crews(self, limit: int) -> list[tuple[int, int]]:
        """Crews that have ended although shares of theirs have not, as (tenant, crew), at most so many."""
        ...

    async def forgotten_askers(self, tenant_id: int, limit: int) -> list[tuple[int, str]]:
        """Jobs that wait for a crew although all that they made have ended, with what they wait for, at most so
        many."""
        ...

    async def agents_of_jobs(self, jobs: Sequence[int]) -> list[dict[str, Any]]:
        """The whole rows of the agent jobs that these jobs carry out, in the order they were made."""
        ...

    async def agents(
        self, tenant_id: int, *, states: Sequence[str] | None = None, after: int | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """A tenant's agent jobs, the newest first: of these states if any are named; after that key, at most so
        many."""
        ...

    async def agents_left_behind(self, limit: int) -> list[dict[str, Any]]:
        """Agent jobs that have not ended although the job that carries them out has, or is gone; at most so many."""
        ...

    async def agent_audits(
        self, tenant_id: int, *, agent: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[AgentAudit]:
        """The records of a tenant's agent jobs that have ended, the newest first: all, or that of one; after that key,
        at most so many."""
        ...

    async def live_api_key(self, hash: str) -> LiveApiKey | None:
        """The key to the API of that hash, whoever's it is, and what time it is; none if there is none, if it was
        revoked, or if its time is over."""
        ...

    async def api_key(self, tenant_id: int, id: int) -> ApiKeyRow | None:
        """A key to the API by its own key; another tenant's is none, exactly like one that does not exist."""
        ...

    async def api_keys(
        self, tenant_id: int, *, ended: bool = False, after: int | None = None, limit: int = 100
    ) -> list[ApiKeyRow]:
        """A tenant's keys to the API, the newest first: those that open anything, or also those that have ended; after
        that key, at most so many."""
        ...

    async def log_end(self) -> str:
        """A cursor: every event that commits from now on comes after it. A few that are there already may, too."""
        ...

    async def digest(self, after: str | None, limit: int) -> Digest:
        """The next events of the log in the order of commits, counted by what is alike in them, with how long the state
        before each had lasted; read on from its cursor, every event is counted once."""
        ...

    async def log_position(self, reader: str) -> str | None:
        """How far a reader of the log has come; none if it has not begun."""
        ...

    async def seals(self, *, after: int = 0, limit: int = 100) -> list[Seal]:
        """The seals of the log, of all tenants, in the order they were made: after that number, at most so many."""
        ...

    async def last_seal(self) -> Seal | None:
        """The newest seal; none if nothing is sealed."""
        ...

    async def counters(self, tenant_id: int) -> list[Counter]:
        """Everything that was counted for a tenant."""
        ...

    async def job_moves_since(self, tenant_id: int, since: int, until: int | None = None) -> dict[str, int]:
        """How many moves a tenant's jobs have made since then, and before `until` if that is given, by trigger."""
        ...

    async def prunable(self, lifecycle: Lifecycle, expiry: Expiry, *, after: int = 0, limit: int = 1000) -> Expired:
        """One page of the jobs, workers, agent jobs, crews or flows, in the order of their ids: those that retention
        may delete, and where to go on. A job stays while the one it runs again is there, a worker while it holds a job.
        An agent job stays while its job must; a crew while one of its shares must, or the job that made it is at work.
        What is inside a flow or a crew goes with the outermost. A flow stays while anything works for it or is to be
        told of it; either while something may be paid for it. The key of a flow that a schedule started holds it for a
        day."""
        ...

    async def retinues(self, lifecycle: Lifecycle, ids: Sequence[int]) -> dict[int, int]:
        """How many rows each of these flows or crews is with all that goes with it: steps, flows and crews inside. One
        of which something has not ended is left out."""
        ...

    async def telemetry(self, lifecycle: Lifecycle, id: int, tenant_id: int, limit: int = 100) -> list[Telemetry]:
        """What was lately seen of an entity, the newest first; another tenant's is none."""
        ...

    async def pruned(self) -> list[Pruned]:
        """What retention has deleted so far, by tenant, entity and state."""
        ...

    async def faults(self) -> list[str]:
        """What is wrong with the database itself: damaged storage, guards that are missing or changed."""
        ...
