"""What goes into the store and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keptwork import ids
from keptwork.errors import KeyReused, RequestInFlight
from keptwork.lifecycle import JOB, LIFECYCLES, Lifecycle, Token

DEFAULT_TENANT = 1


class NewJob(NamedTuple):
    """A job to be enqueued. Times are microseconds; `run_at` none means now, `delay_us` is added to it."""

    kind: str
    payload: str = "{}"
    queue: str = "default"
    tenant_id: int = DEFAULT_TENANT
    priority: int = 0
    run_at: int | None = None
    delay_us: int = 0
    max_attempts: int = 4
    on_exhausted: str = "dead_letter"
    key: str | None = None
    hold_key: str | None = None
    held_by: str | None = None
    actor: str | None = None
    cause: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    redriven_from: int | None = None
    parent_id: int | None = None
    limit_key: str | None = None
    step_id: int | None = None
    crew_id: int | None = None
    tree_id: int | None = None


ITSELF = "itself"
"""As a correlation: that of an entity under whose own id others will belong together."""


class Birth(NamedTuple):
    """What is said of any new entity: whose it is, who made it and why, and what it belongs to."""

    tenant_id: int = DEFAULT_TENANT
    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    cause: str | None = None
    detail: str | None = None

    def of(self, lifecycle: Lifecycle, id: int) -> Birth:
        """The same for the entity with this key: what belongs to itself is named by it."""
        itself = self.correlation_id == ITSELF
        return self._replace(correlation_id=ids.public(lifecycle.prefix, id)) if itself else self


@dataclass(slots=True)
class Job:
    """A job as a claim or a look-up returns it; also the record the lifecycle decides on."""

    id: int
    tenant_id: int
    state: str
    seq: int
    epoch: int
    queue: str
    kind: str
    payload: str
    priority: int
    run_at: int
    attempts: int
    max_attempts: int
    on_exhausted: str
    owner: int | None
    lease_until: int | None
    held_by: str | None
    correlation_id: str | None
    trace_id: str | None
    parent_id: int | None = None
    limit_key: str | None = None
    step_id: int | None = None
    crew_id: int | None = None
    tree_id: int | None = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def public_id(self) -> str:
        return ids.public(JOB.prefix, self.id)

    @property
    def claim(self) -> dict[str, Any]:
        """What a statement compares to see that the job is still held as it was claimed."""
        return {"id": self.id, "tenant_id": self.tenant_id, "epoch": self.epoch, "owner": self.owner}

    @property
    def token(self) -> Token:
        """The fencing token of the claim this job was returned by."""
        return Token(self.owner or 0, self.epoch)


JOB_COLUMNS = tuple(Job.__dataclass_fields__)


_OF_FLOWS = frozenset(
    {"key", "template_id", "tree_id", "step_id", "held_at", "wake_at", "name", "inputs", "webhook", "queue"}
    | {"forked_from", "resumes"}
)
_OF_STEPS = frozenset({"flow_id", "name", "position", "max_retries", "parent_id", "place", "item"})

# What each kind of entity has beside the columns every entity has; jobs are enqueued, not created.
ENTITY_COLUMNS: dict[str, frozenset[str]] = {
    "worker": frozenset(
        {"name", "incarnation", "workspace_id", "host", "pid", "metadata", "seen_at", "serves", "supervisor"}
    ),
    "crew": frozenset(
        {"parent_id", "depth", "worker_count", "task_description"}
        | {"tree_id", "asker_id", "step_id", "deadline_at", "key", "kind", "work"}
    ),
    "run": _OF_FLOWS,
    "run-step": _OF_STEPS,
    "workstream": _OF_FLOWS | {"max_retries"},
    "workstream-step": _OF_STEPS,
    "breaker": frozenset({"name", "failure_threshold", "success_threshold", "cooldown_us"}),
    "agent": frozenset({"description", "max_retries", "job_id", "retry_base_ms"}),
}


JSON_COLUMNS = frozenset({"work", "item", "inputs", "webhook", "metadata", "serves"})
"""Columns of entities that hold JSON, given as text."""

AMENDABLE: dict[str, frozenset[str]] = {
    "job": frozenset({"max_attempts"}),
    "run": frozenset({"held_at", "wake_at"}),
    "workstream": frozenset({"held_at", "wake_at", "max_retries"}),
    "run-step": frozenset({"max_retries"}),
    "workstream-step": frozenset({"max_retries"}),
    "breaker": frozenset(
        {
            *("failure_threshold", "success_threshold", "cooldown_us", "failures", "successes", "error"),
            *("probe_job", "probe_epoch", "candidate", "candidate_queue", "candidate_at", "holds"),
        }
    ),
    "agent": frozenset({"skill", "tier", "provider", "model", "reasons"}),
}
"""What is known of entities beside their moves, and may be set without one."""


HELD_BY_LIMIT = "limit"
"""What holds a job back that waits for its limit."""


DEBOUNCED = ("tenant_id", "payload", "limit_key", "held_by", "priority", "queue", "correlation_id", "trace_id")
"""What a job takes from the newest of the calls that it was made for."""

FORGOTTEN = ("forget_recent_jobs", "forget_uses", "forget_limit_rows")
"""The statements that drop what limits and windows need no longer."""


class Hold(NamedTuple):
    """What holds back jobs of a tenant in its queues: how many, and since when at the longest."""

    tenant_id: int
    held_by: str
    jobs: int
    since: int


class LimitRule(NamedTuple):
    """What was declared of a kind of jobs (`job`) or a `queue`, for the whole fleet: at most so many at once, and so
    many starts in a window. `per` says what of a kind is counted by itself: all jobs (*), each tenant, an argument."""

    what: str
    name: str
    most: int | None = None
    rate: int | None = None
    window_us: int | None = None
    per: str = "*"


class LimitKey(NamedTuple):
    """What is counted by itself, and whose it is; tenant 0 stands for all."""

    tenant_id: int
    key: str

    @classmethod
    def of(cls, tenant_id: int, key: str) -> LimitKey:
        return cls(0 if key.startswith("*:") else tenant_id, key)

    @property
    def kind(self) -> str:
        return self.key.split(":", 2)[1]


class LimitUse(NamedTuple):
    """How many jobs count against a key, how many it holds back, and when its rate lets the next one go."""

    tenant_id: int
    key: str
    running: int
    waiting: int
    next_at: int | None


class Counter(NamedTuple):
    """How often something was seen for a tenant, or how long it took in µs; `labels` are JSON."""

    tenant_id: int
    name: str
    labels: str
    value: int


class Progress(NamedTuple):
    """How far a reader of the log got: from one cursor (none: the beginning) to another."""

    reader: str
    after: str | None
    upto: str


def added_up(counted: Sequence[Counter]) -> list[Counter]:
    """Each counter once, in an order that everyone keeps to, so that no two writers wait for each other."""
    sums: dict[tuple[int, str, str], int] = {}
    for tenant_id, name, labels, value in counted:
        sums[tenant_id, name, labels] = sums.get((tenant_id, name, labels), 0) + value
    return [Counter(*key, value) for key, value in sorted(sums.items())]


class Held(NamedTuple):
    """A job a worker is running: under which epoch, and whether it was asked to come to an end."""

    epoch: int
    stop_requested: bool


class Event(NamedTuple):
    """One move of one entity, as the log has it. `cursor` is where to go on reading after it."""

    id: int
    tenant_id: int
    entity: str
    entity_id: int
    seq: int
    epoch: int
    type: str
    trigger: str
    ts: int
    actor: str | None
    correlation_id: str | None
    trace_id: str | None
    cause: str | None
    reason: str | None
    from_state: str | None
    to_state: str
    payload: str | None
    version: int
    cursor: str

    @property
    def entity_public_id(self) -> str:
        return ids.public(LIFECYCLES[self.entity].prefix, self.entity_id)


EVENT_FIELDS = tuple(field for field in Event._fields if field != "cursor")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to read; what is none does not narrow. Times are microseconds, `until` is not included."""

    tenant_id: int | None = None
    entity: str | None = None
    entity_id: int | None = None
    type: str | None = None
    correlation_id: str | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to read; what is none does not narrow. `reason` is that of the last move; `redriven` asks whether a
    later job runs it again, `redriven_from` which jobs run these again. Times are microseconds of when a job was made,
    or ended; `before` is not included."""

    tenant_id: int | None = None
    states: tuple[str, ...] | None = None
    queue: str | None = None
    kind: str | None = None
    correlation_id: str | None = None
    reason: str | None = None
    ended_since: int | None = None
    ended_before: int | None = None
    redriven_from: tuple[int, ...] | None = None
    redriven: bool | None = None
    owner: int | None = None
    made_since: int | None = None
    made_before: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Which workers to read; what is none does not narrow."""

    tenant_id: int | None = None
    states: tuple[str, ...] | None = None
    host: str | None = None
    supervisor: str | None = None


