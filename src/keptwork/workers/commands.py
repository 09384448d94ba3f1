"""Manage workers for operators and supervisors: create, show, start, pause, and end them.

Each command is one transaction with the move and its event, the order to the worker's process, and, if the caller
passed a request ID, the response for repeated requests. The process learns of an order when it reads its own row.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import JOB, WORKER, Verb, decide, insist
from keptwork.core.lifecycles.worker import IDLE, RUNNING, TERMINATED
from keptwork.core.validation import LARGEST_INT, check_name, plain_json
from keptwork.errors import BadInput, LeaseLost, NotFound
from keptwork.jobs import complete
from keptwork.store import Event, EventFilter, JobFilter, Reader, Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.jobs_list import LEASED
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.store.counters_decisions import decided
from keptwork.workers.registration import DRAINED, Order

MOST_AT_ONCE = 10_000
TRIES = 5
SUPERVISOR_TIMEOUT = "supervisor_timeout"
USUAL_WORKSPACE = "default"
LARGEST_METADATA = 16 << 10
MOST_SERVED = 1_000
SILENT_US = 20_000_000
"""Time without a heartbeat after which a worker counts as unresponsive. A heartbeat is due about every second."""

_TIMES = ("created_at", "updated_at", "started_at", "completed_at", "seen_at")
_SERVES = ("queues", "kinds", "concurrency", "version")

Row = dict[str, Any]
Answer = dict[str, Any]


class Page(NamedTuple):
    """A page of workers, their numbers of jobs, and the ID of the last worker if there are more."""

    workers: list[Row]
    jobs: Counter[int]
    next: str | None


class Story(NamedTuple):
    """A worker with its events, its jobs, and its last telemetry."""

    worker: Row
    events: list[Event]
    jobs: list[Row]
    doing: Row | None


class Wish(NamedTuple):
    """The caller of a command and its reason. A repeated request ID returns the first response for an hour."""

    actor: str | None = None
    reason: str | None = None
    request_id: str | None = None


NOBODY = Wish()


class NewWorker(NamedTuple):
    """A worker to register before its process starts, with what it will serve and its metadata."""

    name: str | None = None
    workspace_id: str = USUAL_WORKSPACE
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    concurrency: int | None = None
    version: str = ""
    metadata: Mapping[str, Any] | None = None


# --- creating


async def create(store: Store, tenant_id: int, new: NewWorker, wish: Wish = NOBODY) -> Row:
    """Register an IDLE worker. It is not unresponsive before the first heartbeat of its process."""
    _check(wish)
    metadata, incarnation = _checked(new), secrets.token_hex(8)
    serves = {"queues": list(new.queues), "kinds": sorted(new.kinds), "concurrency": new.concurrency}
    key = await store.create(
        WORKER,
        tenant_id=tenant_id,
        actor=wish.actor,
        reason=wish.reason,
        name=new.name or f"worker-{incarnation}",
        incarnation=incarnation,
        workspace_id=new.workspace_id,
        serves=json.dumps({**serves, "version": new.version}),
        metadata=metadata,
    )
    return await find(store, tenant_id, public_id(WORKER.name, key))


def _checked(new: NewWorker) -> str | None:
    """Return the metadata as they are stored. Raise `BadInput` if a value exceeds its limits."""
    for what, text in (("name", new.name), ("workspace", new.workspace_id), ("version", new.version or None)):
        if text is not None:
            check_name(what, text)
    for what, names in (("queue", new.queues), ("kind", new.kinds)):
        if len(names) > MOST_SERVED:
            raise BadInput(what=f"a worker that serves {len(names):,} {what}s is over the limit of {MOST_SERVED:,}")
        for name in names:
            check_name(what, name)
    if new.concurrency is not None and not 1 <= new.concurrency <= LARGEST_INT:
        raise BadInput(what=f"concurrency is {new.concurrency}; it must be at least 1")
    metadata = None if new.metadata is None else plain_json("metadata", new.metadata)
    if metadata is not None and len(metadata) > LARGEST_METADATA:
        raise BadInput(what=f"metadata of {len(metadata):,} bytes are over the limit of {LARGEST_METADATA >> 10} KiB")
    return metadata


# --- showing


async def page(store: Store, wanted: WorkerFilter, *, after: str | None = None, limit: int = 50) -> Page:
    """Return one page of workers, newest first."""
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a page holds 1 to {MOST_AT_ONCE} workers, not {limit}")
    start = key_of(after) if after else None
    found = await store.workers(wanted, after=start, limit=limit + 1)
    shown = found[:limit]
    held = await store.jobs(JobFilter(states=LEASED), limit=MOST_AT_ONCE, columns=("owner",))
    more = public_id(WORKER.name, shown[-1]["id"]) if len(found) > limit else None
    return Page(shown, Counter(job["owner"] for job in held), more)


async def find(store: Reader, tenant_id: int, id: str) -> Row:
    """Return the whole row of a worker. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    row = await store.get(WORKER, key_of(id), tenant_id)
    if row is None:
        raise _unknown(id)
    return row


