"""Waits of a handler for other things than time: children, crews, signals, and approvals. None occupies a worker.

Each wait is named by its number among waits of its kind, so that a later run finds it again. What arrived is stored
like the result of a step. If it has not arrived, the job suspends, and the transaction that suspends it checks once
more whether it arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from keptwork.core.durations import Span, span_us
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, JOB
from keptwork.core.lifecycles.crew import COMPLETED
from keptwork.core.validation import LARGEST_PAYLOAD, check_name
from keptwork.crews import commands as crews
from keptwork.crews.engine import lock_of
from keptwork.errors import ApprovalExpired, ApprovalRejected, BadInput, CrewFailed, LeaseLost, NoEvent, NotApproved
from keptwork.flows import approvals
from keptwork.flows.approvals import EXPIRED, LONGEST_COMMENT
from keptwork.job import JobType
from keptwork.jobs.commands_signals import check_event
from keptwork.jobs.outcome import Suspend
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.process.tool import Tools
from keptwork.store import Job, Store, Transaction
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.crews import HELD_BY_QUOTA, waits_for_crew
from keptwork.store.contract.waits import EVENT
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.store.contract.waits_signals import Signal
from keptwork.workers.breaker_check import Gate
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.children import LOOKS_AGAIN_US, Ask, Child, Children, Spawnable, kind_named
from keptwork.workers.parked_waits import Suspended, Wait
from keptwork.workers.steps import Steps

# Crews that a handler creates: once, whatever happens to the job, and joined without occupying a worker.
#
# A share that waits for a crew of its own frees its worker slot in the outer crew, and gets a slot again before it
# resumes. The crew and the checkpoint that names it are written in one transaction, under the job's lease. The outcome
# of the crew is stored with the job.


GONE = "gone"


class Crews:
    """The crews of one job, in one run of its handler."""

    def __init__(self, job: Job, steps: Steps, ask: Ask, kinds: Mapping[str, JobType]) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask
        self._kinds = kinds

    async def crew(
        self,
        name: str,
        job: Spawnable | str,
        task: str,
        workers: int,
        timeout: Span | None,  # noqa: ASYNC109 - a span of the crew's own life, which the database watches
        arguments: Mapping[str, Any],
    ) -> list[Any]:
        """Return the results of the shares, in their order. Raise `CrewFailed` if the crew was unsuccessful."""
        key = await self._submitted(name, kind_named(self._kinds, job), task, workers, timeout, arguments)
        outcome = await self._outcome(f"{name} result", key)
        if "result" not in outcome:
            raise CrewFailed(**outcome)
        found: list[Any] = outcome["result"]
        return found

    async def _submitted(
        self,
        name: str,
        kind: JobType,
        task: str,
        workers: int,
        timeout: Span | None,  # noqa: ASYNC109 - as above
        arguments: Mapping[str, Any],
    ) -> int:
        found = await self._steps.recall(name)
        if found is not None:
            return int(json.loads(found.result)["crew"])
        asker = self._job
        try:
            new = crews.new_crew(kind, arguments, asker.tenant_id, task=task, workers=workers, timeout=timeout)
        except BadInput as refusal:
            raise PermanentError(str(refusal)) from None
        correlation = asker.correlation_id or asker.public_id
        new = new._replace(actor=f"w:{asker.owner}", correlation_id=correlation, trace_id=spans.carried(asker.trace_id))

        async def submit(store: Store) -> int:
            return await store.atomically(lambda tx: self._submit(tx, name, new), 2 + workers)

        key: int = await self._ask(asker, submit)
        return key

    async def _submit(self, tx: Transaction, name: str, new: crews.NewCrew) -> int:
        """Create the crew under its lock, so that it is created once. Raise `LeaseLost` if the job is no longer
        held."""
        asker = self._job
        await tx.lock_trees([*([] if asker.tree_id is None else [asker.tree_id]), lock_of(asker.tenant_id)])
        for kept in await tx.checkpoints(asker.tenant_id, asker.id):
            if kept.name == name:
                return int(json.loads(kept.result)["crew"])
        inside = crews.Inside(parent_id=asker.crew_id, tree_id=asker.tree_id, asker_id=asker.id)
        key = await crews.submit_in(tx, new, inside)
        (stands,) = await tx.checkpoint([self._steps.save(name, json.dumps({"crew": key}))])
        if stands is None:
            raise LeaseLost(lifecycle=JOB.name, id=asker.public_id, trigger="crew")
        return key

    async def _outcome(self, name: str, key: int) -> Any:
        found = await self._steps.recall(name)
        if found is not None:
            return json.loads(found.result)
        return await self._steps.keep(name, await self._read(key))

    async def _read(self, key: int) -> dict[str, Any]:
        """Return the outcome of a finished crew in its stored form; otherwise suspend the job. A share is also held
        until the quota of its outer crew gives it a worker again."""
        job = self._job
        row = await self._ask(job, lambda store: store.get(CREW, key, job.tenant_id))
        id = public_id(CREW.name, key)
        if row is None:
            return {"id": id, "state": GONE, "why": "it was deleted"}
        if row["completed_at"] is None:
            until = await self._ask(job, lambda store: store.now()) + LOOKS_AGAIN_US
            raise Suspended(Suspend(waits_for_crew(key), until, 0, None if job.crew_id is None else HELD_BY_QUOTA))
        if row["state"] != COMPLETED.name:
            return {name: crews.failure(row).facts[name] for name in ("id", "state", "why")}
        row = await self._ask(job, lambda store: whole(store, row))
        return {"id": id, "result": json.loads(row["result"])}


# Wait for signals in a handler: each wait receives the next signal of its name that the job has not received.


class Signals:
    """The signals of one run. The sequence number of the last received signal is stored for each name."""

    def __init__(self, job: Job, steps: Steps, ask: Ask) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask
        self._taken: dict[str, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def wait(self, name: str, event: str, timeout: Span | None) -> Any:  # noqa: ASYNC109 - it outlives this run
        limit_us = _checked(event, timeout)
        async with self._turns.setdefault(event, asyncio.Lock()):  # two concurrent waits receive one after the other
            kept = await self._kept(name, event, limit_us)
        if kept is None:
            raise NoEvent(name=event, waited=timeout)
        self._taken[event] = kept["place"]
        return kept["payload"]

    async def _kept(self, name: str, event: str, limit_us: int | None) -> Any:
        """Return the received signal, from this or an earlier run, or None after the time-out."""
        found = await self._steps.recall(name)
        if found is not None:
            return json.loads(found.result)
        signal = await self._next(event)
        if signal is not None:
            taken = {"place": signal.id, "payload": json.loads(signal.payload)}
            self._taken[event] = signal.id
            return await self._steps.keep(name, taken)
        until = None if limit_us is None else await self._deadline(f"{name} until", limit_us)
        if until is not None and until <= await self._now():
            return await self._steps.keep(name, None)
        raise Suspended(Suspend(f"{EVENT}{event}", until, self._taken.get(event, 0)))

    async def _next(self, event: str) -> Signal | None:
        job, after = self._job, self._taken.get(event, 0)
        found: Signal | None = await self._ask(
            job, lambda store: store.next_signal(job.tenant_id, job.id, event, after)
        )
        return found

    async def _deadline(self, name: str, limit_us: int) -> int:
        """Return the deadline, counted from the first run that waited."""
        return await self._steps.kept_once(name, await self._now() + limit_us)

    async def _now(self) -> int:
        return int(await self._ask(self._job, lambda store: store.now()))


def _checked(event: str, timeout: Span | None) -> int | None:
    try:
        check_event(event)
        return None if timeout is None else span_us(timeout)
    except BadInput as refusal:
        raise PermanentError(str(refusal)) from None


# Approval requests of a handler: the handler waits until a reviewer decides.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Approved(NamedTuple):
    """An approval: the reviewer, the time, and the comment."""

    by: str
    at: datetime
    comment: str | None


class Approvals:
    """The approval requests of one run."""

    def __init__(self, job: Job, steps: Steps, ask: Ask) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask

    async def wait(self, name: str, question: str, by: str | None, expires: Span | None, details: Any) -> Approved:
        found = await self._steps.recall(name)
        decided = json.loads(found.result) if found else await self._decided(name, question, by, expires, details)
        match decided["decision"]:
            case approvals.APPROVED:
                return Approved(decided["by"], _EPOCH + timedelta(microseconds=decided["at"]), decided["comment"])
            case approvals.REJECTED:
                raise ApprovalRejected(id=decided["id"], by=decided["by"], comment=decided["comment"])
            case approvals.EXPIRED:
                raise ApprovalExpired(id=decided["id"])
        raise NotApproved(id=decided["id"], became=f"was {decided['decision']}")

    async def _decided(self, name: str, question: str, by: str | None, expires: Span | None, details: Any) -> Any:
        approval = await self._asked(_new(name, question, by, expires, details))
        if approval.decision is None and approval.expires_at is not None:
            approval = await self._expired_by_now(approval)
        if approval.decision is None:
            raise Suspended(Suspend(approval.waits_for, approval.expires_at, approval.id))
        told = {"decision": approval.decision, "by": approval.decided_by, "at": approval.decided_at}
        return await self._steps.keep(name, {"id": approval.public_id, **told, "comment": approval.comment})

    async def _asked(self, question: NewApproval) -> Approval:
        approval: Approval | None = await self._ask(self._job, lambda store: store.open_approval(self._job, question))
        if approval is None:
            raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger="wait for approval")
        return approval

    async def _expired_by_now(self, approval: Approval) -> Approval:
        """Expire the request if it is due by the database's clock. Otherwise it stays unchanged."""
        found: Approval = await self._ask(
            self._job, lambda store: store.decide_approval(approval.tenant_id, approval.id, EXPIRED)
        )
        return found


