"""Dead letters: list and show them, and redrive one or many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import DEAD_LETTERED
from keptwork.errors import BadInput, NotFound
from keptwork.jobs import queries
from keptwork.jobs.dead_letters_redrive import COLUMNS, run_again, run_all_again
from keptwork.store import JobFilter, Store
from keptwork.store.acknowledged import acknowledged

BATCH = 100
BATCHES_PER_SECOND = 5

Pause = Callable[[float], Awaitable[None]]


class Redriven(NamedTuple):
    """A dead letter and the job that reruns it."""

    old: int
    new: int


def among(
    tenant_id: int,
    *,
    queue: str | None = None,
    kind: str | None = None,
    reason_code: str | None = None,
    since: int | None = None,
    until: int | None = None,
) -> JobFilter:
    """Return a filter for dead letters. None does not narrow it."""
    if reason_code is not None and reason_code not in DEAD_LETTER_REASONS:
        raise BadInput(what=f"{reason_code!r} is no reason code; there are: {', '.join(DEAD_LETTER_REASONS)}")
    wanted = JobFilter(tenant_id, (DEAD_LETTERED.name,), queue=queue, kind=kind, reason=reason_code)
    return replace(wanted, ended_since=since, ended_before=until)


async def page(
    store: Store, wanted: JobFilter, *, after: str | None = None, limit: int = 50, text: str | None = None
) -> queries.Page:
    """Return one page of dead letters, newest first. `text` searches as it does for jobs."""
    return await queries.page(store, wanted, after=after, limit=limit, text=text)


async def find(store: Store, tenant_id: int, id: str) -> dict[str, Any]:
    """Return the job of a dead letter. Raise `NotFound` if the job is not a dead letter."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    row = await store.get(JOB, key, tenant_id) if prefix == JOB.prefix else None
    if row is None or row["state"] != DEAD_LETTERED.name:
        raise NotFound(what="dead letter", id=repr(id), listing="keptwork dead-letters list")
    return row


async def later_jobs(store: Store, tenant_id: int, rows: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return the jobs that rerun these dead letters, by the key of the dead letter."""
    found: dict[int, list[int]] = {row["id"]: [] for row in rows}
    wanted = JobFilter(tenant_id, redriven_from=tuple(found))
    columns = ("id", "redriven_from")
    for job in await store.jobs(wanted, limit=queries.MOST_AT_ONCE, newest_first=False, columns=columns):
        found[job["redriven_from"]].append(job["id"])
    return found


@acknowledged
async def redrive_one(
    store: Store, tenant_id: int, id: str, *, payload: str | None = None, again: bool = False, actor: str | None = None
) -> Redriven:
    """Redrive a dead letter, with another payload if one is given."""
    row = await find(store, tenant_id, id)
    edited = None if payload is None else queries.arguments(payload)
    return Redriven(row["id"], await run_again(store, row, payload=edited, again=again, actor=actor))


async def count(store: Store, wanted: JobFilter, *, again: bool = False, limit: int | None = None) -> int:
    """Return how many dead letters `redrive` would rerun."""
    chosen = await _as_of_now(store, wanted, again)
    return sum([len(batch) async for batch in _batches(store, chosen, limit, queries.MOST_AT_ONCE, ("id", "step_id"))])


async def redrive(
    store: Store,
    wanted: JobFilter,
    *,
    again: bool = False,
    limit: int | None = None,
    rate: float | None = None,
    actor: str | None = None,
    pause: Pause = asyncio.sleep,
) -> AsyncIterator[Redriven]:
    """Redrive dead letters, oldest first, at most `rate` per second.

    Dead letters that were redriven before are skipped unless `again` is set. Jobs of steps are always skipped, because
    they rerun with their step. Jobs that are dead-lettered during the redrive are skipped, so that it ends.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise BadInput(what=f"a rate of {rate} jobs a second never ends; it must be above 0")
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / BATCHES_PER_SECOND)))
    owed, found = 0.0, False
    async for batch in _batches(store, await _as_of_now(store, wanted, again), limit, size, COLUMNS):
        if owed:
            await pause(owed)
        found = True
        for row, new in zip(batch, await run_all_again(store, batch, again=again, actor=actor), strict=True):
            yield Redriven(row["id"], new)
        owed = len(batch) / rate if rate else 0.0
    if not found:
        async with store.acknowledging():  # an earlier call might have redriven all, so wait for the standbys
            await store.now()


async def _as_of_now(store: Store, wanted: JobFilter, again: bool) -> JobFilter:
    now = await store.now() + 1
    until = now if wanted.ended_before is None else min(now, wanted.ended_before)
    return replace(wanted, ended_before=until, redriven=None if again else False)


async def _batches(
    store: Store, wanted: JobFilter, limit: int | None, size: int, columns: tuple[str, ...]
) -> AsyncIterator[list[dict[str, Any]]]:
    if limit is not None and limit < 1:
        raise BadInput(what=f"a limit of {limit} leaves nothing to do; it must be at least 1")
    after, left = None, limit
    while left is None or left > 0:
        most = size if left is None else min(size, left)
        batch = await store.jobs(wanted, after=after, limit=most, newest_first=False, columns=columns)
        own = [row for row in batch if row["step_id"] is None]
        if own:
            yield own
        if len(batch) < most:
            return
        after = batch[-1]["id"]
        left = None if left is None else left - len(own)


def as_json(row: dict[str, Any], redriven_as: list[int]) -> dict[str, Any]:
    """Return a dead letter in its public form. Its stage and lease are as its last worker reported them."""
    noted = queries.document(row["detail"]) if row["detail"] else None
    noted = noted if isinstance(noted, dict) else {}
    expired = noted.get("last_lease_expires_at")
    return {
        "id": public_id(JOB.name, row["id"]),
        "kind": row["kind"],
        "queue": row["queue"],
        "dead_lettered_at": rfc3339(row["completed_at"]),
        "reason_code": row["reason"],
        "stage": noted.get("stage"),
        "last_error": row["error"],
        "attempts": row["attempts"],
        "max_attempts": row["max_attempts"],
        "last_owner": None if row["owner"] is None else public_id("worker", row["owner"]),
        "last_lease_expires_at": rfc3339(expired) if isinstance(expired, int) else expired,
        "correlation_id": row["correlation_id"],
        "redriven_from": None if row["redriven_from"] is None else public_id(JOB.name, row["redriven_from"]),
        "redriven_as": [public_id(JOB.name, key) for key in redriven_as],
    }
