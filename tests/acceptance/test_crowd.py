"""Many processes on one SQLite file: nobody is told that it is locked, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.errors import Busy
from keptwork.store import NewJob, open_store
from keptwork.store.sqlite import writer
from tests.acceptance.fleet import environment_of_tests


@dataclass(slots=True)
class Crowd:
    """What all the processes were told, and what is there in the end."""

    failed: int
    parts: list[dict[str, Any]]
    states: Counter[str]
    wrong_states: list[str]
    problems: list[str]

    def all(self, what: str) -> list[Any]:
        return [one for part in self.parts for one in part[what]]

    @property
    def wrong(self) -> list[str]:
        failed = [f"{self.failed} processes failed"] if self.failed else []
        return [*failed, *self.all("errors"), *self.wrong_states, *self.problems]


def crowd(url: str, processes: int, seconds: float, *twin: str) -> Crowd:
    asyncio.run(prepare(url))
    command = [sys.executable, "-m", "tests.acceptance.crowd", url, str(processes), str(seconds), *twin]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment_of_tests(), timeout=seconds + 60
    )
    answer = json.loads(done.stdout)
    return asyncio.run(look(url, answer["failed"], answer["parts"]))


async def prepare(url: str) -> None:
    await (await open_store(url)).close()


async def look(url: str, failed: int, parts: list[dict[str, Any]]) -> Crowd:
    found = Crowd(failed, parts, Counter(), [], [])
    settled, enqueued = set(found.all("settled")), found.all("enqueued")
    store = await open_store(url)
    states = {row["id"]: row["state"] for row in await store.rows(JOB, enqueued, ("id", "state"))}
    found.states = Counter(states.values())
    found.wrong_states = [f"{id} was acknowledged and is gone" for id in enqueued if id not in states]
    found.wrong_states += [
        f"{id} was settled and is {states.get(id)}" for id in settled if states.get(id) != "succeeded"
    ]
    found.wrong_states += [f"{id} was settled {n} times" for id, n in Counter(found.all("settled")).items() if n > 1]
    found.problems = [" ".join(problem) for problem in (await verify.verify(store)).problems]
    await store.close()
    return found


def check(url: str, processes: int, seconds: float) -> None:
    found = crowd(url, processes, seconds)
    calls, slowest = sorted(part["calls"] for part in found.parts), max(part["slowest"] for part in found.parts)
    print(
        f"\n{processes} processes for {seconds:g} s: {sum(calls)} calls, {sum(calls) / seconds:.0f} a second, from "
        f"{calls[1]} to {calls[-1]} for one process ({calls[0]} beside the command line), the slowest {slowest:.2f} s; "
        f"{len(found.all('enqueued'))} jobs enqueued, {len(found.all('settled'))} settled, lost and doubled "
        f"{len(found.wrong_states)}, errors {len(found.all('errors'))}"
    )
    assert found.wrong == []
    assert found.all("settled")
    assert len(found.parts) == processes


HOLDS_THE_FILE = """
import asyncio, sys
from keptwork.store import NewJob, open_store
from keptwork.store.sqlite import writer
async def hold():
    store = await open_store(sys.argv[1])
    async with store.transaction() as transaction:
        (key,) = await transaction.enqueue([NewJob("holder")])
        print(key, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await store.close()
asyncio.run(hold())
"""


@contextmanager
def holder(url: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process stopped in the middle of a write transaction, and the job it has not yet committed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_FILE, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of_tests(),
    )
    with process:
        assert process.stdout is not None
        key = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        try:
            yield process, key
        finally:
            process.send_signal(signal.SIGCONT)
            process.communicate()


async def test_a_process_stopped_in_a_write_holds_writers_up_but_not_readers_and_all_resume(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    with holder(sqlite_url) as (_, key):
        waiting = asyncio.create_task(store.enqueue([NewJob("waits")]))
        assert await asyncio.wait_for(store.rows(JOB, [key]), 5) == []
        await asyncio.wait({waiting}, timeout=1)
        assert not waiting.done()
    (later,) = await asyncio.wait_for(waiting, 10)
    assert {row["id"] for row in await store.rows(JOB, [key, later])} == {key, later}
    assert (await verify.verify(store)).clean
    await store.close()


async def test_who_waits_too_long_for_a_stopped_process_is_told_so_and_may_ask_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.5)
    store, closes = await open_store(sqlite_url), await open_store(sqlite_url)
    with holder(sqlite_url) as (_, key):
        waits, transaction = store.enqueue([NewJob("in vain")]), closes.transaction()
        for write in (waits, transaction.__aenter__(), store.enqueue([NewJob("in vain too")])):
            with pytest.raises(Busy, match=r"stayed locked by another program for 0\.5 s"):
                await asyncio.wait_for(write, 10)
        await asyncio.wait_for(closes.close(), 10)
        assert await store.rows(JOB, [key]) == []
    (later,) = await asyncio.wait_for(store.enqueue([NewJob("after")]), 10)
    assert [row["id"] for row in await store.jobs(newest_first=False)] == [key, later]
    assert (await verify.verify(store)).clean
    await store.close()


@pytest.mark.timeout(120)
def test_8_processes_on_one_file_are_never_told_that_it_is_locked(sqlite_url: str) -> None:
    check(sqlite_url, processes=8, seconds=3)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_32_processes_on_one_file_are_never_told_that_it_is_locked_in_60_seconds(sqlite_url: str) -> None:
    check(sqlite_url, processes=32, seconds=60)


def test_connections_that_neither_wait_nor_take_turns_are_caught_by_the_same_check(sqlite_url: str) -> None:
    found = crowd(sqlite_url, 8, 1, "impatient")
    assert any("stayed locked by another program" in error for error in found.all("errors"))
