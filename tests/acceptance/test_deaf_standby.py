"""A caller gives up on a commit that waits for a deaf standby, and repeats the call.

The first call committed on the primary alone. Its repetition finds the rows there, and must not answer before a standby
has them: a failover would take back what it acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.core import ids
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.diagnostics import overrides
from keptwork.errors import InvalidTransition, KeptworkError, RunAgainBefore, Unconfirmed
from keptwork.jobs import queries
from keptwork.store import NewJob, open_store
from keptwork.store.postgres.batches_keys import KeyPages, Reserve
from keptwork.store.postgres.standby_acknowledgement import EXEMPT
from keptwork.store.postgres.store import PostgresStore
from keptwork.store.url import database_url
from tests.acceptance.write_calls import CALLS, Call
from tests.support import postgres_server
from tests.support.deaf_standby import Primary, local, primary
from tests.support.postgres_server import PostgresServer
from tests.support.postgres_stock import EMPTY, Stock
from tests.support.second_server import standby

AGAIN = ("claim", "claim and start")
"""A repeated claim is told apart from a first one, and only that one is exempt."""

REPEATED = [name for name, call in CALLS.items() if call.verb not in EXEMPT or name in AGAIN]
FRUITLESS = [name for name, call in CALLS.items() if call.verb in EXEMPT.keys() - {"record_telemetry", "take_duty"}]
"""These find nothing, once there is nothing."""

KNOWN_PATHS = (
    *("enqueue by key", "put_template", "send_signal", "add_tenant", "revoke_api_key", "rotate_api_key", "request"),
    *("claim", "cancel", "several changes", "make_budgets", "put_delivery", "put_agent_audit", "put_seal"),
)
"""Calls that repeat without a write or a lock: only the record holds back their answers."""


class Recorded(KeyPages):
    """Remembers what it gave out."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[int]] = []

    async def take(self, count: int, reserve: Reserve) -> list[int]:
        self.given.append(await super().take(count, reserve))
        return self.given[-1]


class Replayed(KeyPages):
    """Gives out the same, so that a repeated call sends the same rows, and asks the database for none."""

    def __init__(self, first: Recorded, store: PostgresStore) -> None:
        super().__init__()
        self._first, self._reserve = first, store._reserve_pages

    async def take(self, count: int, reserve: Reserve) -> list[int]:
        if self._first.given and len(self._first.given[0]) == count:
            return self._first.given.pop(0)
        return await super().take(count, self._reserve)


class Pair(NamedTuple):
    """A store whose commits are on the primary alone, and one whose commits wait."""

    deaf: Primary
    impatient: PostgresStore
    careful: PostgresStore

    async def first(self, call: Call) -> Any:
        """Make the call for a caller that did not wait, and return what it needed."""
        given = await call.arrange(self.impatient)
        self.keys.given.clear()
        await call.make(self.impatient, given, False)
        return given

    @property
    def keys(self) -> Recorded:
        assert isinstance(self.impatient._keys, Recorded)
        return self.impatient._keys

    async def answers(self, repeated: Awaitable[Any]) -> bool:
        """Return whether a call answered, or refused, although no standby hears."""
        answer = asyncio.ensure_future(repeated)
        held = await self.deaf.holds_back(answer)
        answer.cancel()
        with suppress(asyncio.CancelledError, KeptworkError):
            await answer
        await self.deaf.nobody_waits()
        return not held

    async def confirmed(self, repeated: Awaitable[Any]) -> Any:
        """Return what a call answers once a standby hears, and not before."""
        answer = asyncio.ensure_future(repeated)
        assert await self.deaf.holds_back(answer)
        await self.deaf.hear()
        return await answer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module's own: whether commits wait concerns all of its databases."""
    with postgres_server.start(settings={"autovacuum": "off"}) as started:
        yield started


@pytest.fixture(scope="module")
def stock(server: PostgresServer) -> Iterator[Stock]:
    url = server.create_database()

    async def migrate() -> None:
        await (await open_store(url)).close()

    asyncio.run(migrate())
    made = Stock(server, url)
    yield made
    made.close()


@pytest.fixture
async def pair(server: PostgresServer, stock: Stock) -> AsyncIterator[Pair]:
    url = stock.take()
    impatient, careful = [await PostgresStore.open(database_url(one)) for one in (local(url), url)]
    impatient._keys = Recorded()
    careful._keys = Replayed(impatient._keys, impatient)
    async with primary(server, url) as deaf:
        await deaf.deafen()
        yield Pair(deaf, impatient, careful)
    await careful.close()
    await impatient.close()
    stock.give_back(url)