class Standing(NamedTuple):
    """How a worker stands: its state, how it was asked to end (JSON), and who moved it last and why."""

    state: str
    ending: str | None
    actor: str | None
    reason: str | None


class Place(NamedTuple):
    """Where a queued job stands: since when its queue is paused, how many jobs of its tenant and queue are due and come
    before it (a thousand at most are counted), and how many of its children have not ended."""

    paused_at: int | None
    ahead: int
    children: int


class QueueSummary(NamedTuple):
    """A queue at one moment: its jobs by state, when the first of those that could be claimed was due, since when it is
    paused, and how many of its queued jobs are held back by something else than a limit or a quota."""

    name: str
    jobs: dict[str, int]
    oldest_due: int | None
    paused_at: int | None
    held: int = 0


class Tenant(NamedTuple):
    """Whose work it is; `limits` is JSON, see `allowance.py`."""

    id: int
    name: str
    created_at: int
    limits: str | None = None


class Telemetry(NamedTuple):
    """Something seen of an entity that is no move: what kind, when, and the figures as JSON."""

    kind: str
    ts: int
    payload: str


class Expiry(NamedTuple):
    """What retention may delete, at one moment: by final state, what had ended before then. Jobs with an idempotency
    key go only if they also ended before `keyed_before`; none keeps them for ever. Without a tenant it is for all."""

    before: Mapping[str, int]
    keyed_before: int | None = None
    tenant_id: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        """As the statements take it."""
        return {**self._asdict(), "before": json.dumps(self.before)}


