"""Submit, show, and cancel crews, wait for them, and set their quotas, for users and code."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import Span, rfc3339, span_us
from keptwork.core.guards import MAX_DEPTH, MAX_WORKERS
from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import CREW, JOB, decide, insist
from keptwork.core.lifecycles.crew import COMPLETED
from keptwork.core.validation import LARGEST_INT, check_name
from keptwork.crews.engine import allocate, call_off, lock_of, quotas
from keptwork.crews.plan import DEPTHS
from keptwork.errors import BadInput, CrewFailed, CrewUnfinished, NotFound
from keptwork.job import JobType
from keptwork.jobs.enqueue import new_job
from keptwork.jobs.results_endings import Endings
from keptwork.observability import spans
from keptwork.store import NewJob, Store, Transaction
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.counters_decisions import decided

LONGEST_TASK = 10_000
OWN = ("share", "shares", "task")

Row = dict[str, Any]


class NewCrew(NamedTuple):
    """A crew to submit. `work` is JSON that describes the jobs of its shares."""

    tenant_id: int
    task: str
    workers: int
    kind: str
    work: str
    key: str | None = None
    timeout_us: int | None = None
    actor: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None


class Inside(NamedTuple):
    """What contains a crew: the keys of its parent crew, outermost flow, waiting job, and step."""

    parent_id: int | None = None
    tree_id: int | None = None
    asker_id: int | None = None
    step_id: int | None = None


class Tree(NamedTuple):
    """A crew, the job rows of its shares in order, and its sub-crews."""

    crew: Row
    shares: list[Row]
    inside: list[Tree]


# --- submitting


def new_crew(
    kind: JobType,
    arguments: Mapping[str, Any],
    tenant_id: int,
    *,
    task: str,
    workers: int = 1,
    key: str | None = None,
    timeout: Span | None = None,
    actor: str | None = None,
) -> NewCrew:
    """Return a crew whose shares are jobs of this kind, or raise `BadInput`. Nothing is stored."""
    check(task, workers, key, arguments)
    kind.insist_not_unique("shares of a crew")
    shares = [new_job(kind, given, tenant_id) for given in shares_given(arguments, task, workers)]
    length = None if timeout is None else span_us(timeout)
    return NewCrew(tenant_id, task, workers, kind.name, work_of(shares, arguments), key, length, actor)


def shares_given(arguments: Mapping[str, Any], task: str, workers: int) -> list[dict[str, Any]]:
    return [{**arguments, "share": number, "shares": workers, "task": task} for number in range(workers)]


def work_of(shares: Sequence[NewJob], arguments: Mapping[str, Any]) -> str:
    """Return the JSON that the row of the crew stores about the jobs of its shares."""
    first = shares[0]
    rules = {name: getattr(first, name) for name in ("kind", "queue", "priority", "max_attempts", "on_exhausted")}
    limit_keys = None if first.limit_key is None else [share.limit_key for share in shares]
    return json.dumps({**rules, "arguments": dict(arguments), "limit_keys": limit_keys}, allow_nan=False)


def check(task: object, workers: object, key: object, arguments: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a crew with these values is not possible."""
    if not isinstance(task, str) or not task.strip() or "\0" in task:
        raise BadInput(what=f"{task!r} is no task; say in words what the crew is to do")
    if len(task) > LONGEST_TASK:
        raise BadInput(what=f"a task of {len(task):,} characters is over the limit of {LONGEST_TASK:,}")
    if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
        raise BadInput(what=f"a crew of {workers!r} workers cannot be; it has 1 to {MAX_WORKERS}")
    if key is not None:
        check_name("key", key)
    if taken := sorted(set(OWN) & set(arguments)):
        raise BadInput(what=f"the arguments {', '.join(taken)} are given to each share by the crew; leave them out")


async def submit(store: Store, crew: NewCrew, inside: Inside = Inside()) -> int:  # noqa: B008 - frozen, safe to share
    """Submit a crew and return its key.

    A repeated key returns the existing crew. An impossible crew, such as one without its parent, is stored and fails.
    """
    with spans.producing("submit", crew.kind, crew.trace_id):
        traced = crew._replace(trace_id=spans.carried(crew.trace_id))
        return await store.atomically(lambda tx: submit_in(tx, traced, inside), 1 + crew.workers)


async def submit_in(tx: Transaction, crew: NewCrew, inside: Inside = Inside()) -> int:  # noqa: B008 - as above
    """Submit a crew as `submit` does, as part of a transaction."""
    parent = None if inside.parent_id is None else await tx.get(CREW, inside.parent_id, crew.tenant_id)
    tree = inside.tree_id if parent is None else tree_of(parent)
    await tx.lock_trees([*([] if tree is None else [tree]), lock_of(crew.tenant_id)])
    if crew.key is not None and (earlier := await tx.crew_by_key(crew.tenant_id, crew.key)) is not None:
        return earlier
    if parent is not None:
        parent = await tx.get(CREW, parent["id"], crew.tenant_id)  # read again under the lock
    key = await _created(tx, crew, inside._replace(tree_id=tree), parent)
    await validate(tx, key)
    await allocate(tx, crew.tenant_id)
    return key


