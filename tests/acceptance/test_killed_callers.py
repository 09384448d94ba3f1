"""Workers killed with -9 between the reply of a model and its commit: at most one call more for each kill, on record as
lost, and what was spent is exact by the books of the server itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents.budget_rules import cost_micros
from keptwork.settings import Config, read
from keptwork.store.contract.budgets import LOST, SETTLED, Charge
from tests.acceptance.chaos import until
from tests.support.llm_server import Call, LlmServer, Say

PROGRAM = "tests.acceptance.agent_caller"
LEASE = "1500ms"


class Relay:
    """Workers one after the other, each begun when the one before it is dead."""

    def __init__(self, config: Path, url: str, twin: str) -> None:
        arguments = [str(config), url, "caller", LEASE, *([twin] if twin else [])]
        command = [sys.executable, "-m", PROGRAM, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._killed = threading.Event()
        self.kills = 0
        self._begin()

    def _begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()
        self._at_work = int(self._said())

    def _said(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        """The one at work dies at once."""
        os.kill(self._at_work, signal.SIGKILL)
        self.kills += 1
        self._killed.set()

    def replace_dead(self) -> None:
        while self._killed.wait(0.2):
            self._killed.clear()
            assert self._said() == b"dead\n"
            self._begin()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def relay(config: Path, url: str, twin: str = "") -> Iterator[Relay]:
    running = Relay(config, url, twin)
    try:
        yield running
    finally:
        running.close()


class Books:
    """What both sides have written down."""

    def __init__(self, kills: int, server: LlmServer, charges: list[Charge], rows: list[dict[str, Any]]) -> None:
        self.kills, self.server, self.charges, self.rows = kills, server, charges, rows
        self.asked = Counter(_task(call) for call in server.calls)

    def faults(self, config: Config) -> list[str]:
        """Where they disagree, or more was spent than a kill excuses."""
        calls, states = len(self.server.calls), Counter(charge.state for charge in self.charges)
        lost, settled = states[LOST], [charge for charge in self.charges if charge.state == SETTLED]
        priced = {bill.call: cost_micros("anthropic", bill.model, bill.usage, config) for bill in self.server.bills}
        last = {_task(call): call.number for call in self.server.calls}
        spent = sum(priced[number] for number in last.values())
        found = [f"{task} was asked {count} times" for task, count in self.asked.items() if count > 2]
        if calls != len(self.rows) + lost:
            found.append(f"{calls} calls, {len(self.rows)} answers and {lost} lost")
        if lost > self.kills:
            found.append(f"{lost} lost calls for {self.kills} kills")
        if len(settled) != len(self.rows) or states.total() != calls:
            found.append(f"the ledger has {dict(states)} for {calls} calls")
        if spent != sum(charge.cost_micros for charge in settled):
            found.append(f"{sum(charge.cost_micros for charge in settled)} spent, {spent} by the server's books")
        if sum(charge.cost_micros for charge in self.charges) != sum(row["cost_micros"] for row in self.rows):
            found.append("the agent jobs do not add up to what the ledger has, lost calls included")
        return found + [f"{row['description']} is {row['state']}" for row in self.rows if row["state"] != "COMPLETED"]


def _task(call: Call) -> str:
    return str(call.said).strip().splitlines()[-1]


def killed(url: str, folder: Path, kills: int, twin: str = "") -> tuple[Books, Config]:
    """So many agent jobs; of each, the worker dies when the first reply is out."""
    seen: set[str] = set()
    at_work: list[Relay] = []

    def answered(call: Call) -> None:
        if _task(call) not in seen:
            seen.add(_task(call))
            at_work[0].kill()

    with LlmServer(lambda call: Say(f"done: {_task(call)}"), answered=answered) as server:
        config = folder / "keptwork.toml"
        config.write_text(server.settings())
        jobs = asyncio.run(_started(url, kills))
        with relay(config, url, twin) as workers:
            at_work.append(workers)

            def ended() -> bool:
                workers.replace_dead()
                return not asyncio.run(_unfinished(url, jobs))

            until(ended, 30 + 5 * kills)
        charges, rows = asyncio.run(_books(url))
        return Books(workers.kills, server, charges, rows), read(config)


async def _started(url: str, number: int) -> list[int]:
    async with Keptwork(url) as app:
        return [(await app.agent(f"Fix the typo in file {n}", tier="haiku")).job_key for n in range(number)]


async def _unfinished(url: str, jobs: list[int]) -> list[int]:
    async with Keptwork(url) as app:
        rows = await (await app.open()).agents_of_jobs(jobs)
        return [row["id"] for row in rows if row["completed_at"] is None]


async def _books(url: str) -> tuple[list[Charge], list[dict[str, Any]]]:
    async with Keptwork(url) as app:
        store = await app.open()
        return await store.charges(app.tenant_id, limit=10_000), await store.agents(app.tenant_id, limit=10_000)


@pytest.mark.timeout(120)
def test_killed_between_a_reply_and_its_commit_three_calls_are_lost_and_on_record(
    database_url: str, tmp_path: Path
) -> None:
    books, config = killed(database_url, tmp_path, 3)
    assert books.faults(config) == []
    assert books.kills == 3


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_killed_a_hundred_times_between_a_reply_and_its_commit(database_url: str, tmp_path: Path) -> None:
    began = time.monotonic()
    books, config = killed(database_url, tmp_path, 100)
    lost = sum(charge.state == LOST for charge in books.charges)
    spent = sum(row["cost_micros"] for row in books.rows)
    print(
        f"\n{database_url.split(':')[0]}: {books.kills} kills, {len(books.server.calls)} calls, {lost} of them lost, "
        f"at most {max(books.asked.values())} for a job; {spent} micro-USD spent; {time.monotonic() - began:.0f} s"
    )
    assert books.faults(config) == []
    assert books.kills == 100


@pytest.mark.timeout(120)
def test_the_check_catches_a_worker_that_forgets_lost_calls(sqlite_url: str, tmp_path: Path) -> None:
    books, config = killed(sqlite_url, tmp_path, 2, "forgets-lost-calls")
    assert any("answers and 0 lost" in fault for fault in books.faults(config))
