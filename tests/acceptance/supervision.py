"""A supervisor as its users run it, with workers of an application that lives in a folder of the test's own.

Everything carries a mark in its environment, so that no process outlives the test unseen.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keptwork.core.lifecycles import JOB
from keptwork.store import Event, EventFilter, NewJob, Store, open_store
from keptwork.store.contract.records import WorkerFilter
from keptwork.workers import commands as service
from tests.process.survivors import NAME, assert_none, marked, new_mark
from tests.support.command import environment

PATIENCE = 60.0

PROGRAM = """
import asyncio, os, subprocess, sys, time
from keptwork import Keptwork

app = Keptwork()

@app.job(lease="3s", max_attempts=50)
async def wait(ctx, seconds=60):
    await asyncio.sleep(seconds)

@app.job(lease="3s", max_attempts=50)
async def block(ctx, seconds=60):
    time.sleep(seconds)

OTHERS = "import os, time; os.fork() or os.setsid(); os.fork() or os.setsid(); time.sleep(60)"

@app.job(lease="3s", max_attempts=50)
def start_others(ctx):
    subprocess.run([sys.executable, "-c", OTHERS])

@app.job(lease="3s", max_attempts=50, isolation="process")
def start_caged(ctx):
    subprocess.run([sys.executable, "-c", OTHERS])

@app.job(lease="10m", max_attempts=50)
async def wait_long(ctx):
    await asyncio.sleep(600)

@app.job(lease="10m", max_attempts=2)
async def exits(ctx, code):
    os._exit(code)

@app.job()
async def quick(ctx): ...
"""


def until(holds: Callable[[], Any], what: str, patience: float = PATIENCE) -> float:
    """Waits until it holds; how many seconds that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < patience, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


class Database:
    """What the tests read and write beside the supervisor."""

    def __init__(self, url: str) -> None:
        self.url = url

    def using(self, use: Callable[[Store], Any]) -> Any:
        async def run() -> Any:
            store = await open_store(self.url)
            try:
                return await use(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def workers(self, **wanted: Any) -> list[dict[str, Any]]:
        async def read(store: Store) -> Any:
            rows = await store.workers(WorkerFilter(**wanted))
            return [{**service.as_json(row), "key": row["id"]} for row in rows]

        found: list[dict[str, Any]] = self.using(read)
        return found

    def alive(self) -> list[dict[str, Any]]:
        return self.workers(states=("IDLE", "RUNNING", "PAUSED"))

    def worker(self, pid: int) -> dict[str, Any]:
        return next(worker for worker in self.workers() if worker["pid"] == pid)

    def enqueue(self, kind: str, count: int = 1, **arguments: Any) -> list[int]:
        job = NewJob(kind, json.dumps(arguments), max_attempts=2 if kind == "exits" else 50)
        made: list[int] = self.using(lambda store: store.enqueue([job] * count))
        return made

    def jobs(self, ids: list[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.using(lambda store: store.rows(JOB, ids))
        return sorted(found, key=lambda row: row["id"])

    def holder(self, job: int) -> dict[str, Any]:
        """The worker that runs a job, once one does."""
        until(lambda: self.jobs([job])[0]["state"] == "running", "the job runs")
        owner = self.jobs([job])[0]["owner"]
        return next(worker for worker in self.workers() if worker["key"] == owner)

    def story(self, worker: dict[str, Any]) -> list[Event]:
        wanted = EventFilter(entity="worker", entity_id=worker["key"])
        events: list[Event] = self.using(lambda store: store.events(wanted, newest_first=True))
        return events[::-1]


class Supervised:
    """A running `keptwork supervise --json` and what it has told so far."""

    def __init__(self, url: str, folder: Path, mark: str, *options: str, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "keptwork", "supervise", "shop:app", "--json", "--db", url, *options]
        self._folder = folder
        self._number = len(list(folder.glob("*.log")))
        self._out = (folder / f"{self._number}.log").open("w")
        self._err = (folder / f"{self._number}.err").open("w")
        env = environment(**{NAME: mark})
        self.process = subprocess.Popen(command, cwd=folder, stdout=self._out, stderr=self._err, env=env)

    @property
    def told(self) -> list[dict[str, Any]]:
        text = (self._folder / f"{self._number}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def events(self, named: str) -> list[dict[str, Any]]:
        return [event for event in self.told if event["event"] == named]

    @property
    def words(self) -> str:
        return (self._folder / f"{self._number}.err").read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._out.close()
        self._err.close()


class Ground:
    """A folder with the application, a database, and every process of the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.database = Database(url)
        self.folder = folder
        self.mark = new_mark()
        self._started: list[Supervised] = []
        (folder / "shop.py").write_text(PROGRAM)
        self.database.using(lambda store: store.now())  # it is migrated before the first worker comes

    def supervise(self, *options: str, url: str | None = None, prefix: tuple[str, ...] = ()) -> Supervised:
        new = Supervised(url or self.database.url, self.folder, self.mark, *options, prefix=prefix)
        self._started.append(new)
        return new

    def up(self, count: int) -> list[dict[str, Any]]:
        """So many workers, once they are there."""
        until(lambda: len(self.database.alive()) == count, f"{count} workers are alive")
        return self.database.alive()

    def processes(self) -> list[int]:
        return marked(self.mark)

    def end(self) -> None:
        for supervised in self._started:
            supervised.end()
        assert_none(self.mark)


@contextmanager
def ground(url: str, folder: Path) -> Iterator[Ground]:
    made = Ground(url, folder)
    try:
        yield made
    finally:
        made.end()


def exists(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def kill(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