async def _created(tx: Transaction, crew: NewCrew, inside: Inside, parent: Row | None) -> int:
    return await tx.create(
        CREW,
        tenant_id=crew.tenant_id,
        actor=crew.actor,
        correlation_id=crew.correlation_id or (None if parent is None else parent["correlation_id"]),
        trace_id=crew.trace_id or (None if parent is None else parent["trace_id"]),
        **inside._asdict(),
        depth=0 if parent is None else parent["depth"] + 1,
        worker_count=crew.workers,
        task_description=crew.task,
        deadline_at=None if crew.timeout_us is None else await tx.now() + crew.timeout_us,
        key=crew.key,
        kind=crew.kind,
        work=crew.work,
    )


async def validate(tx: Transaction, key: int) -> None:
    """Move a valid crew to PENDING, where it waits for workers, or fail an invalid one."""
    (row,) = await tx.rows(CREW, [key])
    parent = None if row["parent_id"] is None else await tx.get(CREW, row["parent_id"], row["tenant_id"])
    wrong = await _wrong(tx, row, parent)
    depth = -1 if row["parent_id"] is None else None if parent is None else parent["depth"]
    if wrong is None:
        change = insist(decide(CREW, row, "validate", actor=row["actor"], parent_depth=depth))
    else:
        change = insist(decide(CREW, row, "reject", actor=row["actor"], reason=wrong, values={"error": wrong}))
    await tx.apply([change])


async def _wrong(tx: Transaction, row: Row, parent: Row | None) -> str | None:
    if row["parent_id"] is not None and parent is None:
        return f"there is no crew {public_id(CREW.name, row['parent_id'])} for it to be inside of"
    if parent is not None and CREW.state(parent["state"]).final:
        return f"the crew {public_id(CREW.name, parent['id'])} it is to be inside of has ended ({parent['state']})"
    if row["depth"] > MAX_DEPTH:
        return f"it would be at depth {row['depth']}; crews go down to depth {MAX_DEPTH}"
    if row["work"] is None:
        return "it does not say what its shares do"
    most = {depth: most for depth, most, _ in await quotas(tx, row["tenant_id"])}.get(row["depth"], 0)
    if row["worker_count"] > most:
        return f"its {row['worker_count']} workers are more than the quota of depth {row['depth']}, which is {most}"
    return None


# --- finding


def key_of(id: str) -> int:
    """Return the key in a crew's public ID, or raise `NotFound` if the text is not a crew ID."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != CREW.prefix:
        raise _unknown(id)
    return key


async def find(store: Store | Transaction, tenant_id: int, id: str) -> Row:
    """Return the whole row of a crew. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    row = await store.get(CREW, key_of(id), tenant_id)
    if row is None:
        raise _unknown(id)
    return row


async def listed(
    store: Store, tenant_id: int, *, states: Sequence[str] | None = None, inside: bool = False, limit: int = 50
) -> list[Row]:
    """List a tenant's crews, newest first."""
    if not 1 <= limit <= 10_000:
        raise BadInput(what=f"a list holds 1 to 10000 crews, not {limit}")
    return await store.crews(tenant_id, states=states, inside=inside, limit=limit)


class Page(NamedTuple):
    """A page of crews, and the ID of its last crew if there are more."""

    crews: list[Row]
    next: str | None


