"""`app.sync`: enqueueing from ordinary code, from threads and across forks, in real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keptwork import Keptwork
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.errors import BadInput, StoreError, TransactionEnded
from keptwork.job import DeclaredJob
from keptwork.store import open_store
from tests.support.command import Done, environment

pytestmark = pytest.mark.acceptance

PROGRAMS = Path(__file__).parent / "sync_programs.py"


@pytest.fixture
def app(database_url: str) -> Iterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    app.sync.close()


@pytest.fixture
def note(app: Keptwork) -> DeclaredJob:
    @app.job()
    def note(ctx: Context, by: str) -> None: ...

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


def program(name: str, url: str) -> Done:
    """With every warning an error: nothing is left open, nothing is complained of."""
    argv = [sys.executable, "-W", "error", str(PROGRAMS), name, url]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environment())


def test_ordinary_code_enqueues_and_a_worker_does_it(app: Keptwork, note: DeclaredJob, database_url: str) -> None:
    one = app.sync.enqueue(note, by="ann", _key="k", _priority=3)
    assert app.sync.enqueue(note, by="bob", _key="k").id == one.id
    assert len(app.sync.enqueue_many(note, ({"by": "eve"} for _ in range(3)))) == 3
    assert notes(database_url) == {"ann": 1, "eve": 3}

    async def work() -> int:
        async with app:
            return await app.work(until_idle=True)

    assert asyncio.run(work()) == 4


def test_a_transaction_holds_rows_and_jobs_together(app: Keptwork, note: DeclaredJob, database_url: str) -> None:
    with app.sync.transaction() as tx:
        tx.execute("CREATE TABLE own_rows (n integer)")
        assert tx.execute("INSERT INTO own_rows VALUES (1), (2)") == 2
        app.sync.enqueue(note, by="kept", _tx=tx)
        app.sync.enqueue_many(note, [{"by": "kept"}], _tx=tx)
    with pytest.raises(BadInput, match="missing a required argument"), app.sync.transaction() as undone:  # noqa: PT012
        undone.execute("DELETE FROM own_rows")
        app.sync.enqueue(note, by="undone", _tx=undone)
        app.sync.enqueue(note, _tx=undone)
    with app.sync.transaction() as tx:
        assert tx.fetch("SELECT n FROM own_rows ORDER BY n") == [{"n": 1}, {"n": 2}]
    assert notes(database_url) == {"kept": 2}
    with pytest.raises(TransactionEnded, match=r"this transaction has ended \(it was committed\)"):
        app.sync.enqueue(note, by="late", _tx=tx)


def test_ordinary_code_sends_events_and_decides(app: Keptwork, database_url: str) -> None:
    @app.job()
    async def asks(ctx: Context, question: str) -> object:
        told = await ctx.wait_for_event("go")
        return [told, (await ctx.wait_for_approval(question)).by]

    one, two = app.sync.enqueue(asks, question="a"), app.sync.enqueue(asks, question="b")
    app.sync.send_event("go", 1, job=one)
    with app.sync.transaction() as tx:
        app.sync.send_event("go", 2, job=two.id, _tx=tx)

    async def work() -> list[tuple[str, str]]:
        async with Keptwork(database_url) as working:
            working.kinds = app.kinds
            await working.work(until_idle=True)
            return sorted((one.question, one.public_id) for one in await working.approvals())

    (_, first), (_, second) = asyncio.run(work())
    assert app.sync.approve(first, by="ann").decision == "approved"
    assert app.sync.reject(second, by="ann", comment="no").comment == "no"
    asyncio.run(work())

    async def outcomes() -> list[str]:
        async with Keptwork(database_url) as reading:
            return [row["result"] or row["state"] for row in await (await reading.open()).jobs(newest_first=False)]

    assert asyncio.run(outcomes()) == ['[1,"ann"]', "failed"]


def test_errors_are_those_of_the_asynchronous_calls(app: Keptwork, note: DeclaredJob) -> None:
    with pytest.raises(BadInput, match="missing a required argument: 'by'"):
        app.sync.enqueue(note)
    with pytest.raises(BadInput, match="is no priority"):
        app.sync.enqueue(note, by="ann", _priority=1.5)
    with pytest.raises(StoreError), app.sync.transaction() as tx:
        tx.execute("SELECT * FROM nowhere")
    with pytest.raises(BadInput, match=r"a builtins\.str cannot be _tx; give a transaction of app\.sync"):
        app.sync.enqueue(note, by="ann", _tx="tx")  # type: ignore[arg-type]


def test_a_call_that_would_wait_for_itself_is_refused(app: Keptwork, note: DeclaredJob, database_url: str) -> None:
    with app.sync.transaction() as tx:
        for wrong in (lambda: app.sync.enqueue(note, by="ann"), app.sync.close, app.sync.transaction().__enter__):
            with pytest.raises(BadInput, match=r"inside app\.sync\.transaction"):
                wrong()
        app.sync.enqueue(note, by="bob", _tx=tx)
    assert notes(database_url) == {"bob": 1}


async def test_inside_an_event_loop_it_points_to_the_asynchronous_form(app: Keptwork, note: DeclaredJob) -> None:
    with pytest.raises(BadInput, match="would block the event loop it is called from; here write: await"):
        app.sync.enqueue(note, by="ann")
    await asyncio.to_thread(app.sync.enqueue, note, by="bob")  # a handler in a thread may
    await asyncio.to_thread(app.sync.close)


def test_a_database_in_memory_is_refused() -> None:
    app = Keptwork("sqlite:///:memory:")

    @app.job()
    def note(ctx: Context) -> None: ...

    with pytest.raises(BadInput, match="in memory belongs to the event loop that opened it"):
        app.sync.enqueue(note)


def test_many_threads_share_it_and_one_may_close_it(app: Keptwork, note: DeclaredJob, database_url: str) -> None:
    def some(number: int) -> None:
        for _ in range(10):
            app.sync.enqueue(note, by=str(number))
            with app.sync.transaction() as tx:
                app.sync.enqueue(note, by=str(number), _tx=tx)
        if number % 3 == 0:
            app.sync.close()

    before = set(threading.enumerate())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(some, range(8)))
    assert notes(database_url) == {str(number): 20 for number in range(8)}
    app.sync.close()
    app.sync.close()
    assert not [one for one in set(threading.enumerate()) - before if one.name.startswith("keptwork")]


# --- real processes


def test_a_program_ends_by_itself_without_a_word(database_url: str) -> None:
    done = program("plain", database_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert notes(database_url) == {"plain": 1}


def test_children_of_a_fork_get_one_of_their_own(database_url: str) -> None:
    done = program("prefork", database_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0, 0]\n", "")
    children = {f"child {number}": 5 for number in range(3)} | {f"child {number} again": 1 for number in range(3)}
    assert notes(database_url) == {"parent": 4, **children, **{f"grandchild {number}": 1 for number in range(3)}}


def test_a_fork_while_other_threads_enqueue_harms_nobody(database_url: str) -> None:
    done = program("forks_while_threads_enqueue", database_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0, 0]\n", "")
    found = notes(database_url)
    assert [found[f"child {number}"] for number in range(3)] == [1, 1, 1]
    assert found["thread"] > 3


def test_a_child_forked_inside_a_transaction_is_told_so_and_the_parent_commits(database_url: str) -> None:
    done = program("forks_in_a_transaction", database_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "inside app.sync.transaction()" in done.stdout
    assert notes(database_url) == {"parent": 1}


def test_a_program_killed_inside_a_transaction_leaves_nothing(database_url: str) -> None:
    argv = [sys.executable, str(PROGRAMS), "killed", database_url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.kill()
    assert notes(database_url) == {}
