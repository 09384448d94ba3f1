"""The store of a worker without a database: the operations of a worker, sent to a server over HTTP.

It has the operations for claiming, running, and completing jobs. Any other operation needs a database and raises
`NeedsDatabase`. An unreachable server is treated like an unreachable database: a transient error that the worker
retries while its leases last. Jobs arrive here without the flow they belong to: the server applies the consequences of
their completion in the same transaction.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from keptwork import errors
from keptwork.client.retry import Patience
from keptwork.client.wire import Wire, segment
from keptwork.core import ids
from keptwork.core.durations import moment_us
from keptwork.core.lifecycles import JOB, WORKER, Change, Lifecycle, Verb
from keptwork.core.secrets import Key
from keptwork.errors import KeptworkError, LeaseLost, NeedsDatabase, ServerAway, ServerRefuses, StoreError
from keptwork.outcomes import PermanentError
from keptwork.store import Artifact, Blob, Job
from keptwork.store.contract.checkpoints import Checkpoint, Report, Save
from keptwork.store.contract.records import Held, Standing
from keptwork.store.counters import Tally
from keptwork.workers.registration import Order
from keptwork.workers.remote.outcomes import LARGEST_BODY, MOST_AT_ONCE, Document, compact, parts

WAIT_SECONDS = 20.0
SPARE_SECONDS = 10.0
FRESH_SECONDS = 0.9
LONGEST_LEASE = 3600.0
ONE_TRY = Patience(connect_seconds=5.0, read_seconds=15.0, tries=1)

T = TypeVar("T")

_PASSING = (errors.NoAnswer, errors.InternalError, errors.ShuttingDown, errors.FlowBusy, errors.RequestInFlight)


class Hand:
    """The jobs in hand, shared by the stores of all threads: their epochs, stored checkpoints, and steps."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.checkpoints: dict[int, dict[str, Document]] = {}
        self.steps: dict[int, Document] = {}

    def take(self, job: Job, told: Document) -> None:
        self.epochs[job.id] = job.epoch
        self.checkpoints[job.id] = {one["name"]: one for one in told["checkpoints"]}
        if told["step"] is not None:
            self.steps[job.id] = told["step"]

    def drop(self, job: int, epoch: int) -> None:
        if self.epochs.get(job) == epoch:
            for kept in (self.epochs, self.checkpoints, self.steps):
                kept.pop(job, None)


