"""Decide the move of a job from the outcome of its handler. Pure: randomness is passed in."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keptwork.core.durations import span_us
from keptwork.core.lifecycles import JOB, Change, decide, insist
from keptwork.core.lifecycles.job import ASSIGNED, RUNNING
from keptwork.errors import BadInput
from keptwork.flows.inline_batch import STRETCH, Stretch
from keptwork.job import JobType
from keptwork.jobs import complete
from keptwork.outcomes import Cancel, PermanentError, Snooze, ValidationError
from keptwork.store import Blob, Job, JobFilter, Store
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB
from keptwork.store.contract.waits import APPROVAL

# Handle expired leases and the leases of dead workers.


MOST_AT_ONCE = 10_000


LEASE_ENDED = "the lease of its worker ended"


async def reclaim(store: Store, worker: int, why: str) -> int:
    """Reclaim the jobs of a worker whose process no longer exists.

    Return how many there were. Their leases end now, with the usual rules for expired leases.
    """
    wanted = JobFilter(states=(ASSIGNED.name, RUNNING.name), owner=worker)
    tokens = [
        (row["id"], row["epoch"]) for row in await store.jobs(wanted, limit=MOST_AT_ONCE, columns=("id", "epoch"))
    ]
    if tokens:
        await store.renew(worker, tokens, 0)
        now = await store.now()
        found = [job for job in await store.overdue(MOST_AT_ONCE) if job.owner == worker]
        changes = sorted((reaped(job, now, why) for job in found), key=lambda change: change.move.trigger)
        await complete.applied(store, changes)
    return len(tokens)


def reaped(job: Job, now: int, why: str = LEASE_ENDED) -> Change:
    """Return a job to the queue while it has attempts left. Otherwise end it as its policy requires."""
    error = f"{why} in attempt {job.attempts} of {job.max_attempts}"
    facts: dict[str, Any] = {"now": max(now, job.lease_until or 0), "lease_over": True, "actor": "reaper"}
    if job.attempts < job.max_attempts:
        return insist(decide(JOB, job, "expire", reason=error, **facts))
    values = {"error": error}
    if job.on_exhausted == "fail":
        return insist(decide(JOB, job, "fail", reason=error, values=values, **facts))
    detail = json.dumps({"stage": "exec", "last_lease_expires_at": job.lease_until})
    code = "exhausted_retries"
    return insist(decide(JOB, job, "dead_letter", reason=code, reason_code=code, detail=detail, values=values, **facts))


# Classify an exception for its job. An exception group counts as all of its members together.
#
# This module does not choose the move of the job; see outcome.py.


def members(error: BaseException) -> list[BaseException]:
    """Return the exceptions inside nested groups, in order. Return any other exception as the only member.

    >>> members(ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [KeyError(2)])]))
    [ValueError(1), KeyError(2)]
    """
    found, left = [], [error]
    while left:
        first = left.pop()
        if isinstance(first, BaseExceptionGroup):
            left += reversed(first.exceptions)
        else:
            found.append(first)
    return found


def is_permanent(error: BaseException) -> bool:
    """Return whether another attempt cannot help. One permanent member makes its group permanent."""
    if isinstance(error, BaseExceptionGroup) and any(isinstance(one, ValidationError) for one in members(error)):
        return True
    return any(isinstance(one, PermanentError) or getattr(one, "final", False) for one in (error, *members(error)))


def is_timeout(error: BaseException) -> bool:
    """Return whether the attempt failed by time-outs alone."""
    return all(isinstance(one, TimeoutError) for one in members(error))


def blames_job(error: BaseException) -> bool:
    """Return whether the job itself is wrong, rather than a service that its handler uses."""
    return all(isinstance(one, ValidationError | PermanentError) for one in members(error))


def delay_us(error: BaseException) -> int | None:
    """Return the longest delay that the exception or one of its members requests, or None."""
    asked = (getattr(one, "delay_us", None) for one in (error, *members(error)))
    return max((delay for delay in asked if delay is not None), default=None)


Chance = Callable[[], float]

LONGEST_TEXT = 4000
LONGEST_WAITS = 400
LONGEST_SUMMARY, SHORTEST_MESSAGE = 200, 60
LARGEST_RESULT = 16 << 20
LARGEST_IN_ROW = 8 << 10
FOREVER_US = 100 * 365 * 86_400_000_000
DEFAULT_BACKOFF_US = (500_000, 60_000_000)
TICK_US = 50_000

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Release:
    """The worker releases the job unfinished, without spending the attempt.

    The job is due again immediately or, with `backs_off`, after a backoff in which other workers can claim it. With
    `held_by`, no worker claims it until that hold is lifted.
    """

    reason: str = "worker drains"
    backs_off: bool = False
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """The handler waits: the job goes back into the queue and occupies no worker.

    The job is due at `until` (µs) or when what it waits for arrives, whichever is first; None means a hundred years.
    `seen` is how much of what it waits for the handler has seen, so that the write of the wait can detect what arrived
    since. With `held_by`, the job is not due before that hold is lifted. A suspension for several waits has them in
    `waits`; any of them ends it.
    """

    waits_for: str
    until: int | None = None
    seen: int = 0
    held_by: str | None = None
    waits: tuple[Suspend, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised. `stage` is how far it got: fetch, input, exec, output, or commit.

    An exception from another process comes as `text` and `traceback`, and `error` then only has the matching class.
    """

    error: BaseException
    stage: str = "exec"
    text: str | None = None
    traceback: str | None = None

    @property
    def described(self) -> str:
        return described(self.error) if self.text is None else plain(self.text)


