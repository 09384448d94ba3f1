"""Process what workers without a database report about the jobs that they hold, in the server.

Each report names the worker and the epoch of its claim. A report from a worker that no longer holds the job changes
nothing and gets `LeaseLost`. Outcomes lead to the same moves, by the same decisions and the same use case, as in a
worker with a database. A repeated report, after a lost response, gets the same response as the first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.core.lifecycles.job import ASSIGNED, CANCELLED, RUNNING
from keptwork.core.validation import check_name, plain_json
from keptwork.errors import BadInput, LeaseLost, NotFound
from keptwork.jobs import complete, queries
from keptwork.jobs.outcome import LARGEST_IN_ROW, Raised, Release, Suspend, plain, result_text
from keptwork.jobs.outcome import settle as decided
from keptwork.jobs.results_artifacts import check_media_type
from keptwork.jobs.results_artifacts import check_name as check_artifact
from keptwork.outcomes import Cancel, PermanentError, TransientError, ValidationError
from keptwork.store import Artifact, Blob, EventFilter, Job, Store, Transaction
from keptwork.store.contract.checkpoints import Report as Progress
from keptwork.store.contract.checkpoints import Save
from keptwork.store.contract.checkpoints_blob_service import content_of
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.workers import commands as workers
from keptwork.workers.checkpoint_writer import KEPT_US, report
from keptwork.workers.heartbeat import KEPT_US as DOING_KEPT_US
from keptwork.workers.heartbeat import KIND as HEARTBEAT
from keptwork.workers.registration import Order, understood

HELD = (ASSIGNED.name, RUNNING.name)
_SEEN = ("id", "tenant_id", "state", "epoch", "owner", "lease_until", "cancel_requested_at")
LARGEST_DOING = 16 << 10
LATEST_EVENTS = 200
"""Number of events that are searched for an earlier report."""

Kind = Literal["transient", "permanent", "validation", "timeout"]
ERRORS: dict[str, type[Exception]] = {
    "transient": TransientError,
    "permanent": PermanentError,
    "validation": ValidationError,
    "timeout": TimeoutError,
}


class Claim(NamedTuple):
    """A worker's claim to a job. The IDs are public ones."""

    tenant_id: int
    worker: str
    job: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A job's error, and when to retry it if that is known."""

    message: str
    kind: Kind = "transient"
    stage: str = "exec"
    retry_us: int | None = None

    @property
    def said(self) -> Raised:
        error = ERRORS[self.kind](self.message)
        if self.retry_us is not None:
            error.delay_us = self.retry_us  # type: ignore[attr-defined]  # read when the job is settled
        return Raised(error, self.stage, plain(self.message))


Said = Failure | Suspend | Release | Cancel | Any
"""The outcome of a job. A value of any other type is its result."""


class Settled(NamedTuple):
    """The completed job: its move and the resulting state."""

    job: str
    epoch: int
    move: str
    state: str


class Standing(NamedTuple):
    """Whether the worker still holds a job, and whether the job must stop: by request (`soft`) or because it was
    cancelled (`hard`)."""

    job: str
    epoch: int
    held: bool
    cancel: Literal["soft", "hard"] | None


class Beat(NamedTuple):
    """The state of a worker and its jobs, and the order for the worker, if there is one."""

    state: str
    order: Order | None
    jobs: list[Standing]


# --- the worker


async def heartbeat(
    store: Store,
    tenant_id: int,
    worker: str,
    tokens: Sequence[tuple[str, int]],
    lease_us: int | None,
    doing: dict[str, Any] | None = None,
) -> Beat:
    """Record that a worker is alive and, with a lease length, renew the leases of the jobs that it names."""
    key = (await workers.find(store, tenant_id, worker))["id"]
    standing = await store.beat(key)
    if doing is not None:
        seen = plain_json("what it does", doing)
        if len(seen) > LARGEST_DOING:
            raise BadInput(what=f"{len(seen):,} bytes of what it does are over the limit of {LARGEST_DOING >> 10} KiB")
        await store.record_telemetry(WORKER, key, HEARTBEAT, seen, ttl_us=DOING_KEPT_US, tenant_id=tenant_id)
    stands = await _stands(store, tenant_id, key, tokens, lease_us) if tokens else []
    return Beat(WORKER.initial.name if standing is None else standing.state, understood(standing), stands)


