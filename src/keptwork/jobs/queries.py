"""Handle jobs for operators: enqueue, list, show, cancel, and rerun jobs, and wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from keptwork.core import durations, ids
from keptwork.core.durations import LONGEST_US, Span, rfc3339, span_us
from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import JOB, Change
from keptwork.core.lifecycles.job import QUEUED, RUNNING, SUCCEEDED
from keptwork.core.validation import LARGEST_PAYLOAD, OWN_KINDS, check_attempts, check_name, check_priority
from keptwork.errors import BadInput, LeaseLost, NotFound, NotRunAgain, StillUnfinished
from keptwork.jobs import commands_children, complete, limits
from keptwork.jobs.dead_letters_redrive import run_again
from keptwork.jobs.enqueue import put
from keptwork.jobs.results_endings import Endings
from keptwork.observability import spans
from keptwork.store import Artifact, Event, EventFilter, Job, JobFilter, NewJob, Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.checkpoints import PROGRESS, Checkpoint
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB
from keptwork.store.contract.operations_search import search
from keptwork.store.counters_decisions import decided

# Progress of a job: the checkpoints of its steps, and the last report of its handler.


OVERRUN = "job_overrun"
OVERRUN_TTL_US = 7 * 86_400_000_000


class Said(NamedTuple):
    """A handler's progress report and its time."""

    fraction: float
    text: str
    at: int


async def said(store: Store, tenant_id: int, job: int) -> Said | None:
    """Return the last progress report of a job's handler.

    Return None if there is none or it has expired.
    """
    seen = [one for one in await store.telemetry(JOB, job, tenant_id) if one.kind == PROGRESS]
    if not seen:
        return None
    told = json.loads(seen[0].payload)
    return Said(float(told["fraction"]), str(told["text"]), seen[0].ts)


async def keep_overrun(store: Store, job: Job, text: str) -> None:
    """Store that a handler returned after its timeout, and by how much."""
    payload = json.dumps({"says": text})
    await store.record_telemetry(JOB, job.id, OVERRUN, payload, ttl_us=OVERRUN_TTL_US, tenant_id=job.tenant_id)


async def overrun(store: Store, tenant_id: int, job: int) -> str | None:
    """Return the latest note that a handler of this job returned after its timeout, or None."""
    seen = [one for one in await store.telemetry(JOB, job, tenant_id) if one.kind == OVERRUN]
    return str(json.loads(seen[0].payload)["says"]) if seen else None


def size(one: Checkpoint) -> int:
    """Return the size in bytes of a step's result, wherever it is stored."""
    return len(one.result.encode()) if one.hash is None else int(json.loads(one.result)["size"])


def said_as_json(told: Said | None) -> dict[str, Any] | None:
    return told and {**told._asdict(), "at": rfc3339(told.at)}


