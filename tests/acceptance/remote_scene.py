"""A server in a process of its own, workers of two languages that reach it over HTTP only, and a sink outside."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from keptwork.access import api_keys
from keptwork.access.scopes import Scope
from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.process.tree import die_with
from keptwork.store import EventFilter, NewJob, open_store
from keptwork.store.contract.records import DEFAULT_TENANT
from tests.acceptance.chaos import unfinished
from tests.support import command
from tests.support.dev_server import announced

EXAMPLE = Path(__file__).parents[2] / "examples" / "remote_worker" / "worker.mjs"
LEASE = "2"
MORE = 200
SLOWNESS = 0.2
"""What an effect takes, so that workers are struck while they are at it."""


class HttpSink:
    """Counts what jobs do to the world: one effect for each idempotency key, whoever sends it and how often."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.deliveries = 0
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                number = int(parse_qs(urlsplit(self.path).query)["number"][0])
                time.sleep(SLOWNESS)
                sink.take(self.headers["Idempotency-Key"], number)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._lock = threading.Lock()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, key: str, number: int) -> None:
        with self._lock:
            self.deliveries += 1
            self.kept.setdefault(key, number)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def started(argv: list[str], environment: dict[str, str], output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """A process that does not outlive the test, however that ends."""
    return subprocess.Popen(
        argv,
        env=environment,
        stdout=output,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
    )


class Scene:
    """One database, one server, some workers; whoever is struck is replaced."""

    def __init__(self, url: str, sink: HttpSink, seed: int, example: Path = EXAMPLE) -> None:
        self.url, self.sink, self.chance, self._example = url, sink, random.Random(seed), example
        self._key = asyncio.run(_key(url))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._server = self._serving()
        self.workers: list[tuple[str, subprocess.Popen[str]]] = []
        self.keys: list[int] = []
        self.kills = self.restarts = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _serving(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "keptwork", "serve", "--port", str(self._port), "--db", self.url, "--json"]
        process = started(argv, command.environment(), output=subprocess.PIPE)
        announced(process)
        return process

    def feed(self, count: int) -> None:
        self.keys += asyncio.run(_enqueued(self.url, len(self.keys), count))

    def start(self, kind: str) -> None:
        own = {"KEPTWORK_SERVER": self.address, "KEPTWORK_KEY": self._key, "SINK": self.sink.address, "LEASE": LEASE}
        environment = command.environment(**own, PYTHONPATH=f"{command.SOURCE}:{Path(__file__).parents[2]}")
        python = [sys.executable, "-m", "keptwork", "work", "tests.acceptance.remote_program:app"]
        argv = {
            "node": ["node", str(self._example)],
            "python": [*python, "--server", self.address, "--lease", f"{LEASE}s", "--concurrency", "4"],
        }[kind]
        self.workers.append((kind, started(argv, environment)))

    def strike(self) -> None:
        """Somebody dies, at any point of what it does, and somebody else takes the place."""
        kind, process = self.workers.pop(self.chance.randrange(len(self.workers)))
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        self.kills += 1
        self.start(kind)

    def restart_server(self) -> None:
        self._server.send_signal(signal.SIGKILL)
        self._server.communicate(timeout=20)
        self._server = self._serving()
        self.restarts += 1

    def left(self) -> int:
        return len(asyncio.run(unfinished(self.url, self.keys)))

    def run(self, kills: int, pause: float, patience: float, restarts: int = 0) -> None:
        """Strikes so often, sees to it that there is work all the while, and then lets it end."""
        end = time.monotonic() + patience
        when = {kills * (number + 1) // (restarts + 1) for number in range(restarts)}
        while self.kills < kills and time.monotonic() < end:
            self._wait_for_effects(end)
            time.sleep(self.chance.uniform(0, 2 * pause))
            self.strike()
            if self.kills in when:
                self.restart_server()
            if self.kills % 5 == 0 and not self.left():
                self.feed(MORE)
        while self.left() and time.monotonic() < end:
            time.sleep(0.2)

    def _wait_for_effects(self, end: float) -> None:
        """Somebody works: one that is struck before would only ever start."""
        before, end = self.sink.deliveries, min(end, time.monotonic() + 5)
        while self.sink.deliveries == before and time.monotonic() < end:
            time.sleep(0.01)

    def drain(self) -> list[int]:
        """Asks every worker to end, and tells with which code each did."""
        for _, process in self.workers:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(40) for _, process in self.workers]
        self.workers.clear()
        return codes

    def close(self) -> None:
        for _, process in self.workers:
            process.kill()
            process.wait(20)
        self._server.kill()
        self._server.communicate(timeout=20)

    # --- what is wrong

    def lost(self) -> list[int]:
        """Jobs that count as done, or are left, without an effect."""
        return sorted(set(range(len(self.keys))) - set(self.sink.kept.values()))

    def doubled(self) -> list[int]:
        """Jobs with two effects: under two keys, since under one the sink keeps one."""
        numbers = list(self.sink.kept.values())
        return sorted({number for number in numbers if numbers.count(number) > 1})

    def faults(self) -> list[str]:
        """What the log says against itself, and jobs that did not end by succeeding once."""
        return asyncio.run(_faults(self.url, self.keys))


async def _key(url: str) -> str:
    store = await open_store(url)
    try:
        made = await api_keys.create(store, DEFAULT_TENANT, "workers", [Scope.SUPERVISE], by="test")
        return made.secret.value
    finally:
        await store.close()


async def _faults(url: str, jobs: list[int]) -> list[str]:
    store = await open_store(url)
    try:
        found = [str(problem) for problem in (await verify.verify(store)).problems]
        for id in jobs:
            events = await store.events(EventFilter(entity=JOB.name, entity_id=id), limit=10_000, newest_first=True)
            done = [event for event in events if event.trigger == "succeed"]
            if len(done) != 1 or events[0] is not done[0]:
                found.append(f"{id} ended {events[0].to_state}, and succeeded {len(done)} times")
        return found
    finally:
        await store.close()


async def _enqueued(url: str, first: int, count: int) -> list[int]:
    store = await open_store(url)
    try:
        numbers = range(first, first + count)
        jobs = [NewJob("charge", json.dumps({"number": number}), max_attempts=1000) for number in numbers]
        return await store.enqueue(jobs)
    finally:
        await store.close()


@contextmanager
def scene(url: str, seed: int, example: Path = EXAMPLE) -> Iterator[Scene]:
    sink = HttpSink()
    made = Scene(url, sink, seed, example)
    try:
        yield made
    finally:
        made.close()
        sink.close()


def figures(on: Scene, began: float) -> str:
    workers = ", ".join(kind for kind, _ in on.workers)
    return json.dumps(
        {
            "store": urlsplit(on.url).scheme,
            "jobs": len(on.keys),
            "kills": on.kills,
            "server restarts": on.restarts,
            "lost": len(on.lost()),
            "doubled": len(on.doubled()),
            "deliveries": on.sink.deliveries,
            "seconds": round(time.monotonic() - began, 1),
            "workers": workers,
            "cpus": os.cpu_count(),
        }
    )
