"""Answers lost after the commit while flows are started and moved on: made again, everything has happened once.

On SQLite nothing lies between the caller and its database; there the caller dies, and the tests of killed flows see to
that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import Change
from keptwork.errors import Unreachable
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Seat
from keptwork.jobs import complete, outcome
from keptwork.store import Job, Store, open_store
from keptwork.store.postgres.store import PostgresStore
from keptwork.store.url import database_url
from tests.conformance.stage import worker
from tests.support.lossy_proxy import LossyProxy

LEASE = 60_000_000
CHAIN = Flow.model_validate(
    {
        "name": "chain",
        "steps": [
            {"id": "a", "call": "time:time"},
            {"id": "b", "call": "time:time", "depends_on": ["a"]},
            {"id": "sign", "approval": {}, "depends_on": ["a"]},
        ],
    }
)


class Line:
    """A store that reaches its database directly, and one whose answers may be lost."""

    def __init__(self, proxy: LossyProxy, direct: Store, through: Store) -> None:
        self.proxy, self.direct, self.through = proxy, direct, through

    async def each_answer_lost(self, call: Callable[[int], Awaitable[None]]) -> int:
        """Makes the call with its first answer lost, then with its second, until there is none left to lose."""
        number = 0
        while True:
            number += 1
            before = self.proxy.lost
            await call(number)
            self.proxy.lose(0)
            if self.proxy.lost == before:
                return number - 1


@pytest.fixture
async def line(postgres_copy: str) -> AsyncIterator[Line]:
    with closing(LossyProxy(postgres_copy)) as proxy:
        direct, through = await open_store(postgres_copy), await PostgresStore.open(database_url(proxy.url))
        yield Line(proxy, direct, through)
        await through.close()
        await direct.close()


async def again_until_answered(make: Callable[[bool], Awaitable[Any]]) -> Any:
    again = False
    while True:
        try:
            return await make(again)
        except Unreachable:
            again = True


async def test_a_flow_is_started_once_whichever_answer_is_lost(line: Line) -> None:
    made: list[int] = []

    async def start(number: int) -> None:
        events = await line.direct.event_count()
        line.proxy.lose(number)
        ref = await again_until_answered(lambda again: flows.start(line.through, CHAIN, key=f"start-{number}"))
        made.append(await line.direct.event_count() - events)
        assert [job.step_id for job in await line.direct.unfinished_jobs(ref.id)] == [
            step["id"] for step in await line.direct.steps(ref.id) if step["name"] == "a"
        ]

    lost = await line.each_answer_lost(start)
    print(f"\npostgresql: {lost} answers lost while a flow was started")
    assert lost > 3
    assert set(made) == {1 + 3 + 1}  # the flow, its steps and one job are born once
    assert list((await verify.verify(line.direct)).problems) == []


def settling(line: Line, owner: int, *, forgets: bool = False) -> Callable[[int], Awaitable[None]]:
    """A worker that settles the first step, and takes the one after it with the same call."""

    async def settled(number: int) -> None:
        ref = await flows.start(line.direct, CHAIN, key=f"settle-{number}-{forgets}")
        (job,) = await line.direct.claim(owner, ["default"], 1, LEASE, claim_id=2 * number, start=True)
        change = outcome.settle(job, None, {"value": 1}, lambda: 0.5, f"w:{owner}")
        line.proxy.lose(number)
        late, jobs = await again_until_answered(
            lambda again: _settled(line.through, change, owner, 2 * number + 1, again and not forgets)
        )
        line.proxy.lose(0)
        await _insist(line.direct, ref, late, jobs)

    return settled


async def _settled(store: Store, change: Change, owner: int, claim: int, again: bool) -> tuple[list[Change], list[Job]]:
    """As a worker does: what began in its seat is asked for under its number, if the answer was lost; what is in the
    queue then is claimed like anything else."""
    seat = None if again else Seat(owner, LEASE, claim, ["default"])
    done = await complete.settle(store, [change], seat=seat)
    begun = [] if done.begun is None else [done.begun]
    if again:
        begun = await store.claim(owner, ["default"], 1, LEASE, claim_id=claim, start=True, again=True)
    return done.late, begun or await store.claim(owner, ["default"], 1, LEASE, claim_id=claim, start=True)


async def _insist(store: Store, ref: flows.FlowRef, late: list[Change], jobs: list[Job]) -> None:
    steps = {step["name"]: step for step in await store.steps(ref.id)}
    assert late == []
    assert [job.step_id for job in jobs] == [steps["b"]["id"]]
    assert {name: step["state"] for name, step in steps.items()} == {
        "a": "S_SUCCESS",
        "b": "S_RUNNING",
        "sign": "S_RUNNING",
    }
    assert [job.id for job in await store.unfinished_jobs(ref.id)] == [jobs[0].id]
    assert len([one for one in await store.approvals(1) if one.step_id == steps["sign"]["id"]]) == 1


async def test_a_step_ends_and_the_next_begins_once_whichever_answer_is_lost(line: Line) -> None:
    lost = await line.each_answer_lost(settling(line, await worker(line.direct)))
    print(f"\npostgresql: {lost} answers lost while a step ended and the next one began")
    assert lost > 5
    assert list((await verify.verify(line.direct)).problems) == []


async def test_a_worker_that_forgets_what_it_has_claimed_is_caught_by_the_same_check(line: Line) -> None:
    with pytest.raises(AssertionError, match=r"^assert \[\] == \[\d+\]"):
        await line.each_answer_lost(settling(line, await worker(line.direct), forgets=True))