async def _stands(
    store: Store, tenant_id: int, worker: int, tokens: Sequence[tuple[str, int]], lease_us: int | None
) -> list[Standing]:
    keys = {(id, epoch): (_key(id), epoch) for id, epoch in tokens}
    named = list(dict.fromkeys(keys.values()))
    lost = set(await store.renew(worker, named, lease_us)) if lease_us is not None else set()
    rows = await store.rows(JOB, list(dict.fromkeys(job for job, _ in named)), _SEEN)
    found = {row["id"]: row for row in rows if row["tenant_id"] == tenant_id}
    now = await store.now()
    return [
        _standing(id, epoch, found.get(token[0]), worker, lost=token in lost, now=now)
        for (id, epoch), token in keys.items()
    ]


def _key(id: str) -> int:
    """Return the key of a job's ID, or 0, which no job has."""
    return (ids.key_of(id) or ("", 0))[1]


def _standing(id: str, epoch: int, row: dict[str, Any] | None, worker: int, *, lost: bool, now: int) -> Standing:
    if row is None:
        return Standing(id, epoch, held=False, cancel=None)
    mine = row["epoch"] == epoch and row["owner"] == worker and row["state"] in HELD
    if mine and not lost and row["lease_until"] > now:
        return Standing(id, epoch, held=True, cancel="soft" if row["cancel_requested_at"] is not None else None)
    return Standing(id, epoch, held=False, cancel="hard" if row["state"] == CANCELLED.name else None)


# --- while a job is held


async def start(store: Store, claim: Claim, lease_us: int | None = None) -> Settled:
    """Start a job that is only assigned. A job that has already started under the same claim continues."""
    job = await _claimed(store, claim)
    if job.state == ASSIGNED.name:
        change = insist(decide(JOB, job, "start", token=job.token, actor=f"w:{job.owner}"))
        if await complete.applied(store, [change]):
            raise _lost(claim, "start")
    if lease_us is not None and await store.renew(job.owner or 0, [(job.id, job.epoch)], lease_us):
        raise _lost(claim, "start")
    return Settled(claim.job, claim.epoch, "start", RUNNING.name)


async def checkpoint(
    store: Store, claim: Claim, name: str, value: Any, code: str | None = None, version: int = 0
) -> tuple[bool, Any]:
    """Store the result of a step. Return whether this result is the stored one, and the stored one."""
    check_name("step", name)
    try:
        text = result_text(value)
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"the step {name!r} has what cannot be kept: {error}") from None
    job = await _claimed(store, claim)
    blob = Blob.of(text.encode()) if len(text) > LARGEST_IN_ROW else None
    save = Save(job, name, blob.note if blob else text, blob, code, version)
    (stands,) = await store.checkpoint([save])
    if stands is None:
        raise _lost(claim, "checkpoint")
    if stands == save.result:
        return True, value
    return False, await kept(store, claim.tenant_id, claim.job, name)


async def kept(store: Store, tenant_id: int, id: str, name: str) -> Any:
    """Return the stored result of a job's step, also if it is a blob."""
    job = (await queries.find(store, tenant_id, id))["id"]
    for one in await store.checkpoints(tenant_id, job):
        if one.name == name:
            return json.loads(one.result if one.hash is None else await content_of(store, tenant_id, one.hash))
    raise NotFound(what="checkpoint", id=repr(name), listing=f"keptwork jobs show {id}")