async def page(
    store: Store,
    tenant_id: int,
    *,
    states: Sequence[str] | None = None,
    inside: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page:
    """Return one page of a tenant's crews, newest first."""
    start = None if after is None else key_of(after)
    found = await store.crews(tenant_id, states=states, inside=inside, after=start, limit=limit + 1)
    return Page(found[:limit], public_id(CREW.name, found[limit - 1]["id"]) if len(found) > limit else None)


async def tree(store: Store, tenant_id: int, id: str) -> Tree:
    """Return a crew with its shares and sub-crews."""
    return await _tree_of(store, await whole(store, await find(store, tenant_id, id)))


async def _tree_of(store: Store, row: Row) -> Tree:
    shares = await share_rows(store, row["id"])
    inside = [await _tree_of(store, one) for one in await store.subcrews([row["id"]])]
    return Tree(row, shares, inside)


async def share_rows(store: Store, crew: int) -> list[Row]:
    """Return the jobs of a crew in the order of their shares."""
    keys = [job.id for job in await store.shares([crew])]
    rows = {row["id"]: row for row in await store.rows(JOB, keys)}
    return [rows[key] for key in keys if key in rows]


# --- finishing


async def cancel(
    store: Store, tenant_id: int, id: str, *, reason: str | None = None, actor: str | None = None
) -> list[int]:
    """Cancel a crew, its sub-crews, and all their jobs in one transaction.

    Return the keys of the crews that have finished. Running jobs lose their leases, and their handlers stop.
    """
    from keptwork.jobs.complete import again_if_moved

    row = await find(store, tenant_id, id)

    async def end(tx: Transaction) -> list[int]:
        await tx.lock_trees([tree_of(row), lock_of(tenant_id)])
        now = await find(tx, tenant_id, id)
        decided(store, CREW, now, "cancel")  # raises and counts a refusal before anything is written
        over = await call_off(tx, now, reason, actor)
        await allocate(tx, tenant_id)
        await _tell_steps(tx, over)
        return [one["id"] for one in over]

    return await again_if_moved(store, end)


async def _tell_steps(tx: Transaction, over: list[Row]) -> None:
    """Advance the flows that have these crews as steps."""
    from keptwork.flows import engine as advance

    await advance.crews_ended(tx, over)


async def wait(store: Store, tenant_id: int, id: str, at_most: Span | None = None) -> Row:
    """Wait for a crew to finish and return its row. Raise `CrewUnfinished` on timeout."""
    limit = None if at_most is None else span_us(at_most) / 1_000_000
    row = await find(store, tenant_id, id)
    if not CREW.state(row["state"]).final:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await Endings(store, CREW).reached(row["id"])
        row = await find(store, tenant_id, id)
    if not CREW.state(row["state"]).final:
        raise CrewUnfinished(id=public_id(CREW.name, row["id"]), state=row["state"], waited=at_most)
    return row


async def result(store: Store, tenant_id: int, id: str, at_most: Span | None = None) -> list[Any]:
    """Wait for a crew and return the results of its shares in order. Raise `CrewFailed` if it did not succeed."""
    row = await wait(store, tenant_id, id, at_most)
    if row["state"] != COMPLETED.name:
        raise failure(row)
    found: list[Any] = json.loads((await whole(store, row))["result"])
    return found


def failure(row: Row) -> CrewFailed:
    """Return the error that says why a crew has no result."""
    said = [text for text in (row["reason"], row["error"]) if text]
    why = ": ".join(dict.fromkeys(said)) or "no reason was given"
    return CrewFailed(id=public_id(CREW.name, row["id"]), state=row["state"], why=why)


# --- quotas


async def set_quotas(store: Store, tenant_id: int, most: Mapping[int, int]) -> None:
    """Set the maximum number of concurrent workers by depth. Waiting crews get the workers that this frees."""
    for depth, workers in most.items():
        if depth not in DEPTHS:
            raise BadInput(what=f"there is no depth {depth!r}; crews go from 0 to {MAX_DEPTH}")
        if type(workers) is not int or not 1 <= workers <= LARGEST_INT:
            raise BadInput(what=f"a quota of {workers!r} cannot be; it is at least 1")

    async def change(tx: Transaction) -> None:
        await tx.lock_trees([lock_of(tenant_id)])
        await tx.set_quotas(tenant_id, most)
        await allocate(tx, tenant_id)

    await store.atomically(change)


def quotas_named(most: Mapping[str, int]) -> dict[int, int]:
    """Return quotas by depth from the text keys that users write."""
    for depth in most:
        if not (depth.isascii() and depth.isdecimal() and len(depth) < 10):
            raise BadInput(what=f"{depth!r} is no depth; crews go from 0 to {MAX_DEPTH}")
    return {int(depth): workers for depth, workers in most.items()}


def quotas_as_json(found: Sequence[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [{"depth": depth, "quota": most, "in_use": used} for depth, most, used in found]


# --- showing


def as_json(row: Row) -> Row:
    times = ("created_at", "updated_at", "started_at", "completed_at", "deadline_at")
    return {
        "id": public_id(CREW.name, row["id"]),
        "state": row["state"],
        "status": row["state"],
        "task_description": row["task_description"],
        "kind": row["kind"],
        "worker_count": row["worker_count"],
        "depth": row["depth"],
        "parent_id": None if row["parent_id"] is None else public_id(CREW.name, row["parent_id"]),
        "asker_id": None if row["asker_id"] is None else public_id(JOB.name, row["asker_id"]),
        "key": row["key"],
        "reason": row["reason"],
        "error": row["error"],
        "actor": actor_name(row["actor"]),
        "correlation_id": row["correlation_id"],
        **{name: None if row[name] is None else rfc3339(row[name]) for name in times},
    }


def tree_as_json(tree: Tree) -> Row:
    from keptwork.jobs.queries import waits_for

    crew = tree.crew
    result = crew["result"] if crew["state"] == COMPLETED.name else None
    return {
        **as_json(crew),
        "result": None if result is None else json.loads(result),
        "shares": [
            {
                "id": public_id(JOB.name, job["id"]),
                "state": job["state"],
                "attempts": job["attempts"],
                "waits_for": waits_for(job),
            }
            for job in tree.shares
        ],
        "inside": [tree_as_json(one) for one in tree.inside],
    }


def tree_of(row: Row) -> int:
    """Return the key of the outermost flow or crew that a crew belongs to."""
    tree: int = row["tree_id"] or row["id"]
    return tree


def _unknown(id: str) -> NotFound:
    return NotFound(what="crew", id=repr(id), listing="keptwork crews list")