class Expired(NamedTuple):
    """A page of what may go, as (id, state), and the id to go on after; none when nothing further is old enough."""

    found: list[tuple[int, str]]
    next: int | None

    @classmethod
    def page(cls, rows: Sequence[Sequence[Any]], limit: int) -> Expired:
        """From rows of (id, state, old, may go). Ids tell the age, but one typed by hand may lie: the end is a whole
        page of what is too young."""
        more = len(rows) == limit and any(old for _, _, old, _ in rows)
        return cls([(id, state) for id, state, _, may_go in rows if may_go], rows[-1][0] if more else None)


class Pruned(NamedTuple):
    """How many entities of a tenant were deleted in a final state, and before when all of them had ended."""

    tenant_id: int
    entity: str
    state: str
    rows: int
    before: int


class Seen(NamedTuple):
    """A request whose idempotency key was used before, and what was answered then (none: nothing yet)."""

    request_hash: str
    response: str | None


def seen_before(key: str, request_hash: str, row: Sequence[Any]) -> Seen:
    """What to answer to a key that was used before: the same again, unless the request is another or still at work."""
    seen = Seen(*row)
    if seen.request_hash != request_hash:
        raise KeyReused(key=key)
    if seen.response is None:
        raise RequestInFlight(key=key)
    return seen
