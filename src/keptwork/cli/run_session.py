"""Run one flow in this process, with a worker for it only; show its progress and ask for approvals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from keptwork.agents import budget_caps, budgets
from keptwork.cli import screen
from keptwork.cli.database import operator
from keptwork.core.money import HOLD
from keptwork.errors import AlreadyDecided, ApprovalChanged, StoreError
from keptwork.flows import approvals, eta
from keptwork.flows.expression import as_text
from keptwork.flows.live_view import FlowView
from keptwork.store.contract.waits import APPROVAL
from keptwork.webhooks import outbox

if TYPE_CHECKING:
    from keptwork.app import Keptwork
    from keptwork.cli.run_screen import Showing
    from keptwork.flows.transaction import Row
    from keptwork.store import Store
    from keptwork.store.contract.waits_approvals import Approval


# Ask the user at the terminal for a decision: show the request and exactly what an approval starts.


LONGEST = 160
ANSWERS = {
    "y": approvals.APPROVED,
    "yes": approvals.APPROVED,
    "n": approvals.REJECTED,
    "no": approvals.REJECTED,
    "s": None,
    "skip": None,
}


def at_a_terminal() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


async def asked(question: Approval, now: int) -> str | None:
    """Ask for a decision and return it, or None if the request stays open."""
    text = "\n".join(shown(question, now))
    while screen.write(f"{text}\n  approve? y/n/skip: ", sys.stdout, end=""):
        said = await _line()
        if said is None:
            screen.write("", sys.stdout)
            return None
        if said.strip().lower() in ANSWERS:
            return ANSWERS[said.strip().lower()]
        text = "  y approves, n rejects, skip leaves it open for later."
    return None  # a request that cannot be shown must not be decided


def shown(question: Approval, now: int) -> Iterator[str]:
    """Yield the lines of a request: its question, and what an approval starts."""
    terms = [f"for {question.scope}"] if question.scope else []
    if question.expires_at is not None:
        terms.append(f"expires {screen.ago(question.expires_at, now)}")
    yield f"? {question.step}: {question.question}" + (f" ({', '.join(terms)})" if terms else "")
    details = None if question.details is None else json.loads(question.details)
    actions = details if isinstance(details, list) else [details] if details else []
    for action in actions:
        yield f"  then {_action(action)}"


def _action(action: Any) -> str:
    if isinstance(action, dict) and "step" in action:
        rest = {name: value for name, value in action.items() if name != "step"}
        return _short(f"{action['step']}: {_plain(rest)}")
    return _short(_plain(action))


def _plain(said: Any) -> str:
    """Return a value as it is written in a flow: `call: shop:ship, with: {…}`."""
    if not isinstance(said, dict):
        return json.dumps(said, ensure_ascii=False)
    return ", ".join(f"{key}: {as_text(value)}" for key, value in said.items())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


async def _line() -> str | None:
    """Return the next typed line, or None at the end of input. A cancelled call leaves the input unread."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not typed.done():
            typed.set_result(os.read(descriptor, 4096))

    loop.add_reader(descriptor, read)
    try:
        return (await typed).decode("utf-8", "replace") or None
    finally:
        loop.remove_reader(descriptor)


SHORTEST_LOOK, LONGEST_LOOK = 0.03, 0.1
LISTEN_SECONDS = OUTAGE_SECONDS = 0.5
PATIENCE_US = 60_000_000
TELL_SECONDS = 20.0  # longer than a delivery attempt can take
CUT_SECONDS = 2.0
INTERRUPTED = 130


class Left(Enum):
    """The reason to leave a flow as it is."""

    OVER = "nothing more will happen by itself"
    ASKS = "it waits for people only"
    WAITS = "it waits for something that will not come soon"
    STOPPED = "somebody asked for it"


@dataclass(frozen=True)
class Manner:
    """Settings of a session: who approves, how many steps run concurrently, their lease, and the grace period."""

    yes: bool = False
    ask: bool = False
    concurrency: int = 8
    lease: str = "10s"
    grace: str = "30s"


