"""The supervisor keeps a fixed number of worker processes running on this host.

    post 1 … post N     each: start a worker → wait for its end → back off if it died at start → start another
    watch               reads the rows of its workers, and kills those that were terminated and still run
    watchman            terminates workers, of any supervisor, that have no heartbeat

A worker executes orders from the database itself; the supervisor is there for a worker that cannot. It needs a process
of its own, because it adopts and kills every process that its workers leave behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import WORKER, decide, insist
from keptwork.errors import NoWorkerStarts, StoreError, WorkerExhausted
from keptwork.jobs import outcome
from keptwork.maintenance.dead_workers import Watchman
from keptwork.process.tree import adopt_orphans, children, signal_all
from keptwork.store import Store, open_store
from keptwork.store.contract.records import Standing
from keptwork.workers.registration import understood
from keptwork.workers.supervisor_link import Child, described

LOOK_SECONDS = 0.4
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
START_SECONDS = 5.0
UP_SECONDS = 60.0
HARD_SECONDS = 1.0
END_SECONDS = 8.0
SWEEPS, SWEEP_PAUSE = 50, 0.02
ORDERLY = (0, 3)

STARTED, UP, ENDED, REPLACED, WAITS, CHANGED, KILLED = (
    *("started", "registered", "ended", "replaced", "backing off", "changed", "killed"),
)


class Tell(Protocol):
    """Reports events, one at a time."""

    def __call__(self, event: str, message: str, **facts: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of workers, the command that starts one, and the grace period for their end.

    A worker without a heartbeat for `silent_us` is terminated.
    """

    workers: int
    argv: Sequence[str]
    grace_us: int
    silent_us: int


def backoff(failures: int) -> float:
    """Return the seconds to wait before the restart of a worker that died at start this many times in a row.

    >>> backoff(1), backoff(2), backoff(4), backoff(50)
    (0.5, 1.0, 4.0, 30.0)
    """
    return float(min(SHORTEST_BACKOFF * 2 ** min(failures - 1, 20), LONGEST_BACKOFF))