def _new(name: str, question: str, by: str | None, expires: Span | None, details: Any) -> NewApproval:
    """Return the request. Raise `PermanentError` if it is invalid, because every attempt would be."""
    try:
        if not question.strip() or len(question) > LONGEST_COMMENT:
            raise BadInput(what=f"a question is text of at most {LONGEST_COMMENT} characters")
        if by is not None:
            check_name("approver", by)
        text = None if details is None else json.dumps(details, separators=(",", ":"), sort_keys=True, allow_nan=False)
        if text is not None and len(text) > LARGEST_PAYLOAD:
            raise BadInput(what=f"details of {len(text):,} bytes are over the limit of {LARGEST_PAYLOAD >> 20} MiB")
        return NewApproval(name, question, text, by, None if expires is None else span_us(expires))
    except (BadInput, TypeError, ValueError, RecursionError) as error:
        raise PermanentError(f"what is to be approved cannot be asked: {error}") from None


T = TypeVar("T")

USUAL_GRACE = 30.0

__all__ = ["Child", "Desk", "Spawnable", "Waits"]


class Desk:
    """Services of a worker for all its handlers: the store, the kinds of jobs, programs, and breakers.

    `grace` is in seconds.
    """

    def __init__(
        self, journal: Journal, kinds: Mapping[str, JobType], tools: Tools, gate: Gate, grace: float = USUAL_GRACE
    ) -> None:
        self._journal = journal
        self.kinds = kinds
        self.tools = tools
        self.gate = gate
        self.grace = grace

    async def ask(self, job: Job, question: Callable[[Store], Awaitable[T]]) -> T:
        return await self._journal.ask(job, question)