def settle(job: Job, kind: JobType | None, said: Any, chance: Chance, actor: str) -> Change:
    """Return the move that follows from the outcome, decided as the holder of the lease. Every outcome has one."""
    if isinstance(said, Raised):
        return _settle_error(job, kind, said, chance, actor)
    try:
        trigger, facts = _understood(said)
        if isinstance(said, Release) and said.backs_off:
            facts["values"]["delay_us"] = backoff_us(None, job.epoch + 1, chance)
    except (BadInput, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        wrong = PermanentError(f"the handler returned what cannot be kept: {error}")
        return _settle_error(job, kind, Raised(wrong, "output"), chance, actor)
    return _decided(job, trigger, actor, **facts)


def all_of(waits: Sequence[Suspend]) -> Suspend:
    """Return one suspension for several waits, due at the earliest of their ends. Approvals are named first."""
    if len(waits) == 1:
        return waits[0]
    names = sorted(dict.fromkeys(one.waits_for for one in waits), key=lambda name: not name.startswith(APPROVAL))
    ends = [one.until for one in waits if one.until is not None]
    held_by = next((one.held_by for one in waits if one.held_by is not None), None)
    return Suspend(_listed_names(names), min(ends, default=None), 0, held_by, tuple(waits))


def _listed_names(names: Sequence[str]) -> str:
    """Name several waits in one text, which is short because it is indexed."""
    text = ", ".join(names)
    if len(text) <= LONGEST_WAITS:
        return text
    more = f" and more ({len(names)} in all)"
    return text[: LONGEST_WAITS - len(more)] + more


def due_soon(changes: Iterable[Change], now_us: int, within: float) -> set[float]:
    """Return in how many seconds to check again for jobs that are due within `within` seconds.

    The delays are rounded up to 50 ms, which limits the number of checks.
    """
    delays = (_delay_us(change.values, now_us) for change in changes)
    seconds = (math.ceil(delay / TICK_US) * TICK_US / 1_000_000 for delay in delays if delay > 0)
    return {one for one in seconds if one < within}


def _delay_us(values: Mapping[str, Any], now_us: int) -> int:
    """Return the time until the job is due, or 0 if it was not delayed."""
    until: int | None = values.get("run_at")
    return until - now_us if until is not None else values.get("delay_us") or 0


def backoff_us(kind: JobType | None, attempt: int, chance: Chance) -> int:
    """Return a random backoff before the next attempt.

    Its maximum doubles with each attempt, so that jobs spread out.
    """
    base, cap = (kind.backoff_us, kind.backoff_cap_us) if kind else DEFAULT_BACKOFF_US
    longest = min(base << min(max(attempt - 1, 0), 40), cap)
    return round(longest * chance())


def _understood(said: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(said, Snooze):
        return "snooze", {"values": {"delay_us": span_us(said.delay)}}
    if isinstance(said, Suspend):
        return "snooze", {"reason": f"waits for {said.waits_for}", "values": _wait(said)}
    if isinstance(said, Release):
        held = {} if said.held_by is None else {"held_by": said.held_by}
        return "release", {"reason": plain(said.reason), "values": {"delay_us": 0, **held}}
    if isinstance(said, Cancel):
        return "cancel", {"reason": plain(str(said.reason)) or None}
    if isinstance(said, Stretch):
        return "succeed", {"values": {**_result(result_text(said.output)), STRETCH: said}}
    return "succeed", {"values": {"result": None} if said is None else _result(result_text(said))}


def _wait(said: Suspend) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run_at": said.until,
        "delay_us": FOREVER_US,
        "waits_for": said.waits_for,
        "seen": said.seen,
    }
    if said.waits:
        values["waits"] = [(one.waits_for, one.until, one.seen) for one in said.waits]
    return values if said.held_by is None else {**values, "held_by": said.held_by}


def _result(text: str) -> dict[str, Any]:
    """Return the columns of a result. A small result is stored in the row; a large one becomes a blob, which the row
    names."""
    if len(text) <= LARGEST_IN_ROW:
        return {"result": text}
    blob = Blob.of(text.encode())
    return {"result": blob.note, RESULT_BLOB: blob}


def result_text(result: Any) -> str:
    """Return a result in its stored form. Raise if JSON cannot hold it, or if it is too large."""
    text = _encode(result)
    if len(text) > LARGEST_RESULT:
        raise ValueError(f"a result of {len(text):,} bytes is over the limit of {LARGEST_RESULT >> 20} MiB")
    return text


def _settle_error(job: Job, kind: JobType | None, raised: Raised, chance: Chance, actor: str) -> Change:
    error, detail = raised.described, json.dumps({"stage": raised.stage})
    if isinstance(raised.error, ValidationError):
        return _dead_letter(job, "validation_failed", "input", error, actor)
    if is_permanent(raised.error):
        return _decided(job, "fail", actor, permanent=True, reason=error, detail=detail, values={"error": error})
    if job.attempts < job.max_attempts:
        asked = delay_us(raised.error)
        values = {"error": error, "delay_us": backoff_us(kind, job.attempts, chance) if asked is None else asked}
        return _decided(job, "retry", actor, reason=error, detail=detail, values=values)
    if job.on_exhausted == "fail":
        return _decided(job, "fail", actor, reason=error, detail=detail, values={"error": error})
    code = "timeout" if is_timeout(raised.error) else "exhausted_retries"
    return _dead_letter(job, code, raised.stage, error, actor)


def _dead_letter(job: Job, code: str, stage: str, error: str, actor: str) -> Change:
    detail = json.dumps({"stage": stage, "last_lease_expires_at": job.lease_until})
    return _decided(job, "dead_letter", actor, reason=code, reason_code=code, detail=detail, values={"error": error})


def _decided(job: Job, trigger: str, actor: str, **facts: Any) -> Change:
    return insist(decide(JOB, job, trigger, token=job.token, actor=actor, **facts))


def described(error: BaseException) -> str:
    """Return the type and message of an exception and, for a group, those of all its members."""
    if not isinstance(error, BaseExceptionGroup):
        return plain(_worded(error))
    return plain(f"{_worded(error)[:LONGEST_SUMMARY]}: {'; '.join(_listed(members(error)))}")


def plain(text: str) -> str:
    """Return a text that every database accepts: no NUL, no unpaired surrogate, limited length."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _listed(errors: list[BaseException]) -> Iterator[str]:
    """Shorten long messages, so that one of them does not displace the others."""
    counted = Counter(_worded(one) for one in errors)
    share = max((LONGEST_TEXT - LONGEST_SUMMARY) // len(counted) - 20, SHORTEST_MESSAGE)
    for text, count in counted.items():
        short = text if len(text) <= share else f"{text[: share - 1]}…"
        yield short if count == 1 else f"{short} ({count} times)"


def _worded(error: BaseException) -> str:
    """Return the type and message of any exception."""
    try:
        text = str(error)
    except Exception:
        text = "it cannot say what is wrong"  # an exception whose own __str__ raises
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
