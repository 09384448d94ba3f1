"""Two workers who end the last two things a step waits for at the same moment: it begins, and begins once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.definition import Flow
from keptwork.jobs import complete, outcome
from keptwork.store import open_store
from keptwork.store.postgres.store import PostgresTransaction
from tests.conformance.stage import worker
from tests.flow.flow_log import faults, known

CALL = {"call": "time:time"}
JOIN = Flow.model_validate(
    {"name": "join", "steps": [{"id": "a", **CALL}, {"id": "b", **CALL}, {"id": "c", **CALL, "depends_on": ["a", "b"]}]}
)
A_WHILE, LONG = 0.3, 20.0


def meeting(follows: Callable[..., Awaitable[None]], patience: float) -> Callable[..., Awaitable[None]]:
    """The same, once the other one is here as well, or does not come."""
    met = asyncio.Barrier(2)

    async def met_first(*what: Any) -> None:
        with suppress(TimeoutError, asyncio.BrokenBarrierError):
            async with asyncio.timeout(patience):
                await met.wait()
        await follows(*what)

    return met_first


async def together(url: str, monkeypatch: pytest.MonkeyPatch, patience: float) -> list[str]:
    """Both ends are written before either looks at what follows, if nothing keeps them apart; what is wrong then."""
    stores = [await open_store(url) for _ in range(2)]
    ref = await flows.start(stores[0], JOIN)
    owner = await worker(stores[0])
    jobs = await stores[0].claim(owner, ["default"], 2, 60_000_000, claim_id=1, start=True)
    await flows.began(stores[0], [(ref.public_id, 1)])  # neither is to move the flow: its row would keep them apart
    for name in ("settled", "conclude"):  # both have written before either looks, and looked before either goes on
        monkeypatch.setattr(advance, name, meeting(getattr(advance, name), patience))
    changes = [outcome.settle(job, None, None, lambda: 0.5, f"w:{owner}") for job in jobs]
    await asyncio.gather(*(complete.applied(store, [one]) for store, one in zip(stores, changes, strict=True)))
    found = faults(await known(stores[0]))
    for store in stores:
        await store.close()
    return found


async def test_two_ends_at_one_moment_let_the_step_after_them_begin_once(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await together(postgres_copy, monkeypatch, A_WHILE) == []


async def test_without_the_lock_of_the_tree_the_flow_hangs_and_the_check_says_so(
    postgres_copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(self: Any, trees: Sequence[int]) -> None:
        """The twin: nobody waits for anybody."""

    monkeypatch.setattr(PostgresTransaction, "lock_trees", nobody)
    assert any("waits for nothing" in fault for fault in await together(postgres_copy, monkeypatch, LONG))
