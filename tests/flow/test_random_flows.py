"""Random flows through the real engine: nothing begins too early, twice or too late, and every flow ends.

The few flows of `make test` and the ten thousand of `make chaos` differ only in their number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import Change
from keptwork.errors import BadFlow
from keptwork.flows import commands as flows
from keptwork.flows import commands_list_mends, for_each, inline_batch, validation
from keptwork.flows import engine as advance
from keptwork.flows.definition import Flow
from keptwork.flows.inline_batch import Stretch
from keptwork.flows.plan import Phase, Shape
from keptwork.flows.transaction import Row, Scene
from keptwork.store import open_store
from tests.flow.flow_log import Known, faults, known
from tests.flow.random_flows import Driver
from tests.support.database_time import open_timed

QUICK = 20
AT_ONCE = 20
SEED, SEEDS_OF_TWINS = 11, range(62, 92)
"""With the first a few flows come to all that flows can come to; each twin does wrong with one of the others."""


async def driven(url: str, seed: int, count: int, *, most: int = 50) -> Known:
    timed = await open_timed(url)
    try:
        driver = Driver(timed, seed)
        await driver.run(count, most)
        assert driver.amiss == []
        assert list((await verify.verify(timed.store)).problems) == []
        return await known(timed.store)
    finally:
        await timed.close()


def told(all: Known) -> list[tuple[Any, ...]]:
    """The log without what differs from one database to another."""
    return [(one.entity, one.entity_id, one.seq, one.trigger, one.from_state, one.to_state, one.ts) for one in all.log]


@pytest.mark.timeout(120)
async def test_random_flows_keep_their_order_and_every_one_ends(database_url: str) -> None:
    all = await driven(database_url, SEED, QUICK // 2 if database_url.startswith("postgres") else QUICK)
    assert faults(all) == []
    assert {"S_SUCCESS", "S_ABANDONED", "SUCCEEDED", "FAILED"} <= {flow["state"] for flow in all.flows.values()}


@pytest.mark.timeout(60)
async def test_the_same_seed_gives_the_same_log(tmp_path: Any) -> None:
    first, second = [await driven(f"sqlite:///{tmp_path}/{name}.db", 7, 4) for name in ("a", "b")]
    assert told(first) == told(second)
    assert told(first) != told(await driven(f"sqlite:///{tmp_path}/c.db", 8, 4))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_ten_thousand_random_flows_keep_their_order_and_every_one_ends(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A database for every few, so that each has its own chance and its own log."""
    began, steps, moves, done = time.monotonic(), 0, 0, 0
    for seed in range(10_000 // AT_ONCE):
        with _database(kind, request) as url:
            all = asyncio.run(driven(url, seed, AT_ONCE))
        assert (seed, faults(all)) == (seed, [])
        done, steps, moves = done + len(all.flows), steps + len(all.steps), moves + len(all.log)
    seconds = time.monotonic() - began
    print(f"\n{kind}: 10,000 flows ({done:,} with those inside), {steps:,} steps, {moves:,} moves in {seconds:.0f} s")


@contextmanager
def _database(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if kind == "sqlite":
        yield "sqlite:///:memory:"
        return
    server = request.getfixturevalue("postgres_server")
    url = server.create_database(template=request.getfixturevalue("migrated_template").rpartition("/")[2])
    try:
        yield url
    finally:
        server.drop_database(url)


# --- what the check must catch


def _forgetful(shape: Shape, phases: Any, ended: Any) -> list[str]:
    """A plan that forgets the last thing a step waits for."""
    later = dict.fromkeys(name for earlier in ended for name in shape.after[earlier])
    return [
        name
        for name in later
        if phases[name] is Phase.WAITING and all(phases[one] is Phase.SATISFIED for one in shape.before[name][:-1])
    ]


async def _apart(tx: Any, changes: Any, seat: Any = None) -> None:
    """What follows from a job's end is lost when its worker dies right after it."""


async def _nobody_is_told(scene: Any, reason: str) -> None:
    """Jobs of a failed flow stay where they are."""


async def _left_alone(scene: Any, row: Any, verb: Any) -> None:
    """The elements of a list stay as they are, whatever an operator does to it."""


def _no_limit(scene: Any, parent: Any) -> int:
    return 1_000


async def _believed(scene: Scene, change: Change, said: Stretch) -> tuple[list[Row], list[str]]:
    """Whatever a worker has carried out counts, whether it could be by then or not."""
    await scene.look_at(one.name for one in said.carried)
    rows = [scene.steps[one.name] for one in said.carried if scene.phase(scene.steps[one.name]) is Phase.WAITING]
    for row in rows:
        scene.move_through(row, output="{}", output_hash=None, ago_us=0, took_us=1, job_id=change.id)
    return rows, []


async def _forsaken(scene: Scene, names: Sequence[str]) -> None:
    """Companions that were not carried out are forgotten."""


def _alone(payload: str) -> tuple[str, ...]:
    """Nobody knows which steps a job carries out beside its own."""
    return ()


TWINS = {
    "carried out is carried out": (inline_batch, "_moved", _believed, "began before"),
    "forgotten companions": (advance, "_begin_anew", _forsaken, "waits for nothing"),
    "companions that begin a second time": (inline_batch, "companions_of", _alone, "ready: the step"),
    "a plan that forgets a dependency": (advance, "ready", _forgetful, "began before"),
    "an advance outside the job's transaction": (advance, "settled", _apart, "waits for nothing"),
    "jobs that outlive their failed flow": (advance, "withdraw", _nobody_is_told, "when its flow was"),
    "elements without a limit": (for_each, "_limit", _no_limit, "began beside"),
    "a list that is skipped without its elements": (commands_list_mends, "follow", _left_alone, "orphan_element"),
}
MEDDLED = {"a list that is skipped without its elements", "companions that begin a second time"}
SLOW = {"forgotten companions"}
"""What shows only when all else has come to rest."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("twin", TWINS)
async def test_the_check_catches_a_broken_engine(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, broken, said = TWINS[twin]
    monkeypatch.setattr(module, name, broken)
    found: list[str] = []
    for seed in SEEDS_OF_TWINS:
        timed = await open_timed("sqlite:///:memory:")
        meddling, patience = 8.0 if twin in MEDDLED else 0.0, 3_000 if twin in SLOW else 300
        driver = Driver(timed, seed, meddling=meddling, patience=patience)
        with suppress(AssertionError):  # one that hangs is what some of them bring about
            await driver.run(5 if twin in SLOW else 15)
        found = [*faults(await known(timed.store)), *driver.amiss]
        await timed.close()
        if any(said in fault for fault in found):
            return
    pytest.fail(f"{found[:5]}")


# --- cycles


@pytest.mark.parametrize("size", [1, 2, 5, 50])
async def test_a_cycle_is_refused_before_anything_is_stored(database_url: str, size: int) -> None:
    steps = [{"id": f"s{n}", "call": "a:b", "depends_on": [f"s{(n + 1) % size}"]} for n in range(size)]
    with pytest.raises(BadFlow, match="wait for one another"):
        validation.load(f"{{name: f, steps: {steps}}}", "flow.yaml")
    store = await open_store(database_url)
    with pytest.raises(BadFlow, match="wait for one another"):
        await flows.start(store, Flow.model_validate({"name": "f", "steps": steps}))
    assert await store.templates(1) == []
    assert await store.event_count() == 0
    await store.close()


async def test_an_unknown_dependency_is_refused_before_anything_is_stored(database_url: str) -> None:
    store = await open_store(database_url)
    lost = Flow.model_validate({"name": "f", "steps": [{"id": "a", "call": "a:b", "depends_on": ["nobody"]}]})
    with pytest.raises(BadFlow, match="there is no such step"):
        await flows.start(store, lost)
    assert await store.templates(1) == []
    await store.close()
