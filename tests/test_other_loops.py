"""One application, several event loops, threads and processes: it works, or is refused before anything is sent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.errors import InvalidTransition, OtherLoop, TransactionEnded
from keptwork.job import DeclaredJob, JobType
from keptwork.jobs import queries
from keptwork.store import open_store
from keptwork.store.postgres.connections import MOST_AT_HAND, MOST_CONNECTIONS
from tests.conformance.stage import eventually
from tests.support.command import Done, environment

pytestmark = pytest.mark.acceptance

PROGRAMS = Path(__file__).parent / "loop_programs.py"
MOST = MOST_CONNECTIONS + MOST_AT_HAND
"""Connections of the thread for other loops, and of a short-lived loop that came first."""


@pytest.fixture
def app(database_url: str) -> Iterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    asyncio.run(app.close())
    assert not [thread for thread in threading.enumerate() if thread.name == "keptwork-sync"]


@pytest.fixture
def note(app: Keptwork) -> DeclaredJob:
    @app.job()
    async def note(ctx: Context, by: str) -> str:
        return by

    return note


def notes(url: str) -> Counter[str]:
    """Who put jobs into the queue; every one of them has its event."""

    async def read() -> Counter[str]:
        store = await open_store(url)
        try:
            assert (await verify.verify(store)).clean
            return Counter(json.loads(row["payload"])["by"] for row in await store.jobs(limit=1_000_000))
        finally:
            await store.close()

    return asyncio.run(read())


def elsewhere(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What comes of a call in an event loop of another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(call())).result()


class Watcher:
    """Counts a process's connections to a database: sessions of a server, or descriptors of a file."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(asyncpg.connect(url)) if url.startswith("postgres") else None

    def count(self) -> int:
        if self._session is None:
            path = self._url.removeprefix("sqlite:///")
            return sum(descriptor.startswith(path) for descriptor in map(_target, Path("/proc/self/fd").iterdir()))
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        counted = self._session.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")
        return int(self._loop.run_until_complete(counted))

    def close(self) -> None:
        if self._session is not None:
            self._loop.run_until_complete(self._session.close())
        self._loop.close()


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:
        return ""


@pytest.fixture
def watcher(database_url: str) -> Iterator[Watcher]:
    watching = Watcher(database_url)
    yield watching
    watching.close()


def enqueue_from_threads(note: DeclaredJob, watcher: Watcher, times: int) -> tuple[list[int], list[int]]:
    """Keys of the jobs, and how many connections there were meanwhile."""
    keys, seen = [], []
    with ThreadPoolExecutor(16) as threads:
        futures = [threads.submit(asyncio.run, note.enqueue(by=f"{n}")) for n in range(times)]
        for number, future in enumerate(futures):
            keys.append(future.result().key)
            if number % 10 == 9:
                seen.append(watcher.count())
    return keys, seen


def assert_flat(seen: list[int]) -> None:
    """No more connections at the end than there were in the first half."""
    half = len(seen) // 2
    assert max(seen[half:]) <= max(seen[:half])
    assert seen[-1] <= MOST


def test_enqueueing_from_a_new_event_loop_each_time_keeps_connections_flat(
    note: DeclaredJob, watcher: Watcher, database_url: str
) -> None:
    keys, seen = enqueue_from_threads(note, watcher, 120)
    assert_flat(seen)
    assert len(set(keys)) == 120
    assert notes(database_url) == {str(number): 1 for number in range(120)}


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_thousand_event_loops_in_threads_keep_connections_flat(
    note: DeclaredJob, watcher: Watcher, database_url: str
) -> None:
    keys, seen = enqueue_from_threads(note, watcher, 1_000)
    print(f"connections: {min(seen)} to {max(seen)}, {seen[-1]} at the end")
    assert_flat(seen)
    assert len(set(keys)) == 1_000
    assert notes(database_url) == {str(number): 1 for number in range(1_000)}


def test_one_event_loop_after_the_other_works_and_leaves_no_connection(
    app: Keptwork, note: DeclaredJob, watcher: Watcher, database_url: str
) -> None:
    for number in range(3):
        asyncio.run(note.enqueue(by=f"run {number}"))
    for number in range(3):
        loop = asyncio.new_event_loop()  # ended without a word to anything that lives in it
        loop.run_until_complete(note.enqueue(by=f"loop {number}"))
        loop.close()
    assert notes(database_url) == {f"{kind} {number}": 1 for kind in ("run", "loop") for number in range(3)}
    asyncio.run(app.close())
    asyncio.run(eventually(nobody(watcher)))


def nobody(watcher: Watcher) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def gone() -> bool:
        return not await asyncio.to_thread(watcher.count)

    return gone


def test_loop_closed_with_the_store_open_in_it_leaves_no_connection(
    app: Keptwork, note: DeclaredJob, watcher: Watcher
) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(note.enqueue(by="ann"))
    loop.close()
    assert watcher.count()
    asyncio.run(app.close())
    asyncio.run(eventually(nobody(watcher)))


