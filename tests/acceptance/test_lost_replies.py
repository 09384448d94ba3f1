"""Answers lost after the commit, on every write call: made again, it answers the same and has left its events once.

On PostgreSQL the connection breaks on the way back, on SQLite the caller dies and another makes its call again.
"""

from __future__ import annotations

import inspect
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from keptwork.store import Store, open_store
from keptwork.store.contract.store import Writer
from keptwork.store.postgres.batches_keys import KeyPages
from keptwork.store.postgres.store import PostgresStore
from keptwork.store.url import database_url
from tests.acceptance.write_calls import CALLS, Call, examine, made_until_answered
from tests.support.lossy_proxy import LossyProxy

_TABLES = ("jobs", "events", "workers", "crews", "runs", "workstreams", "steps", "breakers", "agent_jobs")
_OF_LIMITS = ("limits", "limit_rules", "limit_wakes", "limit_uses", "recent_jobs")

# Every call begins with an empty database; the owner of the tables may do what their guards refuse.
_WIPE = "; ".join(
    [
        *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in _TABLES),
        f"TRUNCATE {', '.join(_TABLES)}, queues, schedules, seals, idempotency_keys, {', '.join(_OF_LIMITS)}",
        *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in _TABLES),
    ]
)


class Line:
    """A database, a store that reaches it directly, and one that reaches it through a proxy that loses answers."""

    def __init__(self, proxy: LossyProxy, direct: Store, through: PostgresStore, hand: asyncpg.Connection) -> None:
        self.proxy, self.direct, self.through, self._hand = proxy, direct, through, hand

    async def lost_on(self, call: Call, number: int) -> int:
        """Makes the call with the answer of that number lost, and says how many were."""
        await self._hand.execute(_WIPE)
        self.through._keys = (
            KeyPages()
        )  # it may have some in stock, and the answer that brings them may be lost as well
        given = await call.arrange(self.direct)
        events, before = await self.direct.event_count(), self.proxy.lost
        self.proxy.lose(number)
        result = await made_until_answered(call, self.through, given)
        self.proxy.lose(0)
        await examine(call, self.direct, given, result, events)
        return self.proxy.lost - before

    async def lost_one_by_one(self, call: Call) -> int:
        """Loses the first answer, then the second, until there are no more."""
        number = 1
        while await self.lost_on(call, number):
            number += 1
        return number - 1


@pytest.fixture
async def line(postgres_copy: str) -> AsyncIterator[Line]:
    with closing(LossyProxy(postgres_copy)) as proxy:
        direct, through = await open_store(postgres_copy), await PostgresStore.open(database_url(proxy.url))
        hand = await asyncpg.connect(postgres_copy)
        yield Line(proxy, direct, through, hand)
        for opened in (hand, through, direct):
            await opened.close()


def test_every_write_call_of_the_store_is_among_them() -> None:
    verbs = {name for name, _ in inspect.getmembers(Writer, inspect.isfunction) if not name.startswith("_")}
    assert {call.verb for call in CALLS.values()} == verbs


async def test_each_answer_of_each_write_call_may_be_lost_on_postgres(line: Line) -> None:
    lost = {name: await line.lost_one_by_one(call) for name, call in CALLS.items()}
    print(f"\npostgresql: {len(lost)} calls, {sum(lost.values())} answers lost: {lost}")
    assert min(lost.values()) > 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_1000_write_calls_lose_a_third_of_their_answers_on_postgres(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPTWORK_CONNECT_TIMEOUT", "60")  # the store gives up after that, and then nobody knows
    chance, lost = random.Random(1), 0
    for name in chance.choices(list(CALLS), k=1000):
        line.proxy.lose_at_random(0.33)
        lost += await line.lost_on(CALLS[name], 0)
        line.proxy.lose_at_random(0)
    print(f"\npostgresql: 1000 calls, {lost} answers lost, each call done once")
    assert lost > 300


def forgetful(make: Callable[[Store, Any, bool], Awaitable[Any]]) -> Callable[[Store, Any, bool], Awaitable[Any]]:
    """A caller that does not say that it is asking again."""
    return lambda store, given, again: make(store, given, False)


async def test_a_claim_made_again_as_if_it_were_the_first_is_caught_by_the_same_check(line: Line) -> None:
    for name in ("claim", "claim and start"):
        with pytest.raises(AssertionError, match="it got other jobs than the first time"):
            await line.lost_one_by_one(CALLS[name]._replace(make=forgetful(CALLS[name].make)))


async def test_rows_sent_again_under_other_keys_are_caught_by_the_same_check(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def once(self: PostgresStore, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    monkeypatch.setattr(PostgresStore, "_surely", once)
    for name in ("enqueue", "create worker"):
        with pytest.raises(AssertionError, match=r"there (are other jobs|is another one)"):
            await line.lost_one_by_one(CALLS[name]._replace(known_to_the_caller=True))


def dying_callers(folder: Path, *twin: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.acceptance.dying_caller", str(folder), *twin]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=100)
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_the_caller_of_each_write_call_may_die_after_its_commit_on_sqlite(tmp_path: Path) -> None:
    found = dying_callers(tmp_path)
    print(f"\nsqlite: {len(found)} calls, {sum(one['deaths'] for one in found.values())} callers died after a commit")
    assert {name: one["wrong"] for name, one in found.items() if one["wrong"]} == {}
    assert all(one["deaths"] for one in found.values())


def test_callers_on_sqlite_that_forget_what_they_asked_for_are_caught_by_the_same_check(tmp_path: Path) -> None:
    found = dying_callers(tmp_path, "forgetful")
    assert {"claim", "claim and start", "enqueue", "create worker"} <= {n for n, one in found.items() if one["wrong"]}