async def progress(store: Store, claim: Claim, fraction: float, text: str) -> None:
    """Store the progress of a job for display."""
    try:
        said = report(fraction, text)
    except PermanentError as error:
        raise BadInput(what=str(error)) from None
    job = await _claimed(store, claim)

    async def note(tx: Transaction) -> bool:
        if not await tx.still_claimed(job):
            return False
        await tx.note_progress([Progress(job, said)], KEPT_US)
        return True

    if not await store.atomically(note):
        raise _lost(claim, "progress")


async def keep_artifact(store: Store, claim: Claim, name: str, content: bytes, media_type: str) -> Artifact:
    """Store an artifact of the job."""
    check_artifact(name)
    check_media_type(media_type)
    return await store.keep_artifact(await _claimed(store, claim), name, Blob.of(content), media_type)


# --- completion


async def settle_one(store: Store, claim: Claim, said: Said) -> Settled:
    """Complete a job. Raise `LeaseLost` if the worker no longer holds it."""
    await queries.find(store, claim.tenant_id, claim.job)
    (settled,) = await settle_all(store, claim.tenant_id, claim.worker, [(claim.job, claim.epoch, said)])
    if settled is None:
        raise _lost(claim, _word(said))
    return settled


async def settle_all(
    store: Store, tenant_id: int, worker: str, reports: Sequence[tuple[str, int, Said]]
) -> list[Settled | None]:
    """Complete several jobs in one transaction. Return None for each job that the worker no longer holds."""
    key = (await workers.find(store, tenant_id, worker))["id"]
    found = [await _as_claimed(store, Claim(tenant_id, worker, job, epoch), key) for job, epoch, _ in reports]
    changes = [
        None if job is None else decided(job, None, _meant(said), random.random, f"w:{key}")
        for job, (_, _, said) in zip(found, reports, strict=True)
    ]
    wanted = sorted((one for one in changes if one is not None), key=lambda change: change.move.trigger)
    late = await complete.applied(store, wanted) if wanted else []
    return [
        None if change is None or change in late else Settled(job, epoch, change.move.trigger, change.move.target.name)
        for change, (job, epoch, _) in zip(changes, reports, strict=True)
    ]


def _meant(said: Said) -> Any:
    return said.said if isinstance(said, Failure) else said


def _word(said: Said) -> str:
    words = {Failure: "fail", Suspend: "snooze", Release: "release", Cancel: "cancel"}
    return next((word for kind, word in words.items() if isinstance(said, kind)), "succeed")


# --- the claim


async def _claimed(store: Store, claim: Claim) -> Job:
    """Return the job if exactly this claim holds it. The write that follows checks again."""
    worker = (await workers.find(store, claim.tenant_id, claim.worker))["id"]
    job = _job(await queries.find(store, claim.tenant_id, claim.job))
    mine = (job.owner, job.epoch) == (worker, claim.epoch) and job.state in HELD
    if not mine or (job.lease_until or 0) <= await store.now():
        raise _lost(claim, "report")
    return job


async def _as_claimed(store: Store, claim: Claim, worker: int) -> Job | None:
    """Return the job as it was when this claim held it, or None if it never did. That is the job now or, according to
    the event log, the job before its worker reported the same outcome earlier."""
    row = await store.get(JOB, _key(claim.job), claim.tenant_id)
    if row is None:
        return None
    job = _job(row)
    if (job.owner, job.epoch) == (worker, claim.epoch) and job.state in HELD:
        return job
    wanted = EventFilter(tenant_id=claim.tenant_id, entity=JOB.name, entity_id=job.id)
    for event in await store.events(wanted, limit=LATEST_EVENTS, newest_first=True):
        if event.epoch == claim.epoch and event.to_state in HELD and event.actor == f"w:{worker}":
            claimed = replace(job, state=event.to_state, seq=event.seq, epoch=event.epoch)
            return replace(claimed, owner=worker, lease_until=1)
    return None


def _job(row: dict[str, Any]) -> Job:
    return Job(**{name: row[name] for name in JOB_COLUMNS})


def _lost(claim: Claim, trigger: str) -> LeaseLost:
    return LeaseLost(lifecycle=JOB.name, id=claim.job, trigger=trigger)