class Session:
    """A session that runs one flow until it finishes, or waits only for events outside this process."""

    def __init__(
        self, app: Keptwork, store: Store, view: FlowView, showing: Showing, manner: Manner, go_on: str = ""
    ) -> None:
        """Create a session. `go_on` is the message for a user who interrupts the session twice."""
        self._app = app
        self._store = store
        self._view = view
        self._showing = showing
        self._manner = manner
        self._go_on = go_on
        self._stopping = asyncio.Event()
        self._cut: asyncio.Future[None] | None = None
        self._rung = asyncio.Event()
        self._skipped: set[int] = set()
        self._held: set[int] = set()
        self._usual: eta.UsualTimes = {}
        self._listened_at = 0.0
        self._over_since: float | None = None
        self._pause = SHORTEST_LOOK

    async def carry_out(self) -> Left:
        """Run the flow until there is a reason to leave it, and return the reason."""
        await self._view.look()
        try:
            with self._listening():
                await self._begin()
                return Left.STOPPED if self._stopping.is_set() else await self._carried_out()
        finally:
            self._showing.close()

    async def _carried_out(self) -> Left:
        work = asyncio.create_task(self._work())
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
            self._app.stop()
            if work.done() and work.exception():
                watch.cancel()
            await asyncio.wait([work, watch] if self._stopping.is_set() else [work])
            work.result()
            return Left.STOPPED if watch.cancelled() or not watch.done() else watch.result()
        finally:
            watch.cancel()

    async def _begin(self) -> None:
        """Show the state before this process runs anything, and the jobs that other processes hold."""
        self._showing.show(self._view, list(self._view.steps.values()), None)
        for job in await self._view.jobs():
            if job["lease_until"] is not None:
                until, name = screen.ago(job["lease_until"], self._view.now), self._view.name_of(job)
                expires = "expired" if job["lease_until"] <= self._view.now else "expires"
                self._showing.note(f"{name} is leased to another process; the lease {expires} {until}")

    async def _work(self) -> None:
        manner, queues = self._manner, self._queues()
        await self._app.work(
            queues=queues, concurrency=manner.concurrency, lease=manner.lease, grace=manner.grace, name="run"
        )

    def _queues(self) -> list[str]:
        """Return the queues of the flow's steps. A step without a queue uses the queue of the flow."""
        named = [step.queue for step in self._view.definition.steps if step.queue is not None]
        return list(dict.fromkeys([self._view.flow["queue"] or "default", *named]))

    # --- watching

    async def _watch(self) -> Left:
        """Watch the flow until there is a reason to leave it. Like the worker, wait for an unreachable database."""
        view, moved = self._view, list(self._view.steps.values())
        self._usual = await eta.usual_times(self._store, view.kind, view.flow["name"], view.tenant_id)
        while True:
            try:
                if (left := await self._glance(moved)) is not None:
                    # Steps that moved while the flow itself was read have not been shown yet.
                    self._showing.show(self._view, await self._view.look_at_all(), None)
                    return left
                moved = await self._view.look()
            except StoreError as error:
                if error.lasting:
                    raise
                await asyncio.sleep(OUTAGE_SECONDS)

    async def _glance(self, moved: list[Row]) -> Left | None:
        """Show the current state and decide requests; wait briefly unless there is a reason to leave."""
        self._showing.show(self._view, moved, self._time_left())
        left = await self._left(bool(moved))
        if left is None:
            self._pause = SHORTEST_LOOK if moved else min(self._pause * 2, LONGEST_LOOK)
            await self._wait(self._pause)
            await self._listen()
        return left

    async def _left(self, moved: bool) -> Left | None:
        """Return the reason to leave the flow now, or None while there is work."""
        if self._view.over:
            return None if await self._about_to_tell() else Left.OVER
        if await self._answer() or moved:
            return None
        jobs = await self._view.jobs()
        if self._view.failed and not jobs:
            return Left.OVER
        if self._stopping.is_set():
            self._app.stop()  # the first call may precede the start of the worker
            return Left.STOPPED if self._app.doing() is None else None
        return await self._waits(jobs)

    async def _about_to_tell(self) -> bool:
        """Return whether its webhook still needs a first attempt, because no other process might make it."""
        self._over_since = self._over_since or time.monotonic()
        if self._stopping.is_set() or time.monotonic() - self._over_since > TELL_SECONDS:
            return False
        untold = await outbox.untold(self._store, self._view.tenant_id, self._view.flow)
        return any(one.last_error is None for one in untold)

    async def _waits(self, jobs: Sequence[Row]) -> Left | None:
        """Return why to leave a flow that waits for people, or until much later; None while a worker has something to
        do or will have it soon. An operator, or the end of the day, releases what is unpaid; calls in flight release
        the other holds of budgets."""
        holds = {job["held_by"] for job in jobs if (job["held_by"] or "").startswith(HOLD)}
        unpaid = await budget_caps.full(self._store, self._view.tenant_id, holds)
        await self._tell_held(jobs, unpaid)
        if any(not job["waits_for"] and job["held_by"] not in unpaid for job in jobs):
            return None
        soon = [job for job in jobs if job["run_at"] <= self._view.now + PATIENCE_US and job["held_by"] not in unpaid]
        if any(not job["waits_for"].startswith(APPROVAL) for job in soon):
            return None
        if await self._view.questions():
            return Left.ASKS
        return Left.WAITS if jobs or await self._view.awaits_operator() else None

    async def _tell_held(self, jobs: Sequence[Row], unpaid: set[str]) -> None:
        """Note each held job once. Jobs that fit as soon as the calls in flight settle are not worth a line."""
        held = {job["id"]: job for job in jobs if _is_held(job, unpaid)}
        for name, why in (await self._view.held([held[id] for id in held.keys() - self._held])).items():
            self._showing.note(f"{name} is held: {why}")
        self._held = set(held)

    def _time_left(self) -> float | None:
        if not self._usual:
            return None
        view, at_once = self._view, self._manner.concurrency
        return eta.time_left(view.definition, view.kind, view.steps.values(), self._usual, view.now, at_once)

    async def _listen(self) -> None:
        if time.monotonic() - self._listened_at >= LISTEN_SECONDS:
            self._listened_at = time.monotonic()
            await self._view.listen()

    async def _wait(self, seconds: float) -> None:
        """Wait for at most `seconds`, and less if a job of this process finishes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()

    # --- approvals

    async def _answer(self) -> bool:
        """Decide the open requests, or ask the user to. Return whether any was decided."""
        if self._stopping.is_set() or not (self._manner.yes or self._manner.ask):
            return False
        answered = False
        for question in await self._view.questions():
            if question.id in self._skipped:
                continue
            decision = approvals.APPROVED if self._manner.yes else await self._asked(question)
            if decision is None:
                self._skipped.add(question.id)
            else:
                await self._decide(question, decision)
                answered = True
        return answered

    async def _asked(self, question: Approval) -> str | None:
        self._showing.pause()
        ask = asyncio.ensure_future(asked(question, self._view.now))
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait([ask, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ask.done():
            ask.cancel()
            return None
        return ask.result()

    async def _decide(self, question: Approval, decision: str) -> None:
        who, why = operator(), "--yes" if self._manner.yes else None
        try:
            await approvals.decide(self._store, self._view.tenant_id, question.public_id, decision, by=who, comment=why)
            self._showing.note(f"{question.step} is {decision} by {who}")
        except (AlreadyDecided, ApprovalChanged) as error:
            self._showing.note(str(error))

    # --- interruption

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        stop_hearing = self._app.on_settled(self._rung.set)
        for number in signals:
            loop.add_signal_handler(number, self._pressed)
        try:
            yield
        finally:
            stop_hearing()
            for number in signals:
                loop.remove_signal_handler(number)

    async def _cut_off(self) -> None:
        """Close the model calls of this process, report the cost that stays counted, and exit."""
        try:
            async with asyncio.timeout(CUT_SECONDS):
                lost = await self._lost()
            screen.complain(f"{lost}\n{self._go_on}" if lost else self._go_on)
        except BaseException as error:  # on any error, because the user wants the process to end
            screen.complain(f"{self._go_on}\nCalls in flight stay reserved until their leases end: {error!r}")
        finally:
            os._exit(INTERRUPTED)  # do not wait for handler threads; tools end with this process

    async def _lost(self) -> str | None:
        view = self._view
        tree, queue = view.flow["tree_id"] or view.ref.id, view.flow["queue"]
        held = [job.id for job in await self._store.unfinished_jobs(tree) if job.owner and job.queue == queue]
        await self._store.atomically(lambda tx: budgets.close_calls(tx, held))
        return await budget_caps.left_counted(self._store, view.tenant_id, tree=tree)

    def _pressed(self) -> None:
        """Handle Ctrl-C. The first lets running steps finish; the second only closes model calls, then exits."""
        if self._cut is not None:
            os._exit(INTERRUPTED)
        if self._stopping.is_set():
            self._showing.close()
            self._cut = asyncio.ensure_future(self._cut_off())
            return
        self._stopping.set()
        self._rung.set()
        self._app.stop()
        self._showing.note("stopping: steps that run come to their end; once more ends at once")


def _is_held(job: Row, unpaid: set[str]) -> bool:
    hold = job["held_by"] or ""
    return bool(hold) and (hold in unpaid or not hold.startswith(HOLD))