def test_application_opened_again_in_a_later_loop_is_at_home_there(app: Keptwork, note: DeclaredJob) -> None:
    async def work() -> int:
        await note.enqueue(by="ann")
        return await app.work(until_idle=True)

    async def opened() -> bool:
        async with app:
            return app._home.here

    assert [asyncio.run(work()), asyncio.run(work())] == [1, 1]
    assert asyncio.run(opened())


CALLS: dict[str, Callable[[Keptwork, DeclaredJob], Coroutine[Any, Any, Any]]] = {}


def from_another_loop(call: Callable[[Keptwork, DeclaredJob], Coroutine[Any, Any, Any]]) -> None:
    CALLS[call.__name__] = call


@from_another_loop
async def enqueues(app: Keptwork, note: DeclaredJob) -> None:
    once = await note.enqueue(by="ann", _key="k", _priority=7)
    assert (await note.enqueue(by="bob", _key="k")).id == once.id
    assert len(await app.enqueue_many(note, [{"by": "eve"}] * 3)) == 3
    assert (await note.enqueue(by="joe", _unique="1h")).id == (await note.enqueue(by="joe", _unique="1h")).id


@from_another_loop
async def commits(app: Keptwork, note: DeclaredJob) -> None:
    async with app.transaction() as tx:
        await tx.execute("CREATE TABLE own_rows (n integer)")
        assert await tx.execute("INSERT INTO own_rows VALUES (1)") == 1
        made = await note.enqueue(by="ann", _tx=tx)
        await app.enqueue_many(note, [{"by": "ann"}], _tx=tx)
        await app.send_event("go", _tx=tx)
    async with app.transaction() as tx:
        assert await tx.fetch("SELECT n FROM own_rows") == [{"n": 1}]
        await tx.execute("DROP TABLE own_rows")
    assert await (await app.open()).get(JOB, made.key, None) is not None
    with pytest.raises(TransactionEnded, match="this transaction has ended"):
        await tx.execute("SELECT 1")


@from_another_loop
async def rolls_back(app: Keptwork, note: DeclaredJob) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
        async with app.transaction() as tx:
            made = await note.enqueue(by="ann", _tx=tx)
            raise ZeroDivisionError
    assert await (await app.open()).get(JOB, made.key, None) is None
    with pytest.raises(TransactionEnded, match=r"has ended \(it was rolled back\)"):
        await note.enqueue(by="ann", _tx=tx)


@from_another_loop
async def is_cancelled_in_a_transaction(app: Keptwork, note: DeclaredJob) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012 - the block is what raises
        async with app.transaction() as tx:
            made = await note.enqueue(by="ann", _tx=tx)
            async with asyncio.timeout(0.01):
                while True:
                    await note.enqueue(by="ann", _tx=tx)
    assert await (await app.open()).get(JOB, made.key, None) is None
    await note.enqueue(by="bob")


@from_another_loop
async def reads(app: Keptwork, note: DeclaredJob) -> None:
    await note.enqueue(by="ann")
    store = await app.open()
    assert store.url
    assert await store.jobs()
    async with store.snapshot() as snapshot:
        assert (await snapshot.counts(JOB))[0]
    assert (await store.atomically(lambda tx: tx.counts(JOB)))[0]
    async with asyncio.timeout(60):
        async for event in store.follow():
            assert event.entity == "job"
            break


@from_another_loop
async def waits_for_a_result(app: Keptwork, note: DeclaredJob) -> None:
    made = await note.enqueue(by="ann", _key="awaited")
    assert await made.result(timeout="30s") == "ann"
    assert await made.artifacts() == []


@from_another_loop
async def hears_why_a_move_is_refused(app: Keptwork, note: DeclaredJob) -> None:
    made = await note.enqueue(by="ann", _key="finished")
    assert await made.result(timeout="30s") == "ann"
    with pytest.raises(InvalidTransition, match="succeeded"):
        await queries.cancel(await app.open(), app.tenant_id, made.id, hard=False, reason=None, actor="cli:ann")


@from_another_loop
async def runs_a_flow(app: Keptwork, note: DeclaredJob) -> None:
    flow = await app.start_flow({"name": "one", "steps": [{"id": "sign", "approval": {"question": "Ship it?"}}]})
    await flow.approve(by="ann")
    assert (await flow.ended(timeout="30s")).word == "succeeded"


@from_another_loop
async def runs_a_crew(app: Keptwork, note: DeclaredJob) -> None:
    async def look(ctx: Context, task: str, share: int, shares: int, by: str) -> None: ...

    crew = await app.crew(app.declared(DeclaredJob(app, JobType.of(look))), task="look", by="ann")
    await crew.cancel()


@from_another_loop
async def has_no_approvals(app: Keptwork, note: DeclaredJob) -> None:
    assert await app.approvals() == []


