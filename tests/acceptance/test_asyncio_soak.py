"""Twenty handlers written the way people write asyncio, under random kills: the logs show what became of each of them.

KEPTWORK_SOAK_SECONDS says how long a full run is, on each database.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core import ids
from keptwork.core.lifecycles import JOB
from keptwork.handles import Handle
from keptwork.job import DeclaredJob
from keptwork.store import EventFilter
from tests.acceptance.asyncio_program import FRESH, TWINS, declare
from tests.support.command import environment

SECONDS = float(os.environ.get("KEPTWORK_SOAK_SECONDS", "1800"))
PROGRAM = "tests.acceptance.asyncio_program"
AT_ONCE, WORKERS = 40, 2
PATIENCE = 180.0

Line = dict[str, Any]


class Soak:
    """Workers that are killed and replaced, and jobs that are given what they wait for, sooner or later."""

    def __init__(self, url: str, folder: Path, twin: str = "", seed: int = 1) -> None:
        self.url = url
        self.log = folder / "log"
        self._twin = [twin] if twin else []
        self._random = random.Random(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self.kills = 0
        self.jobs: list[Handle] = []
        self._open: dict[int, Handle] = {}
        self._told: set[int] = set()
        self._early: set[int] = set()
        self._waiting: set[int] = set()

    async def run(self, seconds: float, *, kill: bool = True) -> None:
        app = Keptwork(self.url)
        names = declare(app, None)
        end, struck = time.monotonic() + seconds, time.monotonic()
        try:
            async with app:
                while time.monotonic() < end or (self._open and time.monotonic() < end + PATIENCE):
                    self._man(WORKERS)
                    if time.monotonic() < end:
                        await self._enqueue(app, names)
                        if kill and time.monotonic() - struck > self._random.uniform(2, 8):
                            struck = time.monotonic()
                            self._kill_one()
                    await self._tell_some(app)
                    await self._count_off(app)
                    await asyncio.sleep(0.05)
        finally:
            for worker in self._workers:
                worker.kill()
            self._man(0)

    def _man(self, count: int) -> None:
        for dead in [worker for worker in self._workers if not count or worker.poll() is not None]:
            dead.wait()
            if dead.stdin is not None:
                dead.stdin.close()
            self._workers.remove(dead)
        while len(self._workers) < count:
            command = [sys.executable, "-m", PROGRAM, self.url, str(self.log), *self._twin]
            self._workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(PYTHONPATH=_path())))

    def _kill_one(self) -> None:
        worker = self._random.choice(self._workers)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.kills += 1

    async def _enqueue(self, app: Keptwork, names: list[str]) -> None:
        while len(self._open) < AT_ONCE:
            name = names[len(self.jobs) % len(names)]
            job = await DeclaredJob(app, app.kinds[name]).enqueue()
            self.jobs.append(job)
            self._open[job.key] = job
            if len(self.jobs) % 3 == 0:
                self._early.add(job.key)

    async def _tell_some(self, app: Keptwork) -> None:
        """Send a job its event: every third one whenever it is, the others once they wait for it."""
        for job in list(self._open.values()):
            early = job.key in self._early and self._random.random() < 0.05
            waits = job.key in self._waiting and self._random.random() < 0.3
            if job.key not in self._told and (early or waits):
                self._told.add(job.key)
                await app.send_event(f"for {job.id}", job.id)

    async def _count_off(self, app: Keptwork) -> None:
        store = await app.open()
        rows = await store.rows(JOB, sorted(self._open), ("id", "completed_at", "waits_for"))
        self._waiting = {row["id"] for row in rows if "event for" in (row["waits_for"] or "")}
        for row in rows:
            if row["completed_at"] is not None:
                del self._open[row["id"]]

    async def faults(self) -> list[str]:
        async with Keptwork(self.url) as app:
            store = await app.open()
            rows = await store.rows(JOB, [job.key for job in self.jobs])
            kept = {
                (ids.public(JOB.prefix, row["id"]), one.name): one.epoch
                for row in rows
                for one in await store.checkpoints(1, row["id"])
            }
            moves: dict[tuple[str, int], str] = {}
            for row in rows:
                for event in await store.events(EventFilter(entity=JOB.name, entity_id=row["id"]), limit=10_000):
                    if event.trigger in ("snooze", "retry", "release", "expire"):
                        moves[ids.public(JOB.prefix, row["id"]), event.epoch - 1] = event.trigger
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [*_unfinished(rows), *_skipped_waits(rows), *_seen_contexts(lines), *_repeated_steps(lines, kept, moves)]


def _path() -> str:
    return os.pathsep.join(path for path in sys.path if path)


def _unfinished(rows: Iterable[Line]) -> list[str]:
    return [f"{row['kind']} ended as {row['state']}: {row['error']}" for row in rows if row["state"] != "succeeded"]


def _skipped_waits(rows: Iterable[Line]) -> list[str]:
    """A result names the payload of the event, which is sent to this job alone."""
    done = [row for row in rows if row["state"] == "succeeded"]
    told = {row["id"]: json.loads(row["result"]) for row in done}
    return [
        f"{row['kind']} returned {told[row['id']]!r} without having waited"
        for row in done
        if not isinstance(told[row["id"]], list) or told[row["id"]][0] != ids.public(JOB.prefix, row["id"])
    ]


def _seen_contexts(lines: list[Line]) -> list[str]:
    seen = [line["seen"] for line in lines if line["what"] == "context"]
    usual = Counter(prec for _, prec, _, _ in seen).most_common(1)[0][0]
    return [
        f"a run began in the context {tenant!r}, precision {prec}, task {name!r}, {cancels} cancellations"
        for tenant, prec, name, cancels in seen
        if tenant != FRESH or prec != usual or name.startswith("task of") or cancels
    ]


def _repeated_steps(
    lines: list[Line], kept: dict[tuple[str, str], int], moves: dict[tuple[str, int], str]
) -> list[str]:
    """`moves` has the move that ended each epoch but the last."""
    found: list[str] = []
    begun: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for line in lines:
        if line["what"] != "context":
            begun[line["job"], line["step"], line["epoch"]].append(line["what"])
    for (job, step, epoch), what in begun.items():
        if what.count("begins") > 1:
            found.append(f"{step} of {job} ran twice in epoch {epoch}")
        if epoch > kept.get((job, step), epoch):
            found.append(f"{step} of {job} was kept in epoch {kept[job, step]} and ran again in {epoch}")
        if "ends" not in what and moves.get((job, epoch)) == "snooze":
            found.append(f"{step} of {job} was cut off in epoch {epoch} by a suspension")
    return found


async def soaked(
    url: str, folder: Path, seconds: float, twin: str = "", *, kill: bool = True
) -> tuple[Soak, list[str]]:
    soak = Soak(url, folder, twin)
    await soak.run(seconds, kill=kill)
    return soak, await soak.faults()


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + PATIENCE + 120)
async def test_twenty_handlers_of_plain_asyncio_lose_nothing_under_kills(database_url: str, tmp_path: Path) -> None:
    soak, faults = await soaked(database_url, tmp_path, SECONDS)
    lines = len(soak.log.read_text().splitlines())
    figures = f"{len(soak.jobs)} jobs, {soak.kills} kills, {lines} lines, {len(faults)} faults"
    print(f"\n{SECONDS:.0f} s of plain asyncio: {figures}")
    assert faults == []
    assert soak.jobs


@pytest.mark.chaos
@pytest.mark.timeout(PATIENCE + 120)
@pytest.mark.parametrize("twin", TWINS)
async def test_twin_without_its_guard_is_caught_by_the_soak(
    sqlite_copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twin: str
) -> None:
    monkeypatch.setattr("tests.acceptance.test_asyncio_soak.PATIENCE", 60.0)
    _, faults = await soaked(sqlite_copy, tmp_path, 5, twin, kill=False)
    words = {
        "share_contexts": "began in the context 'job_",
        "cut_steps_off": "was cut off",
        "take_waits_for_results": "without having waited",
    }
    print(f"\n{twin}: {len(faults)} faults, such as: {faults[:1]}")
    assert any(words[twin] in fault for fault in faults), faults[:10]
