"""A transaction that is used after its block: one refusal, whatever ended it and whoever else is inside another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, OtherLoop, TransactionEnded
from keptwork.job import DeclaredJob
from keptwork.store.postgres.connections_server import SESSION_SETTINGS
from keptwork.store.sqlite import store

HAS_ENDED = "this transaction has ended"
OWN_ROW = "INSERT INTO own_rows (n) VALUES (1)"

Call = Callable[[Keptwork, DeclaredJob, Any], Coroutine[Any, Any, Any]]
CALLS: dict[str, Call] = {
    "execute": lambda app, note, tx: tx.execute(OWN_ROW),
    "fetch": lambda app, note, tx: tx.fetch("SELECT n FROM own_rows"),
    "enqueue": lambda app, note, tx: note.enqueue(_tx=tx),
    "enqueue with a key": lambda app, note, tx: note.enqueue(_tx=tx, _key="late"),
    "enqueue in a window": lambda app, note, tx: note.enqueue(_tx=tx, _unique="1m"),
    "enqueue_many": lambda app, note, tx: app.enqueue_many(note, [{}], _tx=tx),
    "send_event": lambda app, note, tx: app.send_event("go", _tx=tx),
    "a read": lambda app, note, tx: tx.jobs(),
    "a function of the store": lambda app, note, tx: tx.atomically(lambda inner: inner.counts(JOB)),
}


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    async with Keptwork(database_url) as opened:
        async with opened.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS own_rows (n integer)")
            await tx.execute("DELETE FROM own_rows")
        yield opened


@pytest.fixture
def note(app: Keptwork) -> DeclaredJob:
    @app.job()
    async def note(ctx: Context) -> None: ...

    return note


async def committed(app: Keptwork) -> Any:
    async with app.transaction() as tx:
        return tx


async def failed(app: Keptwork) -> Any:
    with pytest.raises(ZeroDivisionError):
        async with app.transaction() as tx:
            raise ZeroDivisionError
    return tx


async def timed_out(app: Keptwork) -> Any:
    with pytest.raises(TimeoutError):
        async with app.transaction() as tx, asyncio.timeout(0.01):
            await asyncio.Event().wait()
    return tx


async def cancelled(app: Keptwork) -> Any:
    inside: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        async with app.transaction() as tx:
            inside.set_result(tx)
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    tx = await inside
    task.cancel()
    await asyncio.wait({task})
    return tx


async def spoilt(app: Keptwork) -> Any:
    with pytest.raises(Exception, match="nowhere"):
        async with app.transaction() as tx:
            await tx.fetch("SELECT * FROM nowhere")
    return tx


ENDINGS = {end.__name__: end for end in (committed, failed, timed_out, cancelled, spoilt)}


async def written(app: Keptwork) -> tuple[int, int]:
    """Rows of the test's own table, and jobs."""
    async with app.transaction() as tx:
        (row,) = await tx.fetch("SELECT count(*) AS n FROM own_rows")
        return int(row["n"]), (await tx.counts(JOB))[0]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_every_call_is_refused_after_the_block_of_its_transaction(
    app: Keptwork, note: DeclaredJob, ending: str
) -> None:
    tx = await ENDINGS[ending](app)
    for call in CALLS.values():
        with pytest.raises(TransactionEnded, match=HAS_ENDED):
            await call(app, note, tx)
    assert await written(app) == (0, 0)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_late_call_does_not_join_the_transaction_of_another_task(
    app: Keptwork, note: DeclaredJob, ending: str
) -> None:
    late = await ENDINGS[ending](app)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
        async with app.transaction() as other:
            await other.execute(OWN_ROW)
            for call in CALLS.values():
                with pytest.raises(TransactionEnded, match=HAS_ENDED):
                    await call(app, note, late)
            raise ZeroDivisionError
    assert await written(app) == (0, 0)


async def test_refused_late_call_leaves_the_transaction_of_another_task_unharmed(
    app: Keptwork, note: DeclaredJob
) -> None:
    late = await committed(app)
    async with app.transaction() as other:
        await other.execute(OWN_ROW)
        with pytest.raises(TransactionEnded, match=HAS_ENDED):
            await late.execute("SELECT * FROM nowhere")
        await note.enqueue(_tx=other)
    assert await written(app) == (1, 1)


