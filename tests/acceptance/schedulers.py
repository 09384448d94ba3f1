"""Schedulers in processes of their own, on one database whose time is a test's: killed at random, and replaced at once.

Usage: python -m tests.acceptance.schedulers URL CLOCK_FILE COUNT KILLS_PER_SECOND SEED [TWIN]. It forks the schedulers
after everything is imported, so that a new one is there in a moment. It ends when its input does, and says how many
were killed from outside, and how many killed themselves between the lock and the answer to the commit.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import select
import signal
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from keptwork.jobs import schedules
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.schedule_ticks import Scheduler
from keptwork.store import Store, open_store
from keptwork.store.postgres.operations import PostgresVerbs
from keptwork.store.sqlite.session import Session
from tests.acceptance.twins import break_store

NAP_SECONDS = 0.003
DEADLY = 0.03  # how often a scheduler dies at each of the moments below
INSIDE = 77


class SharedClock:
    """Eight bytes of a file that every process has in its memory: the time of a SQLite database under test."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @classmethod
    def made(cls, path: Path, start: int) -> SharedClock:
        path.write_bytes(struct.pack("q", start))
        return cls(path)

    def now(self, at_least: int = 0) -> int:
        return max(int(struct.unpack("q", self._memory[:8])[0]), at_least)

    def set(self, now: int) -> None:
        self._memory[:8] = struct.pack("q", now)


def main(url: str, clock: str, count: str, kills_per_second: str, seed: str, twin: str = "") -> None:
    if twin:
        break_store(twin)
    chance, alive, dead = random.Random(int(seed)), set[int](), {"killed": 0, "died_inside": 0}
    print("ready", flush=True)
    while True:
        while len(alive) < int(count):
            alive.add(_forked(url, Path(clock), chance.randrange(1 << 30)))
        if select.select([sys.stdin], [], [], chance.expovariate(float(kills_per_second)))[0]:
            break
        os.kill(chance.choice(sorted(alive)), signal.SIGKILL)
        _bury(alive, dead)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps(dead))


def _bury(alive: set[int], dead: dict[str, int]) -> None:
    """Whoever is dead by now; one that was just killed may come next time."""
    for pid in list(alive):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            alive.remove(pid)
            dead["died_inside" if os.waitstatus_to_exitcode(status) == INSIDE else "killed"] += 1


def _forked(url: str, clock: Path, seed: int) -> int:
    if pid := os.fork():
        return pid
    try:
        asyncio.run(_serve(url, clock, random.Random(seed)))
    finally:
        os._exit(1)  # never the parent's clean-up in a child


async def _serve(url: str, clock: Path, chance: random.Random) -> None:
    store = await open_store(url, clock=SharedClock(clock) if url.startswith("sqlite") else None)
    _die_inside(chance)
    scheduler = Scheduler(store, Outage())
    while True:
        await scheduler.run_once()
        await asyncio.sleep(NAP_SECONDS)


def _die_inside(chance: random.Random) -> None:
    """After the lock, after the move, after the jobs, after the commit: there it ends without a word, as by kill -9."""

    def perhaps(answer: Any) -> Any:
        if answer and chance.random() < DEADLY:
            os._exit(INSIDE)
        return answer

    def on_thread(shipped: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: perhaps(shipped(*args))

    def in_loop(shipped: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            return perhaps(await shipped(*args))

        return call

    for verb in ("due_schedules", "move_schedule", "enqueue"):
        setattr(Session, verb, on_thread(getattr(Session, verb)))
    for verb in ("_due_schedules", "_move_schedule", "enqueue"):
        setattr(PostgresVerbs, verb, in_loop(getattr(PostgresVerbs, verb)))
    schedules.fire = in_loop(schedules.fire)  # type: ignore[assignment]  # the same call, on the way to its death


async def settled(store: Store) -> None:
    """Returns when nothing is due any more."""
    while (due := await store.schedule_due()) is not None and due <= 0:  # noqa: ASYNC110 - other processes do it
        await asyncio.sleep(NAP_SECONDS)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