async def show(store: Store, tenant_id: int, id: str) -> Story:
    """Return a worker with its events, oldest first, its jobs, and its telemetry."""
    row = await find(store, tenant_id, id)
    wanted = EventFilter(tenant_id=tenant_id, entity=WORKER.name, entity_id=row["id"])
    events = await store.events(wanted, limit=MOST_AT_ONCE, newest_first=True)
    seen = await store.telemetry(WORKER, row["id"], tenant_id, limit=1)
    held = await store.jobs(JobFilter(owner=row["id"], states=LEASED), limit=MOST_AT_ONCE, newest_first=False)
    return Story(row, events[::-1], held, json.loads(seen[0].payload) if seen else None)


def is_silent(worker: Row, now: int) -> bool:
    """Return whether a worker is unresponsive, so that it might be dead.

    A worker that no process has started is not unresponsive.
    """
    return worker["seen_at"] is not None and now - worker["seen_at"] > SILENT_US


async def serving(store: Reader, queue: str) -> list[Row]:
    """Return the workers that have not ended and serve a queue, newest first.

    A paused worker serves the queue but claims nothing. An unresponsive worker might be dead.
    """
    alive = await store.workers(WorkerFilter(states=ALIVE), limit=MOST_AT_ONCE)
    return [row for row in alive if queue in serves(row)["queues"]]


def serves(row: Row) -> dict[str, Any]:
    """Return what a worker declared when it registered: queues, kinds, concurrency, version."""
    try:
        found = json.loads(row["serves"] or "{}")
    except ValueError:
        found = {}
    return {"queues": [], "kinds": [], "concurrency": None, "version": None, **(found if type(found) is dict else {})}