@pytest.mark.parametrize("call", CALLS)
def test_call_from_another_event_loop_does_what_it_does_at_home(
    app: Keptwork, note: DeclaredJob, database_url: str, call: str
) -> None:
    """Beside a loop that works with the same application, and is not harmed."""

    async def at_home() -> None:
        async with app:
            working = asyncio.create_task(app.work())
            there = asyncio.create_task(asyncio.to_thread(elsewhere, lambda: CALLS[call](app, note)))
            while not there.done():
                await note.enqueue(by="home")
                await asyncio.sleep(0.01)
            await there
            app.stop()
            await working

    asyncio.run(at_home())
    assert notes(database_url)["home"]


def test_worker_in_a_second_event_loop_works_beside_the_first(app: Keptwork, note: DeclaredJob) -> None:
    async def at_home() -> int:
        async with app:
            await app.enqueue_many(note, [{"by": "ann"}] * 20)
            return int(await asyncio.to_thread(elsewhere, lambda: app.work(until_idle=True)))

    assert asyncio.run(at_home()) == 20


def test_handlers_in_threads_enqueue_by_event_loops_of_their_own(app: Keptwork, database_url: str) -> None:
    @app.job()
    def parent(ctx: Context, by: str) -> None:
        asyncio.run(child.enqueue(by=by))

    @app.job()
    def child(ctx: Context, by: str) -> None: ...

    async def work() -> int:
        async with app:
            await app.enqueue_many(parent, [{"by": "ann"}] * 10)
            return await app.work(until_idle=True)

    assert asyncio.run(work()) == 20
    assert notes(database_url) == {"ann": 20}


def test_transaction_of_one_visiting_loop_is_refused_in_another(app: Keptwork, note: DeclaredJob) -> None:
    async def first() -> None:
        async with app.transaction() as tx:
            with pytest.raises(OtherLoop, match="this transaction belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, note.enqueue(by="ann", _tx=tx))
            await note.enqueue(by="bob", _tx=tx)

    asyncio.run(note.enqueue(by="home"))
    asyncio.run(first())


async def test_store_itself_is_refused_in_another_loop_before_anything_is_sent(postgres_copy: str) -> None:
    store = await open_store(postgres_copy)
    with pytest.raises(OtherLoop, match="this store belongs to another event loop or process"):
        await asyncio.to_thread(elsewhere, lambda: store.counts(JOB))
    assert await store.counts(JOB) == (0, 0)
    await store.close()


def test_own_connection_opened_in_another_loop_takes_jobs_there(postgres_copy: str) -> None:
    app = Keptwork(postgres_copy)

    @app.job()
    async def note(ctx: Context, by: str) -> None: ...

    async def visit() -> None:
        connection = await asyncpg.connect(postgres_copy)
        async with connection.transaction():
            await note.enqueue(by="ann", _tx=connection)
        await connection.close()

    asyncio.run(note.enqueue(by="home"))
    asyncio.run(visit())
    assert notes(postgres_copy) == {"home": 1, "ann": 1}
    asyncio.run(app.close())


def test_database_in_memory_is_one_for_all_event_loops() -> None:
    app = Keptwork("sqlite:///:memory:")

    @app.job()
    async def note(ctx: Context, by: str) -> str:
        return by

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: asyncio.run(note.enqueue(by=str(n))), range(40)))
    assert asyncio.run(app.work(until_idle=True)) == 40
    asyncio.run(app.close())


@pytest.fixture
async def memory() -> AsyncIterator[Keptwork]:
    async with Keptwork("sqlite:///:memory:") as opened:
        yield opened


async def test_worker_on_a_database_in_memory_hears_of_jobs_from_other_loops(memory: Keptwork) -> None:
    @memory.job()
    async def note(ctx: Context, by: str) -> str:
        return by

    working = asyncio.create_task(memory.work())
    made = await asyncio.to_thread(asyncio.run, note.enqueue(by="ann"))
    assert await made.result(timeout="30s") == "ann"
    memory.stop()
    await working


# --- real processes


def program(name: str, url: str) -> Done:
    argv = [sys.executable, "-W", "error", str(PROGRAMS), name, url]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=environment())


@pytest.mark.parametrize(("name", "parents"), [("forks", 19), ("multiprocesses", 19)])
def test_forked_child_opens_a_store_of_its_own_and_leaves_the_parent_unharmed(
    database_url: str, name: str, parents: int
) -> None:
    done = program(name, database_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0, 0]\n", "")
    assert notes(database_url) == {"parent": parents, **{f"child {number}": 3 for number in range(3)}}


def test_transaction_is_refused_in_a_forked_child_and_commits_in_the_parent(database_url: str) -> None:
    done = program("forks_in_a_transaction", database_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "this transaction belongs to another event loop or process" in done.stdout
    assert notes(database_url) == {"parent": 1}


def test_child_that_goes_on_in_the_event_loop_of_its_parent_is_told_so(database_url: str) -> None:
    done = program("goes_on_in_the_loop", database_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "This process was forked inside a running event loop" in done.stdout
    assert notes(database_url) == {}
