"""Breakers: asked before work that needs one is begun, told what came of it, and looked after while they are open.

A breaker is a row of a tenant's, shared by all workers, and moves as its lifecycle says. Whoever changes one locks it
first, so that there is one probe in the whole fleet and no job is held back by one that has just been closed. The probe
is a claim: it lasts as long as the lease of the job that tries. What they hold back is in `held_jobs`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from keptwork import words
from keptwork.breaker import HOLD, Breaker
from keptwork.errors import NotFound
from keptwork.lifecycle import BREAKER, JOB, Change, decide
from keptwork.lifecycle.breaker import CLOSED, HALF_OPEN, OPEN
from keptwork.moments import rfc3339
from keptwork.service.entities import public_id
from keptwork.store import Event, EventFilter, Job, Store, Transaction
from keptwork.store.breakers import BreakerView, Row

WATCH = "breaker-watch"
TOOL = "tool:"
"""What the names of the breakers of tools begin with."""

LONGEST_ERROR = 500
MOST_EVENTS = 50


class Answer(StrEnum):
    """What a breaker says to a job that needs it."""

    GO = "go"
    PROBE = "probe"
    HOLD = "hold"
    FAIL = "fail"


class Admission(NamedTuple):
    """The answer, and why not, if it is not to go on. `held_by` is what the job is to be held by, if it is."""

    answer: Answer
    says: str = ""
    held_by: str | None = None

    @property
    def goes(self) -> bool:
        return self.answer in (Answer.GO, Answer.PROBE)


class Report(NamedTuple):
    """What a job that is being settled tells its breaker: that what it needs works (true), that it failed (false), or
    nothing (none). `held` says that the job goes back to be held by it."""

    job: Job
    name: str
    ok: bool | None
    error: str | None = None
    held: bool = False

    @property
    def whose(self) -> tuple[int, str]:
        return self.job.tenant_id, self.name


# --- before the work


async def admit(store: Store, job: Job, breaker: Breaker) -> Admission:
    """Whether a claimed job may go on. While the breaker is closed that is one read; once it has cooled down, one job
    of the whole fleet is told that it is the probe. Asked again, the probe is told the same."""
    row = await store.breaker(job.tenant_id, breaker.name)
    if row is not None and row["state"] == CLOSED.name and breaker.agrees_with(row):
        return Admission(Answer.GO)
    return await store.atomically(lambda tx: _admitted(tx, job, breaker))


async def _admitted(tx: Transaction, job: Job, breaker: Breaker) -> Admission:
    row = await ensure(tx, job.tenant_id, breaker)
    if row["state"] == CLOSED.name:
        return Admission(Answer.GO)
    if row["state"] == HALF_OPEN.name and _is_probe(row, job):
        return Admission(Answer.PROBE)
    free = await freed(tx, row)
    if free is None or not await _made_probe(tx, free, job):
        return _refused(breaker, row)
    return Admission(Answer.PROBE)


async def ensure(tx: Transaction, tenant_id: int, breaker: Breaker) -> Row:
    """The row of a breaker, locked: made closed when it is first needed, with the settings it has now."""
    row = await tx.lock_breaker(tenant_id, breaker.name)
    if row is None:
        await tx.lock_trees([_lock_number(tenant_id, breaker.name)])
        row = await tx.lock_breaker(tenant_id, breaker.name)
    if row is None:
        columns: dict[str, Any] = {"name": breaker.name, **breaker.settings}
        await tx.create(BREAKER, tenant_id=tenant_id, **columns)
    elif breaker.agrees_with(row):
        return row
    else:
        await tx.amend(BREAKER, [row["id"]], tenant_id, **breaker.settings)
    return await locked(tx, tenant_id, breaker.name)


async def freed(tx: Transaction, row: Row) -> Row | None:
    """The breaker, ready for a probe; none while it cools down, or while another probe is at work. One whose probe was
    lost opens again first, so that the log tells of it."""
    if row["state"] == OPEN.name:
        return row if row["probe_at"] <= await tx.now() else None
    if row["probe_job"] is None:
        return row
    if await tx.is_claimed(row["probe_job"], row["probe_epoch"]):
        return None
    reason = "its probe was lost: the job's lease ended, or the job ended and told nothing"
    await _moved(tx, row, "reopen", actor=WATCH, reason=reason, detail=_of_job(row["probe_job"]))
    return await locked(tx, row["tenant_id"], row["name"])


async def _made_probe(tx: Transaction, row: Row, job: Job) -> bool:
    probe = {"probe_job": job.id, "probe_epoch": job.epoch}
    if row["state"] == HALF_OPEN.name:  # a good try was not enough, and the next may go
        return bool(await tx.amend(BREAKER, [row["id"]], row["tenant_id"], **probe, candidate=None))
    facts = {"now": await tx.now(), "actor": f"w:{job.owner}", "detail": _of_job(job.id), "values": probe}
    return await _moved(tx, row, "probe", **facts)


def _refused(breaker: Breaker, row: Row) -> Admission:
    says = described(row)
    if breaker.on_open == "fail":
        return Admission(Answer.FAIL, f"{says}; the job is declared to fail then")
    return Admission(Answer.HOLD, says, breaker.hold)


def described(row: Row) -> str:
    """How a breaker that is not closed stands: since when it is not, and what it was last told."""
    since = "" if row["opened_at"] is None else f", open since {rfc3339(row['opened_at'])}"
    last = f": {row['error']}" if row["error"] else ""
    return f"the breaker {row['name']} is {row['state']}{since}{last}"


# --- after the work


class Settled(NamedTuple):
    """The changes that came too late, and whether any breaker may have moved."""

    late: list[Change]
    stirred: bool


Write = Callable[[Transaction, Sequence[Change]], Awaitable[list[Change]]]
"""How changes are written; it returns those that came too late."""


def plainly(tx: Transaction, changes: Sequence[Change]) -> Awaitable[list[Change]]:
    """With nothing else in the same transaction."""
    return tx.apply(changes)


async def settle(
    tx: Transaction, changes: Sequence[Change], reports: Sequence[Report], write: Write = plainly
) -> Settled:
    """Writes what became of jobs, and tells their breakers, in one transaction. Reports of changes that came too late
    do not count. A job that goes back to be held by a breaker that is closed by now is not held. The breakers are
    locked before anything else is."""
    rows = await _concerned(tx, reports)
    news = [report for report in reports if report.whose in rows] if rows else []
    fresh = await _unsettled(tx, news)
    freed = {one.job.id for one in news if one.held and rows[one.whose]["state"] == CLOSED.name}
    late = {change.id for change in await write(tx, [_unheld(one) if one.id in freed else one for one in changes])}
    for told in news:
        if told.job.id in fresh and told.job.id not in late:
            await _told(tx, await locked(tx, *told.whose), told)
    return Settled([change for change in changes if change.id in late], bool(news))


async def report(
    tx: Transaction, tenant_id: int, name: str, ok: bool | None, job: Job, error: str | None = None
) -> None:
    """Tells a breaker what came of a job that needed it, as a part of the transaction that settles the job."""
    row = await tx.breaker(tenant_id, name)
    told = Report(job, name, ok, error)
    if row is not None and _matters(row, told):
        await _told(tx, await locked(tx, tenant_id, name), told)


async def _concerned(tx: Transaction, reports: Sequence[Report]) -> dict[tuple[int, str], Row]:
    """The breakers that these reports may change, locked in an order that everyone keeps to. A success of what works
    anyway is seen without a lock."""
    rows: dict[tuple[int, str], Row] = {}
    for whose in sorted({report.whose for report in reports}):
        row = await tx.breaker(*whose)
        if row is not None and any(_matters(row, report) for report in reports if report.whose == whose):
            rows[whose] = await locked(tx, *whose)
    return rows


async def _unsettled(tx: Transaction, reports: Sequence[Report]) -> set[int]:
    """The jobs that stand as they were claimed. What was settled before, and is written again because its answer was
    lost, has told its breaker already."""
    if not reports:
        return set()
    known = {report.job.id: report.job for report in reports}
    rows = await tx.rows(JOB, list(known), ("id", "seq", "epoch"))
    return {row["id"] for row in rows if (row["seq"], row["epoch"]) == (known[row["id"]].seq, known[row["id"]].epoch)}


def _matters(row: Row, told: Report) -> bool:
    """Whether a report changes anything as the breaker stands. Late ones, of jobs that are not the probe, do not."""
    if told.held:
        return True
    if row["state"] == CLOSED.name:
        return told.ok is False or (told.ok is True and row["failures"] > 0)
    return bool(row["state"] == HALF_OPEN.name and _is_probe(row, told.job))


async def _told(tx: Transaction, row: Row, told: Report) -> None:
    """Of a breaker that is locked."""
    if told.held:
        if row["state"] != CLOSED.name and not row["holds"]:
            await tx.amend(BREAKER, [row["id"]], row["tenant_id"], holds=1)
    elif not _matters(row, told):
        return
    elif row["state"] == CLOSED.name:
        await _counted(tx, row, told)
    else:
        await _tried(tx, row, told)


async def _counted(tx: Transaction, row: Row, told: Report) -> None:
    if told.ok:
        await tx.amend(BREAKER, [row["id"]], row["tenant_id"], failures=0)
        return
    failures, error = row["failures"] + 1, _short(told.error)
    detail = json.dumps({"failures": failures, "error": error, **_job(told.job.id)})
    facts: dict[str, Any] = {"actor": f"w:{told.job.owner}", "reason": error, "detail": detail}
    counted = {"failures": failures, "error": error}
    if not await _moved(tx, {**row, **counted}, "trip", **facts, values=counted):
        await tx.amend(BREAKER, [row["id"]], row["tenant_id"], **counted)


async def _tried(tx: Transaction, row: Row, told: Report) -> None:
    facts: dict[str, Any] = {"actor": f"w:{told.job.owner}"}
    if told.ok is None:
        reason = "its probe ended and told nothing"
        await _moved(tx, row, "reopen", **facts, reason=reason, detail=_of_job(told.job.id))
    elif told.ok:
        successes = row["successes"] + 1
        detail = json.dumps({"successes": successes, **_job(told.job.id)})
        if not await _moved(tx, {**row, "successes": successes}, "close", **facts, detail=detail):
            free = {"probe_job": None, "probe_epoch": None, "candidate": None}
            await tx.amend(BREAKER, [row["id"]], row["tenant_id"], successes=successes, **free)
    else:
        error = _short(told.error)
        detail = json.dumps({"error": error, **_job(told.job.id)})
        values = {"error": error, "delay_us": row["cooldown_us"]}
        await _moved(tx, row, "reopen", **facts, reason=error, detail=detail, values=values)


# --- for operators


async def find(store: Store, tenant_id: int, name: str) -> BreakerView:
    """A breaker by its name, that of a tool also by the tool's, and how many jobs it holds back; one there is not is
    `NotFound`."""
    found = await store.breakers(tenant_id, name) or await store.breakers(tenant_id, f"{TOOL}{name}")
    if not found:
        raise NotFound(what="breaker", id=repr(name), listing="keptwork breakers list")
    return found[0]


class Page(NamedTuple):
    """Some breakers, and the name to go on after if there are more."""

    breakers: list[BreakerView]
    next: str | None


async def page(store: Store, tenant_id: int, *, after: str | None = None, limit: int = 50) -> Page:
    """One page of the breakers of a tenant, by name."""
    every = sorted(await store.breakers(tenant_id), key=lambda one: str(one.row["name"]))
    found = [one for one in every if after is None or one.row["name"] > after]
    return Page(found[:limit], found[limit - 1].row["name"] if len(found) > limit else None)


async def show(store: Store, tenant_id: int, name: str) -> tuple[BreakerView, list[Event]]:
    """A breaker, and the last that happened to it, the oldest first."""
    standing = await find(store, tenant_id, name)
    wanted = EventFilter(tenant_id, BREAKER.name, standing.row["id"])
    return standing, (await store.events(wanted, limit=MOST_EVENTS, newest_first=True))[::-1]


async def holding(store: Store, job: Row) -> Row | None:
    """The breaker that holds a job back, as a whole row of it says; none if none does."""
    held_by = job["held_by"] or ""
    return await store.breaker(job["tenant_id"], held_by.removeprefix(HOLD)) if held_by.startswith(HOLD) else None


def what_next(standing: BreakerView, now: int) -> str:
    """What will happen to it, and when."""
    row = standing.row
    if row["state"] == CLOSED.name:
        return f"lets {standing.held:,} jobs go" if standing.held else "–"
    since = "" if row["opened_at"] is None else f", opened {words.ago(row['opened_at'], now)}"
    if row["state"] == OPEN.name:
        ahead = row["probe_at"] - now
        return f"opens a probe in {words.ahead(ahead)}{since}" if ahead > 0 else f"the next job is the probe{since}"
    if row["probe_job"] is None:
        return f"the next job is the probe{since}"
    return f"{public_id(JOB.name, row['probe_job'])} is the probe{since}"


def as_json(standing: BreakerView) -> dict[str, Any]:
    """A breaker as commands print it."""
    row = standing.row
    shown = ("failures", "failure_threshold", "successes", "success_threshold", "cooldown_us")
    open_now = row["state"] == OPEN.name
    return {
        "id": public_id(BREAKER.name, row["id"]),
        "name": row["name"],
        "state": row["state"],
        "status": row["state"],
        **{column: row[column] for column in shown},
        "held": standing.held,
        "opened_at": None if row["opened_at"] is None else rfc3339(row["opened_at"]),
        "probe_at": rfc3339(row["probe_at"]) if open_now else None,
        "probe": None if row["probe_job"] is None else public_id(JOB.name, row["probe_job"]),
        "error": row["error"],
        "updated_at": rfc3339(row["updated_at"]),
    }


# --- in a transaction


async def _moved(tx: Transaction, row: Row, trigger: str, **facts: Any) -> bool:
    """Whether the breaker made that move."""
    decision = decide(BREAKER, row, trigger, **facts)
    return isinstance(decision, Change) and not await tx.apply([decision])


async def locked(tx: Transaction, tenant_id: int, name: str) -> Row:
    """A breaker that is there, locked until the transaction is over."""
    row = await tx.lock_breaker(tenant_id, name)
    assert row is not None  # noqa: S101 - breakers are never deleted
    return row


def _is_probe(row: Row, job: Job) -> bool:
    return bool((row["probe_job"], row["probe_epoch"]) == (job.id, job.epoch))


def _unheld(change: Change) -> Change:
    return change._replace(values={**change.values, "held_by": None})


def _job(id: int) -> dict[str, str]:
    return {"job": public_id(JOB.name, id)}


def _of_job(id: int) -> str:
    return json.dumps(_job(id))


def _short(error: str | None) -> str:
    return (error or "it failed")[:LONGEST_ERROR]


def _lock_number(tenant_id: int, name: str) -> int:
    """Whoever makes a breaker waits for others who do. Keys of flows are far larger than these numbers."""
    return int.from_bytes(hashlib.sha256(f"breaker {tenant_id} {name}".encode()).digest()[:4], "big")