class Supervisor:
    """Runs until it is stopped. `said` receives the output of its workers, by place and line."""

    def __init__(self, plan: Plan, tell: Tell, said: Callable[[int, str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._said = said
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._children: dict[int, Child] = {}
        self._next: dict[int, Child] = {}
        self._waits: dict[int, float] = {}
        self._starting = 0
        self._stopping = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._replaced = 0
        self._was_up = False
        self._refusal: str | None = None

    async def run(self) -> int:
        """Return the number of replaced workers. Raise `NoWorkerStarts` if the first workers refuse their database."""
        self._opened: asyncio.Future[Store] = asyncio.get_running_loop().create_future()
        adopt_orphans()
        posts = [asyncio.create_task(self._post(place)) for place in range(1, self._plan.workers + 1)]
        duties = [asyncio.create_task(duty) for duty in (self._watch(), self._keep_watch())]
        try:
            await asyncio.gather(*posts)
        finally:
            for task in (*posts, *duties, *([self._restarting] if self._restarting else [])):
                task.cancel()
            await self._close()
        if self._refusal is not None:
            raise NoWorkerStarts(reason=self._refusal)
        return self._replaced

    def stop(self) -> None:
        """Let every worker finish its running jobs within the grace period. On the second call, kill them."""
        hard = self._stopping.is_set()
        self._stopping.set()
        for child in self._children.values():
            if hard:
                self._kill(child, "asked twice to stop")
            else:
                child.send(signal.SIGTERM)
                self._kill_within(child, self._grace)

    def restart(self) -> None:
        """Replace all workers one after the other. Each new worker starts before an old one drains.

        If a new worker does not start, the old workers stay.
        """
        if (self._restarting is None or self._restarting.done()) and not self._stopping.is_set():
            self._restarting = asyncio.create_task(self._roll())

    def standing(self) -> str:
        """Describe the current state in one line."""
        states = Counter(child.state or "starting" for child in self._children.values())
        parts = [f"{count} {state}" for state, count in sorted(states.items())]
        now = time.monotonic()
        parts += [f"worker {place} again in {at - now:.0f} s" for place, at in sorted(self._waits.items()) if at > now]
        said = f"{self._plan.workers} workers: {', '.join(parts) or 'none yet'}"
        return f"{said} · {self._replaced} replaced" if self._replaced else said

    # --- posts

    async def _post(self, place: int) -> None:
        """Run one worker after another in this place."""
        failures = 0
        while not self._stopping.is_set() or place in self._next:
            child = self._next.pop(place, None) or await self._start(place)
            code = await child.ended()
            worked = await self._bury(child, code)
            if self._refuses_to_start(child):
                self._refusal = child.refusal
                self.stop()
            # An exhausted worker has drained, so its successor starts immediately.
            failed = code not in (*ORDERLY, WorkerExhausted.exit_code) and not worked
            died_at_start = failed and (child.worker is None or child.lived < START_SECONDS)
            failures = failures + 1 if died_at_start else 0
            if not self._stopping.is_set() and place not in self._next:
                self._replaced += 1
                await self._wait_before_next(place, failures)

    def _refuses_to_start(self, child: Child) -> bool:
        """Return whether a worker refused its database before any worker was running.

        Later refusals are retried, because running workers can outlive a release that cannot start.
        """
        self._was_up |= any(one.registered.is_set() for one in (child, *self._children.values()))
        return child.refusal is not None and not self._was_up

    async def _start(self, place: int) -> Child:
        self._starting += 1
        try:
            child = await Child.start(place, self._plan.argv, self.name, self._said)
        finally:
            self._starting -= 1
        self._children[child.pid] = child
        self._tell(STARTED, f"worker {place} is started as process {child.pid}", place=place, pid=child.pid)
        if self._stopping.is_set():  # a stop was requested during the start
            child.send(signal.SIGTERM)
        return child

    async def _bury(self, child: Child, code: int) -> bool:
        """Return whether the worker died with jobs in hand."""
        self._children.pop(child.pid, None)
        how = described(code)
        last = list(child.tail) if code not in ORDERLY else []
        words = f"worker {child.place} (process {child.pid}) {how} after {child.lived:.1f} s"
        facts = {"place": child.place, "pid": child.pid, "exit_code": code, "worker": self._id(child)}
        self._tell(ENDED, f"{words}; its last words:" if last else words, last_words=last, **facts)
        alone = await self._swept()
        return await self._close_row(child, how, alone)

    async def _wait_before_next(self, place: int, failures: int) -> None:
        if not failures:
            return
        seconds = backoff(failures)
        self._waits[place] = time.monotonic() + seconds
        times = "once" if failures == 1 else f"{failures} times in a row"
        words = f"worker {place} died at start {times}; it is started again in {seconds:g} s"
        self._tell(WAITS, words, place=place, failures=failures, seconds=seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        self._waits.pop(place, None)

    # --- rolling restart

    async def _roll(self) -> None:
        self._tell("restarting", "restarting the workers one after the other")
        for old in sorted(self._children.values(), key=lambda child: child.place):
            if self._stopping.is_set() or old.pid not in self._children:
                continue
            new = await self._start(old.place)
            if not await self._comes_up(new):
                self._tell("restart given up", f"the new worker {new.place} did not come up: the old ones stay")
                new.kill()
                await self._bury(new, await new.ended())
                return
            self._next[old.place] = new
            old.send(signal.SIGTERM)
            self._kill_within(old, self._grace)
            await old.process.wait()
        self._tell("restarted", "all workers were restarted")

    async def _comes_up(self, child: Child) -> bool:
        up, gone = asyncio.create_task(child.registered.wait()), asyncio.create_task(child.process.wait())
        await asyncio.wait({up, gone}, timeout=UP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (up, gone):
            task.cancel()
        return child.registered.is_set() and child.alive

    # --- watch

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(StoreError):  # unreachable: the workers report it themselves
                await self._look()
            for child in list(self._children.values()):
                if child.alive and child.kill_at is not None and time.monotonic() >= child.kill_at:
                    self._kill(child, "it did not end by itself in time")

    async def _look(self) -> None:
        store = await self._open()
        known = {child.worker: child for child in self._children.values() if child.worker is not None}
        if store is None or not known:
            return
        for row in await store.rows(WORKER, list(known), ("id", *Standing._fields)):
            standing = Standing(*(row[name] for name in Standing._fields))
            self._note(known[row["id"]], standing)

    def _note(self, child: Child, standing: Standing) -> None:
        """Report a change of state, and limit the time that a terminated worker has to end."""
        before, child.state = child.state, standing.state
        if before != standing.state:
            by = f" by {actor_name(standing.actor)}" if before and standing.actor else ""
            why = f": {standing.reason}" if before and standing.reason else ""
            words = f"worker {child.place} ({self._id(child)}) is {standing.state}{by}{why}"
            facts = {"actor": actor_name(standing.actor), "reason": standing.reason}
            self._tell(CHANGED, words, place=child.place, worker=self._id(child), state=standing.state, **facts)
        order = understood(standing)
        if order is not None and order.how != "drain":
            # a worker that ended itself is shutting down
            hard = order.how == "hard" and standing.actor != f"w:{child.worker}"
            self._kill_within(child, HARD_SECONDS if hard else self._grace)

    def _kill_within(self, child: Child, seconds: float) -> None:
        at = time.monotonic() + seconds
        child.kill_at = at if child.kill_at is None else min(child.kill_at, at)

    def _kill(self, child: Child, why: str) -> None:
        words = f"worker {child.place} (process {child.pid}) is killed: {why}"
        self._tell(KILLED, words, place=child.place, pid=child.pid)
        child.kill_at = None
        child.kill()

    async def _swept(self) -> bool:
        """Return whether nothing is left of the processes that dead workers started."""
        for _ in range(SWEEPS):
            if not self._sweep():
                return True
            await asyncio.sleep(SWEEP_PAUSE)
        return False

    def _sweep(self) -> bool:
        """Kill what dead workers left behind, and return whether anything might be left. These are children of this
        process other than workers. A worker that is being started is not known yet, so the sweep waits for the next
        time."""
        left: list[int] = []
        if not self._starting:
            left = [pid for pid in children(os.getpid()) if pid not in self._children]
            signal_all(left, signal.SIGKILL)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return bool(left or self._starting)

    # --- the database

    async def _keep_watch(self) -> None:
        store = await self._opened
        await Watchman(store, self._plan.silent_us, self._actor).run()

    async def _open(self, *told: Child) -> Store | None:
        """Return the workers' database, known from the first worker that has registered, or None."""
        url = next((child.database for child in (*told, *self._children.values()) if child.database), None)
        async with self._opening:
            if self._store is None and url is not None:
                self._store = await open_store(url, migrate=False, create=False)
                self._opened.set_result(self._store)
        return self._store

    async def _close_row(self, child: Child, how: str, alone: bool) -> bool:
        """Terminate the row of a worker that died without a report, and return whether it had jobs in hand. Its jobs
        are reclaimed immediately if it is `alone`: the process and everything it started are gone."""
        worked = 0
        with contextlib.suppress(StoreError):
            store = await self._open(child)
            row = None if store is None or child.worker is None else await store.get(WORKER, child.worker, None)
            if store is not None and row is not None and not WORKER.state(row["state"]).final:
                reason = f"its process {how}"
                await store.apply([insist(decide(WORKER, row, "terminate", actor=self._actor, reason=reason))])
            if store is not None and child.worker is not None and alone:
                worked = await outcome.reclaim(store, child.worker, f"its worker's process {how}")
        return worked > 0

    async def _close(self) -> None:
        for child in list(self._children.values()):
            child.kill()
            await self._bury(child, await child.ended())
        if self._store is not None:
            await self._store.close()

    @property
    def _grace(self) -> float:
        """Seconds that a worker has to end after a request."""
        return self._plan.grace_us / 1_000_000 + END_SECONDS

    @property
    def _actor(self) -> str:
        return f"supervisor:{self.name}"

    def _id(self, child: Child) -> str | None:
        return None if child.worker is None else public_id(WORKER.name, child.worker)