class Waits:
    """The waits of one run of a handler. An ordinary function gets results, an async function gets awaitables."""

    def __init__(self, job: Job, steps: Steps, desk: Desk | None) -> None:
        if desk is None:
            raise PermanentError(
                "in a process of its own a handler cannot spawn, join or wait for crews, events and approvals; leave "
                "out isolation='process', or do that in the job that enqueues it"
            )
        self._steps = steps
        self._children = Children(job, steps, desk.ask, desk.kinds)
        self._crews = Crews(job, steps, desk.ask, desk.kinds)
        self._signals = Signals(job, steps, desk.ask)
        self._approvals = Approvals(job, steps, desk.ask)

    def spawn(self, job: Spawnable | str, arguments: Mapping[str, Any]) -> Any:
        name = self._steps.own_name("spawn", None)
        return self._steps.waiting(None, self._children.spawn, name, job, arguments)

    def spawn_many(self, job: Spawnable | str, many: Sequence[Mapping[str, Any]]) -> Any:
        name = self._steps.own_name("spawn", None)
        return self._steps.waiting(None, self._children.spawn_many, name, job, many)

    def join(self, children: Child | Sequence[Child], return_exceptions: bool, timeout: Span | None) -> Any:
        name = self._steps.own_name("join", None)
        wait = Wait("ctx.join(…)", "Limit the wait itself: ctx.join(…, timeout=…).")
        return self._steps.waiting(wait, self._children.join, name, children, return_exceptions, timeout)

    def crew(
        self, job: Spawnable | str, task: str, workers: int, timeout: Span | None, arguments: Mapping[str, Any]
    ) -> Any:
        name = self._steps.own_name("crew", None)
        wait = Wait("ctx.crew(…)", "Limit the crew itself: ctx.crew(…, _timeout=…).")
        return self._steps.waiting(wait, self._crews.crew, name, job, task, workers, timeout, arguments)

    def wait_for_event(self, event: str, timeout: Span | None) -> Any:
        name = self._steps.own_name(f"event {event}", None)
        call = f"ctx.wait_for_event({event!r}"
        wait = Wait(f"{call})", f"Limit the wait itself: {call}, timeout=…).")
        return self._steps.waiting(wait, self._signals.wait, name, event, timeout)

    def wait_for_approval(
        self, question: str, by: str | None, expires: Span | None, details: Any, named: str | None
    ) -> Any:
        name = self._steps.own_name("approval", named)
        wait = Wait("ctx.wait_for_approval(…)", "Limit the wait itself: ctx.wait_for_approval(…, expires=…).")
        return self._steps.waiting(wait, self._approvals.wait, name, question, by, expires, details)