def key_of(id: str) -> int:
    """Return the key in a worker's public ID, or raise `NotFound` if the text is not one."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != WORKER.prefix:
        raise _unknown(id)
    return key


def as_json(row: Row) -> Row:
    """Return a worker in its public form."""
    plain = {name: row[name] for name in ("name", "state", "host", "pid", "workspace_id", "supervisor", "reason")}
    order = Order.of(row["ending"])
    return {
        "id": public_id(WORKER.name, row["id"]),
        **plain,
        "status": row["state"],
        "actor": actor_name(row["actor"]),
        **{name: serves(row)[name] for name in _SERVES},
        "metadata": row["metadata"] and json.loads(row["metadata"]),
        "asked_to_end": None if order is None else order._asdict(),
        **{name: None if row[name] is None else rfc3339(row[name]) for name in _TIMES},
    }


# --- commands


async def start(store: Store, tenant_id: int, id: str, wish: Wish = NOBODY) -> Answer:
    """Move a worker to running, as its first claim would."""
    return await _command(store, tenant_id, id, "start", wish, _moving(store, "start_task", wish))


async def pause(store: Store, tenant_id: int, id: str, wish: Wish = NOBODY) -> Answer:
    """Pause a worker: it claims nothing from now on, not even in a claim in progress. Running jobs continue."""
    return await _command(store, tenant_id, id, "pause", wish, _moving(store, "pause", wish))


async def resume(store: Store, tenant_id: int, id: str, wish: Wish = NOBODY) -> Answer:
    """Resume a worker, which then claims again."""
    return await _command(store, tenant_id, id, "resume", wish, _moving(store, "resume", wish))


async def drain(store: Store, tenant_id: int, id: str, wish: Wish = NOBODY) -> Answer:
    """Ask a worker to finish its running jobs, release the others, and end.

    A worker that no process has started ends immediately.
    """
    order = Order("drain", by=wish.actor, reason=wish.reason)

    async def ask(within: Transaction, row: Row) -> bool:
        if WORKER.state(row["state"]).final:
            decided(store, WORKER, row, "drain")  # raises and counts the refusal, with the allowed moves
        if row["state"] == IDLE.name and row["seen_at"] is None:
            why = f"{DRAINED}: {wish.reason}" if wish.reason else DRAINED
            return await _moving(store, "terminate", wish._replace(reason=why), order)(within, row)
        return await within.ask_to_end(row["id"], tenant_id, order.text)

    return await _command(store, tenant_id, id, "drain", wish, ask)


async def terminate(
    store: Store, tenant_id: int, id: str, wish: Wish = NOBODY, *, hard: bool = False, cancel_jobs: bool = False
) -> Answer:
    """Terminate a worker, which claims nothing from now on.

    Its process waits for its handlers within the grace period and then stops them; with `hard`, it stops them
    immediately. Their jobs are released, or cancelled with `cancel_jobs`. A worker that is terminating softly can still
    be terminated hard, without a second move.
    """
    order = Order("hard" if hard else "soft", "cancel" if cancel_jobs else "release", wish.actor, wish.reason)

    async def end(within: Transaction, row: Row) -> bool:
        if not (hard and ends_softly(row)) and not await _moving(store, "terminate", wish, order)(within, row):
            return False
        if hard and cancel_jobs:
            await _cancel_jobs_of(within, row["id"], wish)
        return await within.ask_to_end(row["id"], tenant_id, order.text)

    how = {"hard": hard, "cancel_jobs": cancel_jobs}
    return await _command(store, tenant_id, id, "terminate", wish, end, **how)


async def end_silent(store: Store, silent_us: int, among: Collection[int], actor: str) -> list[int]:
    """Terminate those of these workers that are still unresponsive, and return their keys.

    Their jobs stay assigned until the leases expire, because only a lease decides who holds a job.
    """
    async with store.transaction() as within:
        silent = await within.silent_workers(silent_us, MOST_AT_ONCE)
        changes = [
            insist(decide(WORKER, row, "terminate", actor=actor, reason=SUPERVISOR_TIMEOUT, detail=_last_seen(row)))
            for row in silent
            if row["id"] in among
        ]
        late = await within.apply(changes)
        return [change.id for change in changes if change not in late]


_Act = Callable[[Transaction, Row], Awaitable[bool]]


async def _command(
    store: Store, tenant_id: int, id: str, verb: str, wish: Wish, act: _Act, **options: object
) -> Answer:
    """Run a command in one transaction, or return the stored response of the same request."""
    _check(wish)
    endpoint, request_id = f"workers {verb}", wish.request_id
    digest = hashlib.sha256(json.dumps([key_of(id), wish.reason, options], sort_keys=True).encode()).hexdigest()

    async def work(within: Transaction) -> Answer:
        if request_id is not None:
            seen = await within.recall(tenant_id, endpoint, request_id, digest)
            if seen is not None:
                answered: Answer = json.loads(seen.response or "{}")
                return answered
        answer = await _done(within, tenant_id, id, verb, act)
        if request_id is not None:
            await within.answer(tenant_id, endpoint, request_id, json.dumps(answer))
        return answer

    return await store.atomically(work)


async def _done(within: Transaction, tenant_id: int, id: str, verb: str, act: _Act) -> Answer:
    for _ in range(TRIES):
        row = await find(within, tenant_id, id)
        if await act(within, row):
            after = await find(within, tenant_id, id)
            states = {"from_state": row["state"], "to_state": after["state"]}
            return {"command": verb, **states, "worker": as_json(after)}
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger=verb)


def _moving(store: Store, trigger: str, wish: Wish, order: Order | None = None) -> _Act:
    detail = None if order is None else json.dumps({"how": order.how, "jobs": order.jobs})

    async def move(within: Transaction, row: Row) -> bool:
        change = decided(store, WORKER, row, trigger, actor=wish.actor, reason=wish.reason, detail=detail)
        return not await within.apply([change])

    return move


def ends_softly(row: Row) -> bool:
    """Return whether the worker was terminated softly, so that it can still be terminated hard."""
    order = Order.of(row["ending"])
    return row["state"] == TERMINATED.name and order is not None and order.how == "soft"


async def _cancel_jobs_of(within: Transaction, worker: int, wish: Wish) -> None:
    """Cancel the jobs of a worker. Jobs that have finished meanwhile do not change."""
    held = await within.jobs(JobFilter(owner=worker, states=LEASED), limit=MOST_AT_ONCE)
    reason = wish.reason or "its worker was terminated"
    cancelled = [insist(decide(JOB, row, "cancel", actor=wish.actor, reason=reason)) for row in held]
    await complete.applied(within, cancelled)


def _last_seen(row: Row) -> str:
    return json.dumps({"seen_at": rfc3339(row["seen_at"])})


def _check(wish: Wish) -> None:
    for what, text in (("reason", wish.reason), ("request id", wish.request_id)):
        if text is not None:
            check_name(what, text)


def _unknown(id: str) -> NotFound:
    return NotFound(what="worker", id=repr(id), listing="keptwork workers list")


# The lifecycle of a remote worker, as it reports it: running, and ended.


LONGEST_REASON = 500


@acknowledged
async def enrol(store: Store, tenant_id: int, id: str, actor: str | None = None) -> Row:
    """Move a registered worker to running. A running worker does not change."""
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if row["state"] == RUNNING.name:
            return row
        if not await store.apply([decided(store, WORKER, row, "start_task", actor=actor)]):
            return await find(store, tenant_id, id)
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger="start_task")


@acknowledged
async def end(store: Store, tenant_id: int, id: str, reason: str | None = None, error: str | None = None) -> Row:
    """End a worker as it requests: it has drained, or has met a permanent error.

    A worker that is not running is terminated. A worker that has ended does not change.
    """
    why = (error or reason or DRAINED)[:LONGEST_REASON]
    for _ in range(TRIES):
        row = await find(store, tenant_id, id)
        if WORKER.state(row["state"]).final:
            return row
        at_work = Verb.SUCCEED if error is None else Verb.FAIL
        verb = at_work if row["state"] == RUNNING.name else Verb.TERMINATE
        if not await store.apply([insist(decide(WORKER, row, verb, actor=f"w:{row['id']}", reason=why))]):
            return await find(store, tenant_id, id)
    raise LeaseLost(lifecycle=WORKER.name, id=id, trigger="end")


def may_claim(state: str) -> bool:
    """Return whether a worker in this state can claim jobs."""
    return state in (IDLE.name, RUNNING.name)