async def test_call_made_while_the_block_ends_is_refused_or_belongs_to_the_transaction(app: Keptwork) -> None:
    """None of them waits for an answer that never comes, none is written by itself."""
    accepted = 0
    for _ in range(20):
        async with app.transaction() as tx:
            await tx.fetch("SELECT 1 AS one")
        calls = [asyncio.create_task(tx.execute(OWN_ROW)) for _ in range(3)]
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        accepted += sum(not isinstance(answer, TransactionEnded) for answer in answers)
    assert (accepted, (await written(app))[0]) == (0, 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that ends idle transactions after 0.2 s."""
    monkeypatch.setattr(store, "IDLE_TRANSACTION_SECONDS", 0.2)
    monkeypatch.setattr("keptwork.store.postgres.connections_server.IDLE_SECONDS", 0.2)
    monkeypatch.setitem(SESSION_SETTINGS, "idle_in_transaction_session_timeout", "200ms")


@pytest.mark.acceptance
@pytest.mark.usefixtures("impatient")
async def test_idle_transaction_is_refused_inside_and_after_its_block_and_rolled_back(
    database_url: str,
) -> None:
    idle = r"this transaction has ended \(it was idle for 0\.2 s and was rolled back\)"
    async with Keptwork(database_url) as app:

        @app.job()
        async def note(ctx: Context) -> None: ...

        with pytest.raises(TransactionEnded, match=idle):  # noqa: PT012 - the block is what raises
            async with app.transaction() as tx:
                await note.enqueue(_tx=tx)
                with pytest.raises(TransactionEnded, match=idle):
                    await until_refused(tx)
        with pytest.raises(TransactionEnded, match=HAS_ENDED):
            await note.enqueue(_tx=tx)
        assert await (await app.open()).counts(JOB) == (0, 0)


async def until_refused(tx: Any) -> None:
    """Use a transaction ever more rarely until it has timed out."""
    for tenths in range(1, 100):
        await asyncio.sleep(tenths / 10)
        await tx.fetch("SELECT 1 AS one")


@pytest.mark.acceptance
@pytest.mark.usefixtures("impatient")
async def test_block_that_fails_after_its_transaction_timed_out_raises_its_own_error(database_url: str) -> None:
    async with Keptwork(database_url) as app:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
            async with app.transaction() as tx:
                with pytest.raises(TransactionEnded, match=HAS_ENDED):
                    await until_refused(tx)
                raise ZeroDivisionError


async def test_snapshot_is_refused_after_its_block(app: Keptwork) -> None:
    async with (await app.open()).snapshot() as snapshot:
        await snapshot.counts(JOB)
    with pytest.raises(TransactionEnded, match=HAS_ENDED):
        await snapshot.counts(JOB)


async def test_transaction_of_a_function_of_the_store_is_refused_after_it(app: Keptwork) -> None:
    leaked: list[Any] = []

    async def work(tx: Any) -> None:
        leaked.append(tx)

    await (await app.open()).atomically(work)
    with pytest.raises(TransactionEnded, match=HAS_ENDED):
        await leaked[0].counts(JOB)


async def test_transaction_is_refused_in_another_event_loop(app: Keptwork, note: DeclaredJob) -> None:
    async with app.transaction() as tx:
        for name in ("execute", "fetch", "a read"):
            with pytest.raises(OtherLoop, match="this transaction belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, CALLS[name](app, note, tx))
        await tx.execute(OWN_ROW)
    assert await written(app) == (1, 0)


@pytest.mark.parametrize("ending", ["committed", "failed"])
def test_transaction_of_ordinary_code_is_refused_after_its_block(database_url: str, ending: str) -> None:
    app = Keptwork(database_url)

    @app.job()
    def note(ctx: Context) -> None: ...

    try:
        with app.sync.transaction() as tx:
            if ending == "failed":
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    for call in (lambda: tx.execute(OWN_ROW), lambda: tx.fetch("SELECT 1"), lambda: app.sync.enqueue(note, _tx=tx)):
        with pytest.raises(TransactionEnded, match=HAS_ENDED):
            call()
    app.sync.close()


@pytest.mark.acceptance
@pytest.mark.usefixtures("impatient")
def test_idle_transaction_of_ordinary_code_is_refused(database_url: str) -> None:
    app = Keptwork(database_url)
    with pytest.raises(TransactionEnded, match=r"it was idle for 0\.2 s"), app.sync.transaction() as tx:
        app.sync._lane.run(until_refused(tx.lent))  # type: ignore[union-attr]
    with pytest.raises(TransactionEnded, match=HAS_ENDED):
        tx.execute(OWN_ROW)
    app.sync.close()


async def test_own_connection_that_was_released_to_its_pool_is_refused(postgres_copy: str) -> None:
    async with Keptwork(postgres_copy) as app, asyncpg.create_pool(postgres_copy, min_size=1, max_size=1) as pool:

        @app.job()
        async def note(ctx: Context) -> None: ...

        async with pool.acquire() as connection, connection.transaction():
            await note.enqueue(_tx=connection)
        with pytest.raises(BadInput, match="was released to its pool; acquire another one"):
            await note.enqueue(_tx=connection)
        async with pool.acquire() as connection, connection.transaction():
            with pytest.raises(OtherLoop, match="given as _tx belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, note.enqueue(_tx=connection))
        assert await (await app.open()).counts(JOB) == (1, 0)
