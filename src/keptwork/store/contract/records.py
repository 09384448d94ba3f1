"""The values that go into the store and come out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import JOB, LIFECYCLES, Lifecycle, Token
from keptwork.errors import KeyReused, RequestInFlight

DEFAULT_TENANT = 1


class NewJob(NamedTuple):
    """A job to enqueue. Times are in microseconds. None for `run_at` means now, and `delay_us` is added to it."""

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
"""As a correlation ID: the entity's own public ID, under which others will belong together."""


class Birth(NamedTuple):
    """The columns common to new entities: the tenant, the creator and the reason, and the correlation."""

    tenant_id: int = DEFAULT_TENANT
    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    cause: str | None = None
    detail: str | None = None

    def of(self, lifecycle: Lifecycle, id: int) -> Birth:
        """Return the same values for the entity with this ID, with `ITSELF` replaced by its public ID."""
        itself = self.correlation_id == ITSELF
        return self._replace(correlation_id=ids.public(lifecycle.prefix, id)) if itself else self


@dataclass(slots=True)
class Job:
    """A job as a claim or a query returns it. It is also the record that lifecycle decisions are made on."""

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
        """The values that a statement compares to check that the job is still held as it was claimed."""
        return {"id": self.id, "tenant_id": self.tenant_id, "epoch": self.epoch, "owner": self.owner}

    @property
    def token(self) -> Token:
        """The fencing token of the claim that returned this job."""
        return Token(self.owner or 0, self.epoch)


JOB_COLUMNS = tuple(Job.__dataclass_fields__)


_OF_FLOWS = frozenset(
    {"key", "template_id", "tree_id", "step_id", "held_at", "wake_at", "name", "inputs", "webhook", "queue"}
    | {"forked_from", "resumes"}
)
_OF_STEPS = frozenset({"flow_id", "name", "position", "max_retries", "parent_id", "place", "item"})

# The columns of each kind of entity in addition to those that all entities have. Jobs are enqueued, not created.
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
"""Entity columns that hold JSON, given as strings."""

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
"""Entity columns that can be set without a move."""


HELD_BY_LIMIT = "limit"
"""The hold of a job that waits for its limit."""


DEBOUNCED = ("tenant_id", "payload", "limit_key", "held_by", "priority", "queue", "correlation_id", "trace_id")
"""The columns that a debounced job takes from the latest call."""

FORGOTTEN = ("forget_recent_jobs", "forget_uses", "forget_limit_rows")
"""The statements that delete records of limits and windows that are no longer needed."""


class Hold(NamedTuple):
    """A hold on queued jobs of a tenant: the number of jobs, and since when the oldest is held."""

    tenant_id: int
    held_by: str
    jobs: int
    since: int


class LimitRule(NamedTuple):
    """A limit declared for a kind of jobs (`job`) or a `queue`, across all workers. It sets the maximum concurrent
    jobs, the maximum starts per window, or both. `per` is what the jobs of a kind are counted by: all together (*),
    each tenant, or an argument."""

    what: str
    name: str
    most: int | None = None
    rate: int | None = None
    window_us: int | None = None
    per: str = "*"


class LimitKey(NamedTuple):
    """The unit that a limit counts, and its tenant. Tenant 0 stands for all tenants."""

    tenant_id: int
    key: str

    @classmethod
    def of(cls, tenant_id: int, key: str) -> LimitKey:
        return cls(0 if key.startswith("*:") else tenant_id, key)

    @property
    def kind(self) -> str:
        return self.key.split(":", 2)[1]


class LimitUse(NamedTuple):
    """The number of jobs that count against a key and that it holds, and when its rate allows the next job (µs)."""

    tenant_id: int
    key: str
    running: int
    waiting: int
    next_at: int | None


class Counter(NamedTuple):
    """A number of occurrences for a tenant, or a duration in µs. `labels` is JSON."""

    tenant_id: int
    name: str
    labels: str
    value: int


class Progress(NamedTuple):
    """The progress of a reader of the log, from one cursor to another. None for `after` means the start of the log."""

    reader: str
    after: str | None
    upto: str


