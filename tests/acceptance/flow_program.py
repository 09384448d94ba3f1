"""A worker whose steps deliver to the sink, and a program that starts flows: both to be killed by tests.

Usage: python -m tests.acceptance.flow_program URL SINK_PORT NAME LEASE [TWIN], which works; and with START COUNT before
the URL, written `start 8`, it starts so many flows, each under a key of its own, so that it can be killed and begin
anew. Both end when their standard input does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

from keptwork import Keptwork
from keptwork.core.lifecycles import Change
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.definition import Flow
from keptwork.jobs.complete import Settled
from keptwork.maintenance import reconciler
from keptwork.store import Store, open_store
from tests.acceptance.effects import Outlet
from tests.acceptance.worker_program import SLOTS, die_with_the_test, token

MODULE = "tests.acceptance.flow_program"
TARGET, COUNT = f"{MODULE}:deliver", f"{MODULE}:one_more"
INLINE = 10
LONGEST = 0.03
ELEMENTS = 4
OFTEN = {"retries": 100, "backoff": "10ms"}
"""Nobody knows how often the worker of a step will be killed."""

_outlets: list[Outlet] = []


async def deliver(ctx: Any, number: int, name: str, seconds: float) -> str:
    """One effect, outside, under a key that stays the same however often the step is tried."""
    if not _outlets:
        _outlets.append(Outlet(int(os.environ["FLOW_SINK"])))
    await asyncio.sleep(seconds)
    _outlets[0].deliver(ctx.idempotency_key("effect"), number, name, token(ctx))
    return name


async def one_more(number: int) -> int:
    """No effect at all."""
    return number + 1


def definition(number: int) -> tuple[Flow, dict[str, Flow]]:
    """The flow of that number and the one inside it: a graph that chance has drawn, with a list in it. It counts up to
    its number first, in steps that are carried out together."""
    chance = Random(number)
    steps: list[dict[str, Any]] = [_counting(number, place) for place in range(INLINE)]
    steps += [_step(chance, number, f"s{place}", _before(chance, place)) for place in range(chance.randint(3, 7))]
    items = [f"e{place}" for place in range(ELEMENTS)]
    steps.append(
        {
            **_step(chance, number, "each", ["s0"]),
            "for_each": {"items": items, "limit": 2},
            "with": {"number": number, "name": "${item}", "seconds": 0.0},
        }
    )
    steps.append({"id": "sub", "flow": f"inner{number}", "depends_on": ["s1"]})
    steps.append(_step(chance, number, "last", [step["id"] for step in steps]))
    inner = [_step(chance, number, "i0", []), _step(chance, number, "i1", ["i0"])]
    name = f"inner{number}"
    whole = Flow.model_validate({"name": f"flow{number}", "steps": steps})
    return whole, {name: Flow.model_validate({"name": name, "steps": inner})}


def effects(number: int) -> set[str]:
    """What that flow is to do to the world, each once."""
    whole, _ = definition(number)
    own = {step.id for step in whole.steps if step.call == TARGET and step.for_each is None}
    return own | {f"e{place}" for place in range(ELEMENTS)} | {"i0", "i1"}


def _before(chance: Random, place: int) -> list[str]:
    return [f"s{one}" for one in sorted(chance.sample(range(place), min(place, chance.randint(0, 2))))] or ["n9"]


def _counting(number: int, place: int) -> dict[str, Any]:
    before = {"depends_on": [f"n{place - 1}"]} if place else {}
    given = f"${{n{place - 1}.value}}" if place else number - INLINE
    step = {"id": f"n{place}", "call": COUNT, "with": {"number": given}, "inline": True, **before}
    return {**step, **OFTEN}


def _step(chance: Random, number: int, name: str, before: list[str]) -> dict[str, Any]:
    counted = "${n9.value}" if name.startswith("s") else number
    given = {"number": counted, "name": name, "seconds": chance.uniform(0, LONGEST)}
    step = {"id": name, "call": TARGET, "with": given, **OFTEN}
    return {**step, **({"depends_on": before} if before else {})}


async def start(url: str, count: int) -> None:
    store = await open_store(url)
    for number in range(count):
        whole, library = definition(number)
        await flows.start(store, whole, key=f"flow-{number}", library=library)
    await store.close()


async def work(url: str, name: str, lease: str) -> None:
    await Keptwork(url).work(name=name, lease=lease, concurrency=SLOTS)


def tell_later() -> None:
    """The twin: a job ends in one transaction, and what follows from it would happen in the next one; now and then the
    process dies between the two, and nobody catches up on it."""
    chance = Random(os.getpid())

    async def settled(store: Store, changes: Sequence[Change], *_: Any) -> Settled:
        late = await store.apply(changes)
        if chance.random() < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        await store.atomically(lambda tx: advance.settled(tx, [one for one in changes if one not in late]))
        return Settled(late)

    async def caught_up(store: Store, limit: int = 0) -> int:
        return 0

    import keptwork.workers.worker as program

    program.settled = settled  # type: ignore[attr-defined,assignment]
    reconciler.catch_up = caught_up


def main(*words: str) -> None:
    threading.Thread(target=die_with_the_test, daemon=True).start()
    if words[0] == "start":
        asyncio.run(start(words[2], int(words[1])))
        os._exit(0)  # the thread that waits for the test still reads
    url, port, name, lease, *twin = words
    os.environ["FLOW_SINK"] = port
    if twin:
        tell_later()
    asyncio.run(work(url, name, lease))


if __name__ == "__main__":
    main(*sys.argv[1:])