@pytest.mark.parametrize("name", REPEATED)
async def test_repeated_write_answers_only_when_a_standby_has_its_rows(pair: Pair, name: str) -> None:
    given = await pair.first(CALLS[name])
    assert not await pair.answers(CALLS[name].make(pair.careful, given, True))


@pytest.mark.parametrize("name", KNOWN_PATHS)
async def test_twin_without_the_record_is_caught(pair: Pair, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(PostgresStore, "confirm", nothing)
    given = await pair.first(CALLS[name])
    tries = [await pair.answers(CALLS[name].make(pair.careful, given, True)) for _ in range(3)]
    assert any(tries)  # a page that the server tidies up on the way is written to the log, and waits once


@pytest.mark.parametrize("name", FRUITLESS)
async def test_exempt_operation_that_finds_nothing_answers_without_a_standby(pair: Pair, name: str) -> None:
    given = await pair.first(CALLS[name])
    await pair.deaf.hand.execute(EMPTY)
    assert await pair.answers(CALLS[name].make(pair.careful, given, False))


async def test_duty_that_is_not_due_is_looked_at_without_a_standby(pair: Pair) -> None:
    assert await pair.impatient.take_duty("sweep", 3_600_000_000)
    assert await pair.answers(pair.careful.take_duty("sweep", 3_600_000_000))


async def test_repeated_write_returns_the_first_answer_once_a_standby_hears(pair: Pair) -> None:
    first = await pair.impatient.enqueue([NewJob("k", key="order-17")])
    assert await pair.confirmed(pair.careful.enqueue([NewJob("k", key="order-17")])) == first


# --- decisions that only read


async def cancelled_job(pair: Pair) -> str:
    (job,) = await pair.impatient.enqueue([NewJob("k")])
    await queries.cancel(pair.impatient, 1, ids.public("job", job))
    return ids.public("job", job)


async def test_refusal_waits_for_the_rows_it_rests_on(pair: Pair) -> None:
    job = await cancelled_job(pair)
    with pytest.raises(InvalidTransition):
        await pair.confirmed(queries.cancel(pair.careful, 1, job))


async def test_refusal_is_unknown_if_its_record_is_unknown(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await cancelled_job(pair)
    monkeypatch.setenv("KEPTWORK_CONNECT_TIMEOUT", "0.3")  # for so long the record is written again
    refusal = asyncio.ensure_future(queries.cancel(pair.careful, 1, job))
    while await pair.deaf.holds_back(refusal):
        await pair.deaf.cancel_waits()
    with pytest.raises(Unconfirmed):
        await refusal


async def test_refusal_in_a_transaction_waits_after_the_rollback(pair: Pair) -> None:
    (job,) = await pair.impatient.enqueue([NewJob("k", key="order-17")])

    async def refuse() -> None:
        async with pair.careful.transaction() as tx:
            await tx.enqueue([NewJob("k", key="new")])
            (row,) = await tx.rows(JOB, [job])
            raise InvalidTransition(lifecycle="job", id="x", from_state=row["state"], trigger="start", allowed=())

    with pytest.raises(InvalidTransition):
        await pair.confirmed(refuse())
    assert len(await pair.impatient.jobs()) == 1


async def test_rerun_is_refused_only_when_a_standby_has_the_first_one(pair: Pair) -> None:
    job = await cancelled_job(pair)
    await queries.retry(pair.impatient, 1, job)
    assert not await pair.answers(queries.retry(pair.careful, 1, job))


async def test_override_to_the_same_state_waits(pair: Pair) -> None:
    job = await cancelled_job(pair)
    ended = partial(overrides.overridden, tenant_id=1, id=job, to="succeeded", reason="it ran elsewhere", actor="ann")
    await ended(pair.impatient)
    assert not await pair.answers(ended(pair.careful))


async def test_violated_constraint_waits_for_the_row_that_is_there(pair: Pair) -> None:
    await pair.impatient.create(WORKER, name="w", incarnation="1", workspace_id="test")
    await pair.deaf.hand.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")
    await pair.deaf.hand.execute("GRANT ALL ON orders TO PUBLIC")
    async with pair.impatient.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES (17)")

    async def insert() -> None:
        async with pair.careful.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (17)")

    assert not await pair.answers(insert())


async def test_bad_input_is_refused_without_a_standby(pair: Pair) -> None:
    assert await pair.answers(queries.enqueue(pair.careful, 1, "k", payload="[]"))


async def test_read_answers_without_a_standby(pair: Pair) -> None:
    job = await cancelled_job(pair)
    assert await pair.answers(queries.show(pair.careful, 1, job))
    assert await pair.answers(pair.careful.digest(None, 100))
    async with pair.careful.snapshot() as reader:
        assert await pair.answers(reader.jobs())


# --- transactions of the caller's own


async def test_own_transaction_waits_for_the_job_that_it_found(pair: Pair) -> None:
    await pair.impatient.enqueue([NewJob("k", key="order-17")])

    async def enqueue() -> list[int]:
        async with pair.careful.transaction() as tx:
            return await tx.enqueue([NewJob("k", key="order-17")])

    assert not await pair.answers(enqueue())


async def sql_enqueue(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SELECT keptwork_enqueue('k', key => 'order-17')"))
    finally:
        await connection.close()


async def test_sql_function_waits_for_the_job_that_it_found(pair: Pair) -> None:
    url = pair.careful._url.text
    first = await sql_enqueue(local(url))
    assert await pair.confirmed(sql_enqueue(url)) == first


async def test_foreign_connection_waits_for_the_job_that_it_found(pair: Pair) -> None:
    await pair.impatient.enqueue([NewJob("k", key="order-17")])
    own = await asyncpg.connect(pair.careful._url.text)

    async def enqueue() -> None:
        async with own.transaction():
            await pair.careful.within(own).enqueue([NewJob("k", key="order-17")])

    assert not await pair.answers(enqueue())
    await own.close()


# --- waits that the server gave up


Writes = Callable[[PostgresStore], Awaitable[object]]


async def pause(store: PostgresStore) -> None:
    await store.set_queue_paused("default", True)


async def enqueue_in_transaction(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        await tx.enqueue([NewJob("k")])


async def pause_for_a_tenant(store: PostgresStore) -> None:
    await pause(store.narrowed(1))


@pytest.mark.parametrize("write", [pause, enqueue_in_transaction, pause_for_a_tenant])
async def test_commit_whose_wait_was_cancelled_is_unknown(pair: Pair, write: Writes) -> None:
    answer = asyncio.ensure_future(write(pair.careful))
    assert await pair.deaf.holds_back(answer)
    await pair.deaf.cancel_waits()
    with pytest.raises(Unconfirmed, match="Repeat the call"):
        await answer


async def test_enqueue_whose_wait_was_cancelled_is_sent_again(pair: Pair) -> None:
    answer = asyncio.ensure_future(pair.careful.enqueue([NewJob("k")]))
    assert await pair.deaf.holds_back(answer)
    await pair.deaf.cancel_waits()
    await pair.deaf.nobody_waits()
    made = await pair.confirmed(answer)
    assert [row["id"] for row in await pair.impatient.jobs()] == made


async def test_session_of_a_caller_that_gave_up_serves_the_next_one(pair: Pair) -> None:
    assert not await pair.answers(pause(pair.careful))
    await pair.deaf.hear()
    for _ in range(3):
        await pause(pair.careful)


# --- calls from another event loop


async def test_refusal_in_another_event_loop_waits_for_the_rows_it_rests_on(pair: Pair) -> None:
    job = await cancelled_job(pair)
    await queries.retry(pair.impatient, 1, job)
    async with Keptwork(pair.careful._url.text) as app:

        def retry() -> None:
            async def retried() -> None:
                await queries.retry(await app.open(), 1, job)

            asyncio.run(retried())

        with pytest.raises(RunAgainBefore):
            await pair.confirmed(asyncio.to_thread(retry))


# --- two servers, of which the second stops receiving


async def given_up_and_repeated(pair: Pair, name: str) -> bool:
    """Give a call up while its commit waits, and repeat it; return whether the repetition answered."""
    call, made = CALLS[name], Recorded()
    await pair.deaf.hand.execute(EMPTY)
    given = await call.arrange(pair.impatient)
    await pair.deaf.deafen()
    try:
        pair.careful._keys = made
        assert not await pair.answers(call.make(pair.careful, given, False))
        pair.careful._keys = Replayed(made, pair.impatient)
        return await pair.answers(call.make(pair.careful, given, True))
    finally:
        await pair.deaf.hear()


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_every_repeated_write_waits_for_a_standby_that_stopped_receiving() -> None:
    with postgres_server.start(settings={"autovacuum": "off"}) as first, standby(first) as second:
        url = first.create_database()
        careful, impatient = [await PostgresStore.open(database_url(one)) for one in (url, local(url))]
        careful._reserve_pages = impatient._reserve_pages  # type: ignore[method-assign]  # a sequence may write, too
        async with primary(first, url, second) as deaf:
            pair = Pair(deaf, impatient, careful)
            answered = [name for name in REPEATED if await given_up_and_repeated(pair, name)]
        await careful.close()
        await impatient.close()
    print(f"\n{len(REPEATED)} writes were given up and repeated, {len(answered)} answered without the standby")
    assert answered == []
