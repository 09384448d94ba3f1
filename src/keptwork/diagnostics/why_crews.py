"""Explain why a crew is not moving: which crews use its workers, and its unfinished shares."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.core.lifecycles.crew import PENDING, RUNNING
from keptwork.core.lifecycles.job import QUEUED
from keptwork.crews import commands as crews
from keptwork.crews.engine import quotas
from keptwork.diagnostics import why_jobs
from keptwork.diagnostics.why_jobs import COMES, Reason, to_work
from keptwork.store import Store
from keptwork.store.contract.crews import A_CREW, HELD_BY_QUOTA

MOST_HOLDERS = 1_000
MOST_NAMED = 5

Row = dict[str, Any]


class Cause(StrEnum):
    """A cause that can keep a crew from moving."""

    ENDED = "ended"
    QUOTA = "quota"
    IN_LINE = "in_line"
    SHARES = "shares"
    INSIDE = "inside"
    DEADLINE = "deadline"


class Situation(NamedTuple):
    """Everything that affects whether a crew moves.

    `bottom` is the cause that keeps its first unfinished share. For the crew's depth, `most` is the quota, `used` the
    workers in use, `holders` the crews that use them with their numbers, and `ahead` the crews that wait before this
    one.
    """

    crew: Row
    shares: tuple[Row, ...]
    inside: tuple[Row, ...]
    bottom: Reason | None = None
    most: int = 0
    used: int = 0
    holders: tuple[tuple[int, int], ...] = ()
    ahead: tuple[Row, ...] = ()


async def why(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """Return a crew and the causes that keep it. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    crew = await crews.find(store, tenant_id, id)
    return crew, reasons(await _situation(store, crew))


async def _situation(store: Store, crew: Row) -> Situation:
    inside = tuple(await store.subcrews([crew["id"]], unfinished_only=True))
    seen = Situation(crew, tuple(await crews.share_rows(store, crew["id"])), inside)
    if crew["state"] == RUNNING.name and (left := _left(seen.shares)):
        return seen._replace(bottom=await _of_share(store, left[0]))
    if crew["state"] != PENDING.name:
        return seen
    tenant_id, depth = crew["tenant_id"], crew["depth"]
    at_work = await store.crews(tenant_id, states=(RUNNING.name, PENDING.name), inside=True, limit=MOST_HOLDERS)
    same = [row for row in at_work if row["depth"] == depth]
    return seen._replace(
        most={at: most for at, most, _ in await quotas(store, tenant_id)}[depth],
        used={at: used for at, _, used in await quotas(store, tenant_id)}[depth],
        holders=tuple(await _holders(store, [row["id"] for row in same])),
        ahead=tuple(row for row in reversed(same) if row["state"] == PENDING.name and row["id"] < crew["id"]),
    )


def _left(shares: tuple[Row, ...]) -> list[Row]:
    """Return the unfinished shares, queued ones first."""
    left = [job for job in shares if not JOB.state(job["state"]).final]
    return sorted(left, key=lambda job: bool(job["state"] != QUEUED.name))


async def _of_share(store: Store, job: Row) -> Reason:
    """Return what keeps a share, down to the sub-crew that it waits for."""
    id, waits_for = public_id(JOB.name, job["id"]), job["waits_for"] or ""
    if _waits(job) and waits_for.startswith(A_CREW):
        _, reasons = await why(store, job["tenant_id"], waits_for.removeprefix(A_CREW))
        return reasons[0]._replace(says=f"{_share(job)}: {reasons[0].says}")
    _, reasons = await why_jobs.why(store, job["tenant_id"], id)
    return reasons[0]._replace(says=f"{id}: {reasons[0].says}")


async def _holders(store: Store, keys: list[int]) -> list[tuple[int, int]]:
    held: dict[int, int] = {}
    for job in await store.shares(keys, unfinished_only=True):
        if job.crew_id is not None and job.held_by != HELD_BY_QUOTA:
            held[job.crew_id] = held.get(job.crew_id, 0) + 1
    return sorted(held.items())


def reasons(situation: Situation) -> list[Reason]:
    """Return all causes, most immediate first. There is always at least one."""
    crew = situation.crew
    if CREW.state(crew["state"]).final:
        why = ": ".join(dict.fromkeys(text for text in (crew["reason"], crew["error"]) if text))
        return [Reason(Cause.ENDED, f"it has ended as {crew['state']}{f' ({why})' if why else ''}")]
    found = _for_workers(situation) if crew["state"] != RUNNING.name else _for_shares(situation)
    if crew["deadline_at"] is not None:
        says = "it has a timeout, and is cancelled if it has not ended by then"
        found.append(Reason(Cause.DEADLINE, says, crew["deadline_at"], then=COMES))
    return found


def _for_workers(situation: Situation) -> list[Reason]:
    crew, most = situation.crew, situation.most
    if crew["state"] == CREW.initial.name:
        says = "it was submitted, and nobody has looked at it since; a worker that runs does"
        return [Reason(Cause.IN_LINE, says, None, to_work(crew["kind"]))]
    needs, depth = _workers(crew["worker_count"]), crew["depth"]
    if crew["worker_count"] > most:
        says = f"it needs {needs}, and the quota of depth {depth} is only {most}"
        return [Reason(Cause.QUOTA, says, None, f"keptwork crews quotas --set {depth}={crew['worker_count']}")]
    by = ", ".join(f"{public_id(CREW.name, key)} has {count}" for key, count in situation.holders[:MOST_NAMED])
    says = f"it needs {needs} of depth {depth}, where {situation.used} of {most} are at work{f': {by}' if by else ''}"
    found = [Reason(Cause.QUOTA, says, None, "keptwork crews list --state RUNNING --all")]
    if situation.ahead:
        first = situation.ahead[0]
        says = f"{len(situation.ahead)} before it in line, first {public_id(CREW.name, first['id'])}"
        found.append(Reason(Cause.IN_LINE, f"{says}, which needs {_workers(first['worker_count'])}"))
    return found


def _for_shares(situation: Situation) -> list[Reason]:
    crew = situation.crew
    left = _left(situation.shares)
    done = len(situation.shares) - len(left)
    if not left and situation.inside:
        named = ", ".join(public_id(CREW.name, row["id"]) for row in situation.inside[:MOST_NAMED])
        return [Reason(Cause.INSIDE, f"its shares are done, and it waits for crews inside it: {named}")]
    if not left:
        says, todo = "its shares have ended; a worker that runs sees to it", to_work(crew["kind"])
        return [Reason(Cause.SHARES, says, None, todo)]
    first = situation.bottom or Reason(Cause.SHARES, _share(left[0]))
    head = f"{done} of {crew['worker_count']} shares are done"
    return [first._replace(says=f"{head}; {first.says}"), *(Reason(Cause.SHARES, _share(job)) for job in left[1:])]


def _share(job: Row) -> str:
    id = public_id(JOB.name, job["id"])
    if job["waits_for"] and job["waits_for"].startswith(A_CREW):
        return f"{id} waits for {job['waits_for']}, and has no worker meanwhile"
    if job["held_by"] == HELD_BY_QUOTA:
        return f"{id} could go on, and waits for a worker of its depth"
    return f"{id} is {job['state']}" + (f", and waits for {job['waits_for']}" if _waits(job) else "")


def _waits(job: Row) -> bool:
    return job["state"] == QUEUED.name and bool(job["waits_for"])


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"
