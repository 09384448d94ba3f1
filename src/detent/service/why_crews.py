"""Why a crew is not moving: who has the workers it waits for, which of its shares have not ended, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from detent.lifecycle import CREW, JOB
from detent.lifecycle.crew import PENDING, RUNNING
from detent.lifecycle.job import QUEUED
from detent.service import crews
from detent.service.crew_moves import quotas
from detent.service.entities import public_id
from detent.service.why import Reason
from detent.store import Store
from detent.store.crews import A_CREW, HELD_BY_QUOTA

MOST_HOLDERS = 1_000
MOST_NAMED = 5

Row = dict[str, Any]


class Cause(StrEnum):
    """What can keep a crew where it is."""

    ENDED = "ended"
    QUOTA = "quota"
    IN_LINE = "in_line"
    SHARES = "shares"
    INSIDE = "inside"
    DEADLINE = "deadline"


class Situation(NamedTuple):
    """What bears on whether a crew moves: its shares and the crews inside it; of its depth, how many workers there may
    be and are, which crews have how many of them, and which wait before it."""

    crew: Row
    shares: tuple[Row, ...]
    inside: tuple[Row, ...]
    most: int = 0
    used: int = 0
    holders: tuple[tuple[int, int], ...] = ()
    ahead: tuple[Row, ...] = ()


async def why(store: Store, tenant_id: int, id: str) -> tuple[Row, list[Reason]]:
    """A crew, and what is in its way; a foreign or unknown id is `NotFound`."""
    crew = await crews.find(store, tenant_id, id)
    return crew, reasons(await _situation(store, crew))


async def _situation(store: Store, crew: Row) -> Situation:
    inside = tuple(await store.subcrews([crew["id"]], unfinished_only=True))
    seen = Situation(crew, tuple(await crews.share_rows(store, crew["id"])), inside)
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


async def _holders(store: Store, keys: list[int]) -> list[tuple[int, int]]:
    held: dict[int, int] = {}
    for job in await store.shares(keys, unfinished_only=True):
        if job.crew_id is not None and job.held_by != HELD_BY_QUOTA:
            held[job.crew_id] = held.get(job.crew_id, 0) + 1
    return sorted(held.items())


def reasons(situation: Situation) -> list[Reason]:
    """What is in its way, what binds first coming first; there is always something to say."""
    crew = situation.crew
    if CREW.state(crew["state"]).final:
        why = ": ".join(dict.fromkeys(text for text in (crew["reason"], crew["error"]) if text))
        return [Reason(Cause.ENDED, f"it has ended as {crew['state']}{f' ({why})' if why else ''}")]
    found = _for_workers(situation) if crew["state"] != RUNNING.name else _for_shares(situation)
    if crew["deadline_at"] is not None:
        found.append(
            Reason(
                Cause.DEADLINE, "it has a timeout, and is cancelled if it has not ended by then", crew["deadline_at"]
            )
        )
    return found


def _for_workers(situation: Situation) -> list[Reason]:
    crew, most = situation.crew, situation.most
    if crew["state"] == CREW.initial.name:
        says = "it was submitted, and nobody has looked at it since; a worker that runs does"
        return [Reason(Cause.IN_LINE, says, None, "detent work MODULE:APP")]
    needs, depth = _workers(crew["worker_count"]), crew["depth"]
    if crew["worker_count"] > most:
        says = f"it needs {needs}, and the quota of depth {depth} is only {most}"
        return [Reason(Cause.QUOTA, says, None, f"detent crews quotas --set {depth}={crew['worker_count']}")]
    by = ", ".join(f"{public_id(CREW.name, key)} has {count}" for key, count in situation.holders[:MOST_NAMED])
    says = f"it needs {needs} of depth {depth}, where {situation.used} of {most} are at work{f': {by}' if by else ''}"
    found = [Reason(Cause.QUOTA, says, None, "detent crews list --state RUNNING --all")]
    if situation.ahead:
        first = situation.ahead[0]
        says = f"{len(situation.ahead)} before it in line, first {public_id(CREW.name, first['id'])}"
        found.append(Reason(Cause.IN_LINE, f"{says}, which needs {_workers(first['worker_count'])}"))
    return found


def _for_shares(situation: Situation) -> list[Reason]:
    left = [job for job in situation.shares if not JOB.state(job["state"]).final]
    done = len(situation.shares) - len(left)
    if not left and situation.inside:
        named = ", ".join(public_id(CREW.name, row["id"]) for row in situation.inside[:MOST_NAMED])
        return [Reason(Cause.INSIDE, f"its shares are done, and it waits for crews inside it: {named}")]
    if not left:
        return [
            Reason(Cause.SHARES, "its shares have ended; a worker that runs sees to it", None, "detent work MODULE:APP")
        ]
    head = f"{done} of {situation.crew['worker_count']} shares are done"
    found = [
        Reason(Cause.SHARES, f"{head}; {_share(left[0])}", None, f"detent why {public_id(JOB.name, left[0]['id'])}")
    ]
    return found + [Reason(Cause.SHARES, _share(job)) for job in left[1:]]


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