class RemoteStore:
    """The part of `Store` that a worker needs. There is one for each event loop; they share the jobs in hand."""

    def __init__(self, server: str, key: Key, hand: Hand | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wire = Wire(server, key, patience=ONE_TRY)
        self._key = key
        self.hand = hand or Hand()
        self._wait = wait_seconds
        self._leaving = asyncio.Event()
        self._heard: Callable[[], None] = lambda: None
        self._seen: tuple[float, Standing] | None = None
        self._clock: tuple[float, int] | None = None
        self.tally = Tally()

    def __getattr__(self, name: str) -> Any:
        raise NeedsDatabase(what=name.replace("_", " "))

    @property
    def url(self) -> str:
        """The server's URL, without secrets."""
        return self._wire.server

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[RemoteStore]:
        """Open another store for another event loop, with connections of its own."""
        store = RemoteStore(self.url, self._key, self.hand)
        try:
            yield store
        finally:
            await store.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Send a claim again immediately after it returned nothing: the server does the waiting."""
        self._heard = heard
        return self._forget

    def _forget(self) -> None:
        self._heard = lambda: None

    def hang_up(self) -> None:
        """Give up a waiting claim, because the worker is about to end."""
        self._leaving.set()

    # --- time and counters

    async def now(self) -> int:
        """Return the server's latest time plus the time that has passed since."""
        if self._clock is None:
            return time.time_ns() // 1000
        at, told = self._clock
        return told + round((time.monotonic() - at) * 1_000_000)

    async def count(self, counted: Sequence[object]) -> bool:
        """Do nothing: the server counts its requests."""
        return True

    # --- the worker's own row

    async def create(self, lifecycle: Lifecycle, **columns: Any) -> int:
        """Register a worker."""
        said = json.loads(columns["serves"])
        place = {"host": columns["host"], "pid": columns["pid"]}
        body = {"name": columns["name"], "workspace_id": columns["workspace_id"], **said, "metadata": place}
        made = await self._asked(self._wire.change(Document, "POST", "/api/workers", body))
        return _key_of(made["id"])

    async def get(self, lifecycle: Lifecycle, id: int, tenant_id: int | None) -> Document | None:
        """Return a worker with the columns that decide its next move."""
        standing = await self.beat(id)
        return standing and {"id": id, "tenant_id": 0, "seq": 0, "epoch": 0, **standing._asdict()}

    async def rows(self, lifecycle: Lifecycle, ids: Sequence[int], columns: Sequence[str] = ()) -> list[Document]:
        """Return the state of a worker, from the latest response if that is fresh, otherwise from the server."""
        if lifecycle is not WORKER:
            raise NeedsDatabase(what=f"look at any {lifecycle.name}")
        at, standing = self._seen or (0.0, None)
        fresh = standing if time.monotonic() - at < FRESH_SECONDS else await self.beat(ids[0])
        return [] if fresh is None else [fresh._asdict()]

    async def beat(self, worker: int) -> Standing | None:
        """Report that the worker is alive, and return its state."""
        await self._beat(worker, {"jobs": []})
        return self._seen and self._seen[1]

    async def record_telemetry(self, lifecycle: Lifecycle, id: int, kind: str, payload: str, **_: Any) -> None:
        """Report the worker's activity for display."""
        await self._beat(id, {"jobs": [], "doing": json.loads(payload)})

    async def _beat(self, worker: int, body: Document) -> Document:
        try:
            told = await self._asked(self._told("POST", f"/api/workers/{_worker(worker)}/heartbeat", body))
        except errors.NotFound:
            self._seen = None
            return {"jobs": []}
        self._note(told)
        return told

    def _note(self, told: Document) -> None:
        end = told["end"] and Order(**told["end"])
        by, why = (end.by, end.reason) if end else (None, None)
        self._seen = time.monotonic(), Standing(told["state"], end and end.text, by, why)
        self._clock = time.monotonic(), moment_us(told["now"], 0)

    # --- claims and leases

    async def claim(
        self,
        worker: int,
        queues: Sequence[str],
        limit: int,
        lease_us: int,
        *,
        claim_id: int,
        again: bool = False,
        **_: Any,
    ) -> list[Job]:
        """Wait at the server for due jobs. If the worker ends meanwhile, ask for the jobs of this claim once more."""
        body = {"max": min(limit, MOST_AT_ONCE), "queues": list(queues), "lease": _lease(lease_us)}
        wait = 0.0 if again or self._leaving.is_set() else self._wait
        ask = self._claim(worker, claim_id, {**body, "wait": wait, "again": again})
        told = await (self._unless_leaving(ask) if wait else ask)
        if told is None:
            told = await self._claim(worker, claim_id, {**body, "wait": 0, "again": True})
        self._note(told)
        if wait and told["end"] is None:
            self._heard()
        jobs = [_job(one, worker) for one in told["jobs"]]
        for job, one in zip(jobs, told["jobs"], strict=True):
            self.hand.take(job, one)
        return jobs

    async def _claim(self, worker: int, number: int, body: Document) -> Document:
        path, patience = f"/api/workers/{_worker(worker)}/claim", body["wait"] + SPARE_SECONDS
        return await self._asked(
            self._wire.change(Document, "POST", path, body, idempotency_key=str(number), read_seconds=patience)
        )

    async def _unless_leaving(self, ask: Awaitable[Document]) -> Document | None:
        """Return the response, or None if the worker must end first."""
        asking, leaving = asyncio.ensure_future(ask), asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, leaving):
                task.cancel()
            await asyncio.wait({asking, leaving})

    async def held(self, worker: int, ids: Sequence[int]) -> dict[int, Held]:
        """Return which of these jobs the worker still holds, and whether each must stop."""
        tokens = [(job, self.hand.epochs[job]) for job in ids if job in self.hand.epochs]
        stands = await self._stands(worker, tokens, None)
        return {job: Held(epoch, one["cancel"] is not None) for (job, epoch), one in stands.items() if one["held"]}

    async def renew(self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int) -> list[tuple[int, int]]:
        """Renew the leases from now, and return those that are lost."""
        stands = await self._stands(worker, tokens, lease_us)
        return [token for token in tokens if token not in stands or not stands[token]["held"]]

    async def _stands(
        self, worker: int, tokens: Sequence[tuple[int, int]], lease_us: int | None
    ) -> dict[tuple[int, int], Document]:
        jobs = [{"job": ids.public(JOB.prefix, job), "epoch": epoch} for job, epoch in tokens]
        lease = None if lease_us is None else _lease(lease_us)
        told = await self._beat(worker, {"jobs": jobs, "lease": lease})
        return {(_key_of(one["job"]), one["epoch"]): one for one in told["jobs"]}

    # --- while a job is held

    async def checkpoints(self, tenant_id: int, job: int) -> list[Checkpoint]:
        """Return the checkpoints that came with the claim. Large ones are fetched now."""
        kept = self.hand.checkpoints.get(job, {})
        for one in kept.values():
            if one["large"]:
                path = f"/api/jobs/{ids.public(JOB.prefix, job)}/checkpoints/{segment(one['name'])}"
                found = await self._asked(self._wire.get(Document, path))
                one.update(value=found["value"], large=False)
        return [_checkpoint(one) for one in kept.values()]

    async def checkpoint(self, saves: Sequence[Save]) -> list[str | None]:
        """Store results of steps. A result that another run has stored before remains."""
        return await asyncio.gather(*(self._checkpoint(save) for save in saves))

    async def _checkpoint(self, save: Save) -> str | None:
        text = save.result if save.blob is None else save.blob.content.decode()
        if len(text) > LARGEST_BODY:
            raise PermanentError(f"the step {save.name!r} has {len(text):,} bytes, too many for a worker over HTTP")
        more = {"name": save.name, "value": json.loads(text), "code": save.code, "version": save.version}
        told = await self._reported(save.job, "POST", "checkpoint", more)
        if told is None or told["kept"]:
            return None if told is None else save.result
        stands = {"epoch": save.job.epoch, "version": save.version, "code": None, "changed": False, "large": False}
        self.hand.checkpoints.setdefault(save.job.id, {})[save.name] = {**stands, **told}
        return compact(told["value"])

    async def checkpoint_changed(self, tenant_id: int, job: int, name: str) -> None:
        """Do nothing: only workers with a database record this."""

    async def note_progress(self, reports: Sequence[Report], ttl_us: int) -> None:
        """Store the progress of jobs."""
        await asyncio.gather(*(self._reported(one.job, "POST", "progress", json.loads(one.payload)) for one in reports))

    async def keep_artifact(self, job: Job, name: str, blob: Blob, media_type: str) -> Artifact:
        """Store an artifact of a job."""
        if blob.size > LARGEST_BODY * 3 // 4:
            raise PermanentError(f"the artifact {name!r} has {blob.size:,} bytes, too many for a worker over HTTP")
        more = {"content": base64.b64encode(blob.content).decode(), "media_type": media_type}
        told = await self._reported(job, "PUT", f"artifacts/{segment(name)}", more)
        if told is None:
            raise LeaseLost(lifecycle=JOB.name, id=job.public_id, trigger="keep")
        made = moment_us(told["created_at"], 0)
        return Artifact(name, media_type, blob.size, blob.hash, job.epoch, made)

    async def _reported(self, job: Job, method: str, what: str, more: Document) -> Document | None:
        """Return the response to a report about a job, or None if the worker no longer holds the job."""
        body = {"worker": _worker(job.owner or 0), "epoch": job.epoch, **more}
        try:
            return await self._asked(self._told(method, f"/api/jobs/{job.public_id}/{what}", body))
        except (LeaseLost, errors.NotFound):
            return None

    # --- completion

    async def apply(self, changes: Sequence[Change]) -> list[Change]:
        """Complete jobs, or move the worker itself. Return the changes that were too late."""
        late: list[Change] = []
        for change in changes:
            if change.lifecycle is WORKER:
                await self._move(change)
        for part in parts([change for change in changes if change.lifecycle is JOB]):
            late += await self._settle(part)
        return late

    async def _settle(self, part: Sequence[tuple[Change, Document]]) -> list[Change]:
        worker = next(change.owner for change, _ in part)
        body = {"jobs": [told for _, told in part]}
        try:
            answer = await self._asked(self._told("POST", f"/api/workers/{_worker(worker or 0)}/settle", body))
            written = answer["jobs"]
        except errors.NotFound:  # the worker itself was deleted
            written = [None] * len(part)
        for change, _ in part:
            self.hand.drop(change.id, change.epoch)
        return [change for (change, _), settled in zip(part, written, strict=True) if settled is None]

    async def _move(self, change: Change) -> None:
        """Send a move of the worker itself to the endpoint for that move."""
        how, body = "end", {"reason": change.reason}
        if change.move.verb is Verb.START:
            how, body = "start", {}
        elif change.move.verb is Verb.FAIL:
            body = {"error": change.reason}
        elif change.move.verb not in (Verb.SUCCEED, Verb.TERMINATE):
            raise NeedsDatabase(what=f"{change.move.trigger} by itself")
        try:
            await self._asked(self._told("POST", f"/api/workers/{_worker(change.id)}/{how}", body))
        except (errors.InvalidTransition, errors.NotFound):
            return  # another process has ended the worker, and its heartbeat reports that

    # --- requests

    def _told(self, method: str, path: str, body: Mapping[str, Any]) -> Awaitable[Document]:
        return self._wire.tell(Document, method, path, body)

    async def _asked(self, asking: Awaitable[T]) -> T:
        """Convert errors: a transient one becomes `ServerAway`, and one that no retry can fix ends the worker."""
        try:
            return await asking
        except (StoreError, errors.NotFound, errors.InvalidTransition, LeaseLost):
            raise
        except _PASSING as error:
            raise ServerAway(url=self.url, detail=str(error)) from error
        except KeptworkError as error:
            kind = ServerAway if error.status in (429, 502, 503, 504) else ServerRefuses
            raise kind(url=self.url, detail=str(error)) from error


def _worker(key: int) -> str:
    return ids.public(WORKER.prefix, key)


def _key_of(id: str) -> int:
    return (ids.key_of(id) or ("", 0))[1]


def _lease(lease_us: int) -> float:
    """Return the lease in seconds, limited to what a server accepts."""
    return min(max(lease_us / 1_000_000, 1.0), LONGEST_LEASE)


def _job(told: Document, worker: int) -> Job:
    same = ("state", "epoch", "queue", "kind", "priority", "max_attempts", "on_exhausted", "correlation_id", "trace_id")
    return Job(
        **{name: told[name] for name in same},
        id=_key_of(told["id"]),
        tenant_id=0,
        seq=0,
        payload=compact(told["payload"]),
        run_at=moment_us(told["run_at"], 0),
        attempts=told["attempt"],
        owner=worker,
        lease_until=told["lease_until"] and moment_us(told["lease_until"], 0),
        held_by=None,
    )


def _checkpoint(one: Document) -> Checkpoint:
    same = {name: one[name] for name in ("name", "code", "version", "epoch")}
    return Checkpoint(
        **same, result=compact(one["value"]), hash=None, created_at=0, changed_at=1 if one["changed"] else None
    )