def step_json(one: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint in its public form."""
    return {
        "name": one.name,
        "at": rfc3339(one.created_at),
        "size": size(one),
        "hash": one.hash,
        "epoch": one.epoch,
        "version": one.version,
        "code_changed_at": one.changed_at and rfc3339(one.changed_at),
    }


MOST_AT_ONCE = 10_000
TRIES = 5

# Columns of a list. It omits payloads and results, which can be large and are shown for one job at a time.
LISTED = (
    *("id", "tenant_id", "state", "queue", "kind", "priority", "attempts", "max_attempts", "key", "reason", "error"),
    *("created_at", "updated_at", "started_at", "completed_at", "run_at", "lease_until", "owner", "held_by"),
    *("cancel_requested_at", "correlation_id", "trace_id", "redriven_from", "detail", "epoch", "seq"),
)
_TIMES = frozenset(
    {"created_at", "updated_at", "started_at", "completed_at", "run_at", "lease_until", "cancel_requested_at"}
)
_SEARCHED = ("key", "reason", "error", "kind", "queue", "correlation_id")
_DOCUMENTS = frozenset({"payload", "result", "detail"})

Row = dict[str, Any]


class Page(NamedTuple):
    """A page of jobs, and the ID of its last job if there are more."""

    jobs: list[Row]
    next: str | None


class Story(NamedTuple):
    """Everything about one job: its row, events, reruns, artifacts, steps, progress, and waits.

    `overrun` is the time by which its handler exceeded its timeout. `waits` has the open waits of a job that waits.
    """

    job: Row
    events: list[Event]
    redriven_as: list[int]
    artifacts: list[Artifact]
    steps: list[Checkpoint]
    progress: Said | None
    overrun: str | None = None
    waits: Sequence[tuple[str, int | None]] = ()


def key_of(id: str) -> int:
    """Return the key in a job's public ID, or raise `NotFound` if the text is not a job ID."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != JOB.prefix:
        raise _unknown(id)
    return key


async def enqueue(
    store: Store,
    tenant_id: int,
    kind: str,
    payload: str = "{}",
    *,
    queue: str = "default",
    priority: int = 0,
    key: str | None = None,
    run_in: Span = 0,
    max_attempts: int = 4,
    correlation_id: str | None = None,
    trace_id: str | None = None,
    actor: str | None = None,
) -> int:
    """Enqueue a job and return its key. A repeated idempotency key returns the first job."""
    for what, text in (("key", key), ("correlation", correlation_id)):
        if text is not None:
            check_name(what, text)
    check_kind(kind)
    job = new_job(tenant_id, kind, payload, queue=queue, priority=priority, max_attempts=max_attempts)
    job = job._replace(delay_us=span_us(run_in), key=key, actor=actor)
    job = job._replace(correlation_id=correlation_id, trace_id=spans.said(trace_id))
    return (await put(store, [await limits.under_limit(store, job)]))[0]


def check_kind(kind: str) -> None:
    """Raise `BadInput` for a kind that is reserved for the steps of flows.

    A job of such a kind, enqueued manually, would run a step before its turn or without its approval.
    """
    if kind.startswith(OWN_KINDS):
        raise BadInput(what=f"jobs {kind} carry out the steps of flows, and are made by them alone; start a flow")


def new_job(
    tenant_id: int, kind: str, payload: str, *, queue: str = "default", priority: int = 0, max_attempts: int = 4
) -> NewJob:
    """Return a job, or raise `BadInput` if a value exceeds its limits."""
    check_name("kind", kind)
    check_name("queue", queue)
    check_attempts(max_attempts)
    check_priority(priority)
    return NewJob(kind, arguments(payload), queue, tenant_id, priority, max_attempts=max_attempts)


async def page(
    store: Store,
    wanted: JobFilter,
    *,
    after: str | None = None,
    limit: int = 50,
    newest_first: bool = True,
    text: str | None = None,
) -> Page:
    """Return one page of jobs, without their payloads and results.

    With `text`, each call searches the next few thousand matching jobs for it: in their keys, reasons, errors, and
    names.
    """
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a page holds 1 to {MOST_AT_ONCE} jobs, not {limit}")
    start = key_of(after) if after else None
    if text is not None:
        return await _searched(store, wanted, start, limit, newest_first, text)
    found = await store.jobs(wanted, after=start, limit=limit + 1, newest_first=newest_first, columns=LISTED)
    shown = found[:limit]
    return Page(shown, public_id(JOB.name, shown[-1]["id"]) if len(found) > limit else None)


async def _searched(
    store: Store, wanted: JobFilter, after: int | None, limit: int, newest_first: bool, text: str
) -> Page:
    async def read(place: int | None, most: int) -> list[Row]:
        return await store.jobs(wanted, after=place, limit=most, newest_first=newest_first, columns=LISTED)

    done = await search(read, itemgetter("id"), itemgetter(*_SEARCHED), text, after=after, limit=limit)
    return Page(done.found, None if done.next is None else public_id(JOB.name, done.next))


async def find(store: Store, tenant_id: int, id: str) -> Row:
    """Return the whole row of a job. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    row = await store.get(JOB, key_of(id), tenant_id)
    if row is None:
        raise _unknown(id)
    return row


async def show(store: Store, tenant_id: int, id: str) -> Story:
    """Return everything about a job, with its oldest event first."""
    row = await find(store, tenant_id, id)
    wanted = EventFilter(tenant_id=tenant_id, entity=JOB.name, entity_id=row["id"])
    # Newest first reads all committed events. Oldest first would wait for unrelated transactions.
    events = await store.events(wanted, limit=MOST_AT_ONCE, newest_first=True)
    later = await store.jobs(JobFilter(tenant_id, redriven_from=(row["id"],)), newest_first=False, columns=("id",))
    kept = await store.artifacts(tenant_id, row["id"])
    steps, told = await store.checkpoints(tenant_id, row["id"]), await said(store, tenant_id, row["id"])
    late = await overrun(store, tenant_id, row["id"])
    waits = await store.open_waits(tenant_id, row["id"]) if waits_for(row) else []
    return Story(await whole(store, row), events[::-1], [job["id"] for job in later], kept, steps, told, late, waits)


@acknowledged
async def cancel(
    store: Store,
    tenant_id: int,
    id: str,
    *,
    hard: bool = False,
    reason: str | None = None,
    actor: str | None = None,
) -> Literal["cancelled", "asked to stop"]:
    """Cancel a job.

    A running job receives a cancellation request. With `hard`, it is cancelled now and loses its lease.
    """
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if row["state"] == RUNNING.name and not hard:
            if await store.request_stop(row["id"], tenant_id):
                return "asked to stop"
        elif not await complete.applied(store, [decided(store, JOB, row, "cancel", actor=actor, reason=reason)]):
            await commands_children.cancel_children(store, tenant_id, row["id"], hard=hard)
            await store.withdraw_approvals()
            return "cancelled"
    raise LeaseLost(lifecycle=JOB.name, id=id, trigger="cancel")


@acknowledged
async def retry(
    store: Store, tenant_id: int, id: str, *, payload: str | None = None, again: bool = False, actor: str | None = None
) -> int:
    """Rerun an unsuccessful job as a new job, and return the key of the new job."""
    row = await find(store, tenant_id, id)
    if row["state"] not in RETRIED:
        raise NotRunAgain(id=public_id(JOB.name, row["id"]), state=row["state"], ends=", ".join(RETRIED))
    edited = None if payload is None else arguments(payload)
    return await run_again(store, row, payload=edited, again=again, actor=actor)


async def wait(
    store: Store, tenant_id: int, id: str, at_most: Span | None = None, endings: Endings | None = None
) -> Row:
    """Wait for a job to finish and return its row.

    Raise `StillUnfinished` on timeout. Callers that wait in the same process share one `endings`.
    """
    limit = None if at_most is None else span_us(at_most) / 1_000_000
    ends_at = None if limit is None else asyncio.get_running_loop().time() + limit
    if endings is not None and endings.workers_here:
        last = await endings.heard_of(tenant_id, key_of(id), limit)
        if last is not None and last.tenant_id == tenant_id and last.move.target is SUCCEEDED:
            return _after({"id": last.id, "tenant_id": tenant_id, "reason": None, "error": None}, last)
    row = await find(store, tenant_id, id)
    if JOB.state(row["state"]).final:
        return row
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(ends_at):
            last = await (endings or Endings(store)).reached(row["id"])
            if last is not None and last.move.target is SUCCEEDED:
                return _after(row, last)
    row = await find(store, tenant_id, id)
    if not JOB.state(row["state"]).final:
        raise StillUnfinished(id=public_id(JOB.name, row["id"]), state=row["state"], waited=at_most)
    return row


def _after(row: Row, last: Change) -> Row:
    """Return the row of a job that just succeeded in this process, without reading it again."""
    blob = last.values.get(RESULT_BLOB)
    changed = {"state": last.move.target.name, "result": last.values["result"], "result_hash": blob and blob.hash}
    return {**row, **changed}


def succeeded(row: Row) -> bool:
    return bool(row["state"] == SUCCEEDED.name)


RETRIED = tuple(state.name for state in JOB.states if state.final and state is not SUCCEEDED)


def states_named(names: list[str]) -> tuple[str, ...] | None:
    """Return the job states that a user named, with commas or hyphens if they like. Return None for all states."""
    wanted = [name.strip().replace("-", "_").replace(" ", "_") for text in names for name in text.split(",")]
    declared = [state.name for state in JOB.states]
    for name in wanted:
        if name not in declared:
            raise BadInput(what=f"a job is never {name!r}; it is one of: {', '.join(declared)}")
    return tuple(dict.fromkeys(wanted)) or None


def arguments(text: str) -> str:
    """Return a payload as compact JSON.

    Raise `BadInput` if it is not a JSON object or is too large.
    """
    try:
        found = json.loads(text)
        plain = json.dumps(found, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"the payload is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(what='the payload must be a JSON object that names the arguments, such as {"url": "…"}')
    if len(plain) > LARGEST_PAYLOAD:
        raise BadInput(what=f"a payload of {len(plain):,} bytes is over the limit of {LARGEST_PAYLOAD >> 20} MiB")
    return plain


def as_json(row: Row) -> Row:
    """Return a job under its column names, with the values in their public form."""
    shown = dict(row)
    for name, outside in _OUTSIDE:
        if (value := row.get(name)) is not None:
            shown[name] = outside(value)
    shown["status"] = row["state"]
    return shown


def waits_for(row: Row) -> str | None:
    """Return what a queued job waits for, or None. The column keeps its old value after the job continues."""
    return row["waits_for"] if row["state"] == QUEUED.name else None


def lately(row: Row, now: int) -> str:
    """Return a short description of what a job is doing and since when."""
    if row["completed_at"] is not None:
        return durations.ago(row["completed_at"], now)
    if row["state"] == RUNNING.name and row["cancel_requested_at"] is not None:
        return f"asked to stop {durations.ago(row['cancel_requested_at'], now)}"
    if row["lease_until"] is not None and row["lease_until"] <= now:
        return f"lease over for {durations.span(now - row['lease_until'])}"
    if row["state"] == QUEUED.name:
        return _queueing(row, now)
    return f"for {durations.span(now - row['updated_at'])}"


def _queueing(row: Row, now: int) -> str:
    if row["held_by"] is not None:
        return f"held by {row['held_by']}"
    if row["run_at"] - now > LONGEST_US // 2:  # a time this far off means that the job waits for something else
        return "until it is woken"
    if row["run_at"] > now:
        return f"due {durations.ago(row['run_at'], now)}"
    return f"waiting {durations.span(now - row['run_at'])}"


def document(text: str) -> Any:
    """Return a JSON column as data. Text that is not JSON, such as a manual edit, is returned unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _public(entity: str) -> Callable[[int], str]:
    return lambda key: public_id(entity, key)


_OUTSIDE: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    *((name, _public(JOB.name)) for name in ("id", "redriven_from", "parent_id")),
    ("crew_id", _public("crew")),
    ("owner", _public("worker")),
    ("actor", actor_name),
    ("trace_id", spans.trace_id),
    *((name, rfc3339) for name in _TIMES),
    *((name, document) for name in _DOCUMENTS),
)
"""Columns whose public form differs from the stored form, each with its conversion."""


def _unknown(id: str) -> NotFound:
    return NotFound(what="job", id=repr(id), listing="keptwork jobs list")
