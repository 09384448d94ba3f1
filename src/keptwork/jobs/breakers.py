"""Circuit breakers: check them before a job runs, report its outcome, and watch open ones.

A breaker is a row of a tenant, shared by all workers, with a declared lifecycle. Every change locks the row first, so
that there is one probe across all workers, and no job is held by a breaker that has just closed. The probe is a claim:
it lasts as long as the lease of the job that probes. `held_jobs` handles the jobs that breakers hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from keptwork.core import durations
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import BREAKER, JOB, Change, decide
from keptwork.core.lifecycles.breaker import CLOSED, HALF_OPEN, OPEN
from keptwork.errors import NotFound
from keptwork.jobs.breaker import HOLD, Breaker
from keptwork.store import Event, EventFilter, Job, Store, Transaction
from keptwork.store.contract.breakers import BreakerView, Row

WATCH = "breaker-watch"
TOOL = "tool:"
"""Prefix of the names of tools' breakers."""

LONGEST_ERROR = 500
MOST_EVENTS = 50


class Answer(StrEnum):
    """A breaker's decision about a job that needs it."""

    GO = "go"
    PROBE = "probe"
    HOLD = "hold"
    FAIL = "fail"


class Admission(NamedTuple):
    """The decision, its reason if the job must not run, and the hold to set on the job, if any."""

    answer: Answer
    says: str = ""
    held_by: str | None = None

    @property
    def goes(self) -> bool:
        return self.answer in (Answer.GO, Answer.PROBE)


class Report(NamedTuple):
    """The outcome that a completed job reports to its breaker.

    `ok` is True if the service works, False if it failed, and None if the job did not show either. `held` means that
    the job returns to the queue with the breaker's hold.
    """

    job: Job
    name: str
    ok: bool | None
    error: str | None = None
    held: bool = False

    @property
    def whose(self) -> tuple[int, str]:
        return self.job.tenant_id, self.name


# --- before the job runs


async def admit(store: Store, job: Job, breaker: Breaker) -> Admission:
    """Decide whether a claimed job may run.

    If the breaker is closed, this takes one read. After the cooldown, one job across all workers becomes the probe. A
    repeated call gives the probe the same decision.
    """
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
    """Return the locked row of a breaker with its current settings. Create it closed on first use."""
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
    """Return a breaker that is ready for a probe, or None during the cooldown or another probe.

    A breaker whose probe was lost reopens first, so that the log shows the loss.
    """
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
    if row["state"] == HALF_OPEN.name:  # one successful probe was not enough, so the next job probes
        return bool(await tx.amend(BREAKER, [row["id"]], row["tenant_id"], **probe, candidate=None))
    facts = {"now": await tx.now(), "actor": f"w:{job.owner}", "detail": _of_job(job.id), "values": probe}
    return await _moved(tx, row, "probe", **facts)


def _refused(breaker: Breaker, row: Row) -> Admission:
    says = described(row)
    if breaker.on_open == "fail":
        return Admission(Answer.FAIL, f"{says}; the job is declared to fail then")
    return Admission(Answer.HOLD, says, breaker.hold)


def described(row: Row) -> str:
    """Return a breaker's state, the time when it opened, and its last error, as text."""
    since = "" if row["opened_at"] is None else f", open since {rfc3339(row['opened_at'])}"
    last = f": {row['error']}" if row["error"] else ""
    return f"the breaker {row['name']} is {row['state']}{since}{last}"


# --- after the job ran


class Settled(NamedTuple):
    """The changes that came too late, and whether a breaker might have moved."""

    late: list[Change]
    stirred: bool


Write = Callable[[Transaction, Sequence[Change]], Awaitable[list[Change]]]
"""Writes changes and returns those that came too late."""


def plainly(tx: Transaction, changes: Sequence[Change]) -> Awaitable[list[Change]]:
    """Write changes and nothing else."""
    return tx.apply(changes)


async def settle(
    tx: Transaction, changes: Sequence[Change], reports: Sequence[Report], write: Write = plainly
) -> Settled:
    """Write the outcomes of jobs and report them to their breakers, in one transaction.

    Reports of late changes do not count. A job that returns to the queue with the hold of a breaker that has closed is
    not held. The breakers are locked before anything else.
    """
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
    """Report the outcome of a job to a breaker, in the transaction that completes the job."""
    row = await tx.breaker(tenant_id, name)
    told = Report(job, name, ok, error)
    if row is not None and _matters(row, told):
        await _told(tx, await locked(tx, tenant_id, name), told)


