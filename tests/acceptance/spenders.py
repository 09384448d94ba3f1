"""Many operating-system processes that all spend from one budget, each call of theirs as dear as the others.

Usage: python -m tests.acceptance.spenders URL PROCESSES ROUNDS CAP [TWIN]. Prints, as JSON, how many calls each was let
make and how many it was refused, how much it paid, and the most it ever saw reserved and spent together.
"""

import asyncio
import json
import random
import sys
from collections.abc import Callable

from keptwork.agents import budgets
from keptwork.agents.budgets import Reserved
from keptwork.core.money import Caps
from keptwork.store import Store, open_store
from tests.acceptance.together import together
from tests.acceptance.twins import break_store

CEILING = 100
FIRST_JOB = 1 << 40


async def spend(url: str, number: int, rounds: int, cap: int, ready: Callable[[], None]) -> dict[str, int]:
    """Some calls cost what was reserved for them, some less, some nothing, and some are lost."""
    store, dice = await open_store(url, migrate=False), random.Random(number)
    told = {"made": 0, "refused": 0, "paid": 0, "most": 0}
    ready()
    for turn in range(rounds):
        job = FIRST_JOB + number * 10_000 + turn
        asked = {"tenant_id": 1, "job_id": job, "ceiling_micros": CEILING}
        answer = await budgets.reserve(store, **asked, **CALL, caps=Caps(tenant=cap))  # type: ignore[arg-type]
        if not isinstance(answer, Reserved):
            told["refused"] += 1
            continue
        told["made"] += 1
        told["most"] = max(told["most"], await seen(store))
        await asyncio.sleep(0.001 * dice.random())
        told["paid"] += await end(store, answer.id, job, dice.choice(("all", "all", "some", "nothing", "lost")))
    await store.close()
    return told


CALL = {"flow_tree": None, "call": "turn 1", "provider": "p", "model": "m", "tokens": 0}


async def seen(store: Store) -> int:
    ((budget, _),) = await store.budgets(1, scope="tenant")
    return budget.spent_micros + budget.reserved_micros


async def end(store: Store, id: int, job: int, way: str) -> int:
    cost = {"all": CEILING, "some": CEILING // 3}.get(way, 0)
    if way == "lost":
        await budgets.lost(store, job, "turn 1")
        return CEILING
    if way == "nothing":
        await store.atomically(lambda tx: budgets.release(tx, id))
    else:
        await store.atomically(lambda tx: budgets.settle(tx, id, cost_micros=cost))
    return cost


def main(url: str, processes: int, rounds: int, cap: int, twin: str = "") -> None:
    if twin:
        break_store(twin)
    failed, told = together(processes, lambda number, ready: spend(url, number, rounds, cap, ready))
    print(json.dumps({"failed": failed, "told": told}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
