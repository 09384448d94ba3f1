"""Somebody who makes calls: asks for money, and says what came of it."""

from __future__ import annotations

from itertools import count
from typing import Any

from keptwork.agents import budgets
from keptwork.agents.budgets import Refused, Reserved
from keptwork.agents.conversation import NOTHING, Usage
from keptwork.store import Store

_calls = count(1)


async def ask(store: Store, job: int, ceiling: int = 100, **rest: Any) -> Reserved | Refused:
    given = {"flow_tree": None, "call": f"call {next(_calls)}", "provider": "p", "model": "m", **rest}
    return await budgets.reserve(store, **{"tenant_id": 1, "job_id": job, "ceiling_micros": ceiling, **given})


async def reserved(store: Store, job: int, ceiling: int = 100, **rest: Any) -> Reserved:
    answer = await ask(store, job, ceiling, **rest)
    assert isinstance(answer, Reserved), answer
    return answer


async def refused(store: Store, job: int, ceiling: int = 100, **rest: Any) -> Refused:
    answer = await ask(store, job, ceiling, **rest)
    assert isinstance(answer, Refused), answer
    return answer


async def settled(store: Store, id: int, cost: int, usage: Usage = NOTHING) -> str | None:
    return await store.atomically(lambda tx: budgets.settle(tx, id, cost_micros=cost, usage=usage))


async def released(store: Store, id: int) -> None:
    await store.atomically(lambda tx: budgets.release(tx, id))