def added_up(counted: Sequence[Counter]) -> list[Counter]:
    """Return one sum per counter. The order is the same for all writers, so that no two wait for each other."""
    sums: dict[tuple[int, str, str], int] = {}
    for tenant_id, name, labels, value in counted:
        sums[tenant_id, name, labels] = sums.get((tenant_id, name, labels), 0) + value
    return [Counter(*key, value) for key, value in sorted(sums.items())]


class Held(NamedTuple):
    """A job that a worker is running: its epoch, and whether cancellation was requested."""

    epoch: int
    stop_requested: bool


class Event(NamedTuple):
    """One move of one entity in the log. `cursor` is the place to continue reading after it."""

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
    """A filter for events. None does not filter. Times are in microseconds, and `until` is exclusive."""

    tenant_id: int | None = None
    entity: str | None = None
    entity_id: int | None = None
    type: str | None = None
    correlation_id: str | None = None
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter for jobs. None does not filter. `reason` is that of the last move. `redriven` is whether a later job
    reruns the job, and `redriven_from` are the jobs that the wanted jobs rerun. Times are in microseconds, of the job's
    creation or end, and `before` is exclusive."""

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
    """A filter for workers. None does not filter."""

    tenant_id: int | None = None
    states: tuple[str, ...] | None = None
    host: str | None = None
    supervisor: str | None = None


class Standing(NamedTuple):
    """The state of a worker, the requested way to end (JSON), and the actor and reason of its last move."""

    state: str
    ending: str | None
    actor: str | None
    reason: str | None


class Place(NamedTuple):
    """The position of a queued job. `paused_at` is the time when its queue was paused, `ahead` the number of due jobs
    before it in its tenant and queue (at most 1,000 are counted), and `children` the number of its unfinished
    children."""

    paused_at: int | None
    ahead: int
    children: int


class QueueSummary(NamedTuple):
    """A snapshot of a queue: its jobs by state, the due time of the first claimable job, the time when the queue was
    paused, and the number of queued jobs that something other than a limit or a quota holds."""

    name: str
    jobs: dict[str, int]
    oldest_due: int | None
    paused_at: int | None
    held: int = 0


class Tenant(NamedTuple):
    """An owner of work. `limits` is JSON, see `access/scopes.py`."""

    id: int
    name: str
    created_at: int
    limits: str | None = None


class Telemetry(NamedTuple):
    """An observation of an entity that is not a move: its kind, its time, and its figures as JSON."""

    kind: str
    ts: int
    payload: str


class Expiry(NamedTuple):
    """What retention can delete at one moment: by final state, the time before which a job must have ended. Jobs with
    an idempotency key must also have ended before `keyed_before`, and None keeps them forever. Without a tenant, it
    applies to all tenants."""

    before: Mapping[str, int]
    keyed_before: int | None = None
    tenant_id: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The fields as parameters of the statements."""
        return {**self._asdict(), "before": json.dumps(self.before)}


class Expired(NamedTuple):
    """A page of entities to delete, as (ID, state), and the ID to continue after. `next` is None if nothing further is
    old enough."""

    found: list[tuple[int, str]]
    next: int | None

    @classmethod
    def page(cls, rows: Sequence[Sequence[Any]], limit: int) -> Expired:
        """Return the page for rows of (ID, state, old, may go). IDs follow the creation time, but one typed manually
        might not. So the end is reached only with a whole page of rows that are too young."""
        more = len(rows) == limit and any(old for _, _, old, _ in rows)
        return cls([(id, state) for id, state, _, may_go in rows if may_go], rows[-1][0] if more else None)


class Pruned(NamedTuple):
    """The number of a tenant's entities deleted in a final state. All of them had ended before `before`."""

    tenant_id: int
    entity: str
    state: str
    rows: int
    before: int


class Seen(NamedTuple):
    """An earlier request with the same idempotency key, and its response. None means that it has no response yet."""

    request_hash: str
    response: str | None


def seen_before(key: str, request_hash: str, row: Sequence[Any]) -> Seen:
    """Return the earlier request, or raise if the new request differs or the earlier one is still running."""
    seen = Seen(*row)
    if seen.request_hash != request_hash:
        raise KeyReused(key=key)
    if seen.response is None:
        raise RequestInFlight(key=key)
    return seen
