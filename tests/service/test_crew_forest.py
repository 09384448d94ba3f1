"""Random trees of crews under random quotas, with shares that fail and workers that crash: no quota is ever exceeded,
nobody waits for a worker that is free, nothing outlives its crew, and without faults every crew ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from keptwork.audit import verify
from keptwork.core.clock import ManualClock
from keptwork.crews import engine as crew_moves
from keptwork.crews import plan as crew_plan
from keptwork.crews.plan import LetGo
from keptwork.store import open_store
from keptwork.workers.waits import Crews
from tests.conformance.by_hand import hand_on
from tests.conformance.times import START, PostgresClock
from tests.service.crew_forest import Forest, Node, forests, grown

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])


async def on_sqlite(forest: Forest, steps: int = 40) -> None:
    clock = ManualClock(START)

    async def advance(microseconds: int) -> None:
        clock.advance(microseconds)

    store = await open_store("sqlite:///:memory:", clock=clock)
    try:
        await grown(store, 1, forest, advance, steps)
        assert (await verify.verify(store)).clean
    finally:
        await store.close()


def under_seeds(forest: Forest, *seeds: int) -> None:
    for seed in seeds:
        asyncio.run(on_sqlite(forest._replace(seed=seed)))


@settings(QUIET, max_examples=12)
@given(forests())
def test_random_trees_of_crews_on_sqlite(forest: Forest) -> None:
    asyncio.run(on_sqlite(forest))


async def on_postgres(url: str, drawn: list[Forest]) -> None:
    hand = await hand_on(url)
    clock, store = PostgresClock(hand), await open_store(url)
    try:
        for number, forest in enumerate(drawn):
            await grown(store, await store.add_tenant(f"forest {number}"), forest, clock.advance)
        assert (await verify.verify(store)).clean
    finally:
        await store.close()
        await hand.close()


def test_random_trees_of_crews_on_postgres(postgres_copy: str) -> None:
    drawn: list[Forest] = []

    @settings(QUIET, max_examples=5)
    @given(forests())
    def draw(forest: Forest) -> None:
        drawn.append(forest)

    draw()
    asyncio.run(on_postgres(postgres_copy, drawn))


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_many_random_trees_of_crews() -> None:
    seen: list[Forest] = []

    @settings(QUIET, max_examples=1000)
    @given(forests(depth=4, most=6))
    def grow(forest: Forest) -> None:
        asyncio.run(on_sqlite(forest, 150))
        seen.append(forest)

    grow()
    print(f"crew forests: {len(seen)} of up to 6 trees to depth 4, 150 deeds with faults each, all ended")


# --- broken twins

LEAF = Node(("well", "well"), ((), ()))
ONE, TRIO = Node(("well",), ((),)), Node(("well",) * 3, ((),) * 3)
DEEP = Node(("well",), ((LEAF,),))
CROWD = Forest((DEEP, DEEP, LEAF, LEAF, DEEP, LEAF), (2, 2, 2, 2, 2, 2), 7)
ROTTEN = Forest((Node(("fails", "well"), ((), (LEAF,))), LEAF), (2, 2, 2, 2, 2, 2), 7)


def overtaking(free: int, shares: Any, crews: Any) -> LetGo:
    """Whoever fits goes, whoever was there first."""
    fitting = [crew for crew, workers in crews if workers <= free - len(shares)]
    return LetGo(list(shares[:free]), fitting[:1])


def freed_twice() -> Callable[..., Any]:
    sound = crew_moves.allocate

    async def broken(tx: Any, tenant_id: int) -> Any:
        """As if the workers of every crew that ended were given back once more."""
        ended = await tx.crews(tenant_id, states=("COMPLETED", "FAILED"), inside=True)
        for quota in await tx.quotas(tenant_id):
            extra = sum(row["worker_count"] for row in ended if row["depth"] == quota.depth)
            if quota.in_line and extra:
                await crew_moves._let_go(tx, tenant_id, quota.depth, 10, extra)
        return await sound(tx, tenant_id)

    return broken


async def no_cancelling(*_: Any) -> None:
    """Shares of a crew that failed go on."""


def forgetful() -> Callable[..., Any]:
    sound, names = Crews._submitted, count()

    async def broken(self: Crews, name: str, *what: Any) -> int:
        """Each run of a handler makes its crews anew."""
        return await sound(self, f"{name} {next(names)}", *what)

    return broken


TWINS: dict[str, tuple[str, Any, Forest, str]] = {
    "a waiting share keeps its worker": (
        "keptwork.workers.waits.HELD_BY_QUOTA",
        None,
        CROWD,
        "a crew waits although",
    ),
    "workers are given back twice": (
        "keptwork.crews.engine.allocate",
        freed_twice(),
        CROWD,
        "shares have a worker",
    ),
    "shares outlive a failed crew": ("keptwork.crews.engine._cancel_shares", no_cancelling, ROTTEN, "outlive"),
    "crews are made by every run": (
        "keptwork.workers.waits.Crews._submitted",
        forgetful(),
        CROWD,
        "crews were made where|never end",
    ),
    "small crews overtake": (
        "keptwork.crews.plan.let_go",
        overtaking,
        Forest((ONE, TRIO, ONE, ONE, TRIO, ONE), (3, 2, 2, 2, 2, 2), 3),
        "overtaken",
    ),
}


@pytest.fixture
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Forest, str]:
    where, broken, forest, says = TWINS[request.param]
    monkeypatch.setattr(where, broken)
    return forest, says


@pytest.mark.parametrize("twin", TWINS, indirect=True)
def test_a_twin_is_caught(twin: tuple[Forest, str]) -> None:
    forest, says = twin
    with pytest.raises(AssertionError, match=says):
        under_seeds(forest, *range(1, 30, 3))


@pytest.mark.parametrize("forest", [CROWD, ROTTEN])
def test_and_the_sound_one_is_not(forest: Forest) -> None:
    under_seeds(forest, 1, 2, 3)
    assert crew_plan.QUOTAS == (10, 8, 5, 3, 2, 1)