async def _concerned(tx: Transaction, reports: Sequence[Report]) -> dict[tuple[int, str], Row]:
    """Lock the breakers that these reports can change, in sorted order, and return them.

    A success needs no lock if the breaker is closed and has counted no failures.
    """
    rows: dict[tuple[int, str], Row] = {}
    for whose in sorted({report.whose for report in reports}):
        row = await tx.breaker(*whose)
        if row is not None and any(_matters(row, report) for report in reports if report.whose == whose):
            rows[whose] = await locked(tx, *whose)
    return rows


async def _unsettled(tx: Transaction, reports: Sequence[Report]) -> set[int]:
    """Return the jobs that are still as they were claimed.

    A job that completed before, and is written again after a lost response, has reported to its breaker already.
    """
    if not reports:
        return set()
    known = {report.job.id: report.job for report in reports}
    rows = await tx.rows(JOB, list(known), ("id", "seq", "epoch"))
    return {row["id"] for row in rows if (row["seq"], row["epoch"]) == (known[row["id"]].seq, known[row["id"]].epoch)}


def _matters(row: Row, told: Report) -> bool:
    """Return whether a report changes the breaker in its current state.

    Late reports of jobs that are not the probe do not.
    """
    if told.held:
        return True
    if row["state"] == CLOSED.name:
        return told.ok is False or (told.ok is True and row["failures"] > 0)
    return bool(row["state"] == HALF_OPEN.name and _is_probe(row, told.job))


async def _told(tx: Transaction, row: Row, told: Report) -> None:
    """Apply a report to a locked breaker."""
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
    """Return a breaker and its number of held jobs.

    The breaker of a tool can also be named by the tool. Raise `NotFound` for an unknown name.
    """
    found = await store.breakers(tenant_id, name) or await store.breakers(tenant_id, f"{TOOL}{name}")
    if not found:
        raise NotFound(what="breaker", id=repr(name), listing="keptwork breakers list")
    return found[0]


class Page(NamedTuple):
    """A page of breakers, and the name of its last breaker if there are more."""

    breakers: list[BreakerView]
    next: str | None


async def page(store: Store, tenant_id: int, *, after: str | None = None, limit: int = 50) -> Page:
    """Return one page of a tenant's breakers, by name."""
    every = sorted(await store.breakers(tenant_id), key=lambda one: str(one.row["name"]))
    found = [one for one in every if after is None or one.row["name"] > after]
    return Page(found[:limit], found[limit - 1].row["name"] if len(found) > limit else None)


async def show(store: Store, tenant_id: int, name: str) -> tuple[BreakerView, list[Event]]:
    """Return a breaker and its latest events, oldest first."""
    standing = await find(store, tenant_id, name)
    wanted = EventFilter(tenant_id, BREAKER.name, standing.row["id"])
    return standing, (await store.events(wanted, limit=MOST_EVENTS, newest_first=True))[::-1]


async def holding(store: Store, job: Row) -> Row | None:
    """Return the breaker that holds a job, from the job's whole row, or None if no breaker does."""
    held_by = job["held_by"] or ""
    return await store.breaker(job["tenant_id"], held_by.removeprefix(HOLD)) if held_by.startswith(HOLD) else None


def what_next(standing: BreakerView, now: int) -> str:
    """Return the next move of a breaker and its time, as text."""
    row = standing.row
    if row["state"] == CLOSED.name:
        return f"lets {standing.held:,} jobs go" if standing.held else "–"
    since = "" if row["opened_at"] is None else f", opened {durations.ago(row['opened_at'], now)}"
    if row["state"] == OPEN.name:
        ahead = row["probe_at"] - now
        return f"opens a probe in {durations.ahead(ahead)}{since}" if ahead > 0 else f"the next job is the probe{since}"
    if row["probe_job"] is None:
        return f"the next job is the probe{since}"
    return f"{public_id(JOB.name, row['probe_job'])} is the probe{since}"


def as_json(standing: BreakerView) -> dict[str, Any]:
    """Return a breaker in the form that commands print."""
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
    """Move a breaker if its lifecycle allows it, and return whether it moved."""
    decision = decide(BREAKER, row, trigger, **facts)
    return isinstance(decision, Change) and not await tx.apply([decision])


async def locked(tx: Transaction, tenant_id: int, name: str) -> Row:
    """Return an existing breaker, locked until the transaction ends."""
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
    """Return the lock that serializes the creation of a breaker.

    Flow keys are far larger, so it collides with none.
    """
    return int.from_bytes(hashlib.sha256(f"breaker {tenant_id} {name}".encode()).digest()[:4], "big")
