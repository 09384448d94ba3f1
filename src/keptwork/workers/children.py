"""Child jobs: enqueued once, whatever happens to their parent, and joined without occupying a worker.

The children and the checkpoint that stores their IDs are written in one transaction, under the parent's lease. The
outcomes of joined children are stored with the parent, so a later run reads the same outcomes even after the children
are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keptwork.core import ids
from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import SUCCEEDED
from keptwork.core.validation import OWN_KINDS
from keptwork.errors import BadInput, ChildFailed, JoinTimeout, LeaseLost
from keptwork.job import JobType
from keptwork.jobs.enqueue import new_job
from keptwork.jobs.outcome import Suspend
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.store import Job, NewJob, Store
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.jobs_spawned import keys_of
from keptwork.store.contract.waits import ALL_CHILDREN, ANY_CHILD
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.steps import Steps

MOST_IN_ONE_WRITE = 1000
AT_ONCE = 500
LOOKS_AGAIN_US = 300_000_000
"""Maximum time until a suspended join checks its children again, even without a wakeup."""

GONE = "gone"
_OUTCOME = ("id", "tenant_id", "parent_id", "state", "reason", "error", "result", "result_hash")

Ask = Callable[[Job, Callable[[Store], Awaitable[Any]]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Child:
    """A child job, which its parent can join."""

    key: int

    @property
    def id(self) -> str:
        """The public ID."""
        return ids.public(JOB.prefix, self.key)


class Spawnable(Protocol):
    """A declared job."""

    @property
    def kind(self) -> JobType: ...


class Children:
    """The children of one job, in one run of its handler."""

    def __init__(self, job: Job, steps: Steps, ask: Ask, kinds: Mapping[str, JobType]) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask
        self._kinds = kinds

    async def spawn(self, name: str, job: Spawnable | str, arguments: Mapping[str, Any]) -> Child:
        return (await self.spawn_many(name, job, [arguments]))[0]

    async def spawn_many(self, name: str, job: Spawnable | str, many: Sequence[Mapping[str, Any]]) -> list[Child]:
        """Enqueue children, up to 1,000 per write. Each write is a step of its own, so a later run continues after the
        last one."""
        keys: list[int] = []
        for number, first in enumerate(range(0, len(many), MOST_IN_ONE_WRITE)):
            part = many[first : first + MOST_IN_ONE_WRITE]
            keys += await self._spawned(f"{name}.{number}" if number else name, job, part)
        return [Child(key) for key in keys]

    async def _spawned(self, name: str, job: Spawnable | str, many: Sequence[Mapping[str, Any]]) -> list[int]:
        found = await self._steps.recall(name)
        if found is not None:
            return keys_of(found.result)
        save, jobs = self._steps.save(name, ""), self._new_jobs(kind_named(self._kinds, job), many)
        keys: list[int] | None = await self._ask(self._job, lambda store: store.spawn(save, jobs))
        if keys is None:
            raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger="spawn")
        return keys

    def _new_jobs(self, kind: JobType, many: Sequence[Mapping[str, Any]]) -> list[NewJob]:
        """Return the new jobs. They inherit the tenant, correlation ID, and trace of their parent."""
        parent = self._job
        inherited: dict[str, Any] = {
            "parent_id": parent.id,
            "actor": f"w:{parent.owner}",
            "cause": parent.public_id,
            "correlation_id": parent.correlation_id or parent.public_id,
            "trace_id": spans.carried(parent.trace_id),
        }
        try:
            kind.insist_not_unique("ctx.spawn")
            return [new_job(kind, arguments, parent.tenant_id)._replace(**inherited) for arguments in many]
        except BadInput as refusal:
            raise PermanentError(str(refusal)) from None

    async def join(
        self,
        name: str,
        children: Child | Sequence[Child],
        return_exceptions: bool,
        timeout: Span | None,  # noqa: ASYNC109 - it outlives this run
    ) -> Any:
        several = [children] if isinstance(children, Child) else list(children)
        kept = await self._outcomes(name, [child.key for child in several], _limit_us(timeout))
        if kept is None:
            raise JoinTimeout(waited=timeout)
        outcomes = [_value(outcome) for outcome in kept]
        failures = [outcome for outcome in outcomes if isinstance(outcome, ChildFailed)]
        if failures and not return_exceptions:
            raise failures[0]
        return outcomes[0] if isinstance(children, Child) else outcomes

    async def _outcomes(self, name: str, keys: list[int], limit_us: int | None) -> Any:
        """Return the stored outcomes of the children, or None if the join timed out."""
        found = await self._steps.recall(name)
        if found is not None:
            return json.loads(found.result)
        ended = await self._have_ended(set(keys), name, limit_us)
        return await self._steps.keep(name, await self._read(keys) if ended else None)

    async def _have_ended(self, keys: set[int], name: str, limit_us: int | None) -> bool:
        """Return whether all of them finished, or False after the timeout; otherwise suspend the job. While other
        children are unfinished as well, every finished child wakes the job."""
        job = self._job
        left = await self._ask(job, lambda store: store.unfinished_children(job.tenant_id, [job.id]))
        if keys.isdisjoint(left):
            return True
        now = await self._ask(job, lambda store: store.now())
        ends_at = None if limit_us is None else await self._steps.kept_once(f"{name} until", now + limit_us)
        if ends_at is not None and ends_at <= now:
            return False
        until = now + LOOKS_AGAIN_US if ends_at is None else min(now + LOOKS_AGAIN_US, ends_at)
        whole = keys.issuperset(left)
        raise Suspended(Suspend(ALL_CHILDREN if whole else ANY_CHILD, until, 1 if whole else len(left)))

    async def _read(self, keys: list[int]) -> list[dict[str, Any]]:
        rows: dict[int, dict[str, Any]] = {}
        for part in _parts(keys):
            for row in await self._ask(self._job, lambda store, part=part: store.rows(JOB, part, _OUTCOME)):  # type: ignore[misc]
                rows[row["id"]] = await self._ask(self._job, lambda store, row=row: whole(store, row))  # type: ignore[misc]
        return [self._outcome(key, rows.get(key)) for key in keys]

    def _outcome(self, key: int, row: dict[str, Any] | None) -> dict[str, Any]:
        """Return the outcome of a child in its stored form."""
        id = Child(key).id
        if row is None:
            return {"id": id, "state": GONE, "reason": "it was deleted before it was joined", "error": None}
        if row["parent_id"] != self._job.id:
            raise PermanentError(f"{id} is no child of this job, and cannot be joined by it")
        if row["state"] != SUCCEEDED.name:
            return {"id": id, **{name: row[name] for name in ("state", "reason", "error")}}
        return {"id": id, "result": None if row["result"] is None else json.loads(row["result"])}


def _limit_us(timeout: Span | None) -> int | None:
    try:
        return None if timeout is None else span_us(timeout)
    except BadInput as refusal:
        raise PermanentError(str(refusal)) from None


def kind_named(kinds: Mapping[str, JobType], job: Spawnable | str) -> JobType:
    """Return the kind of job that a handler refers to by its declared job or by its name."""
    if not isinstance(job, str):
        return job.kind
    if job not in kinds or job.startswith(OWN_KINDS):
        known = ", ".join(sorted(name for name in kinds if not name.startswith(OWN_KINDS)))
        raise PermanentError(f"there is no job called {job!r} to spawn; this application has: {known}")
    return kinds[job]


def _value(outcome: dict[str, Any]) -> Any:
    if "state" not in outcome:
        return outcome["result"]
    said = [text for text in (outcome["reason"], outcome["error"]) if text]
    return ChildFailed(**outcome, why=": ".join(dict.fromkeys(said)) or "no reason was given")


def _parts(keys: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(keys), AT_ONCE):
        yield keys[first : first + AT_ONCE]
