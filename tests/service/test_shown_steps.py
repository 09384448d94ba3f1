"""What is shown of steps: the time of their last round, and the tries of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.flows import commands as flows
from keptwork.flows import eta, live_view
from keptwork.flows import queries as stories
from keptwork.flows import report as flow_report
from keptwork.flows.live_view import FlowView
from keptwork.flows.transaction import Actor
from keptwork.store import Store
from tests.service.flow_driver import Driver, flow, step
from tests.support.database_time import Timed

SECOND = 1_000_000
LATER = 3_600 * SECOND


class Scene:
    """A flow whose first step fails after ten seconds, and then is mended an hour later."""

    def __init__(self, timed: Timed, ref: flows.FlowRef, view: FlowView) -> None:
        self.timed, self.store, self.ref, self.view = timed, timed.store, ref, view
        self.driver = Driver(self.store)

    async def round(self, seconds: int, failing: str = "") -> None:
        """What is due takes so long, and ends."""
        jobs = await self.driver.start()
        await self.timed.advance(seconds * SECOND)
        await self.driver.settle(jobs, lambda name: name == failing)

    async def shown(self, name: str = "a") -> set[float | None]:
        """How many seconds a step took, by everyone who tells."""
        now, own = await self.store.now(), (await self.step(name))["id"]
        page = await stories.step_page(self.store, self.ref)
        story = await stories.story(self.store, self.ref)
        rows = [next(row for row in rows if row["id"] == own) for rows in (page.steps, story.steps)]
        rows.append(await stories.step_shown(self.store, await self.step(name)))
        found = {_seconds(stories.took_us(row, now)) for row in rows}
        report = await flow_report.report(self.store, self.view)
        return found | {_seconds(one.took) for one in report.steps if one.name == name}

    async def step(self, name: str) -> dict[str, Any]:
        return (await self.store.steps(self.ref.id, names=[name]))[0]


def _seconds(us: int | None) -> float | None:
    return None if us is None else round(us / SECOND, 3)


@pytest.fixture
async def scene(timed: Timed) -> Scene:
    ref = await flows.start(timed.store, flow(step("a"), step("b", "a"), step("c")))
    scene = Scene(timed, ref, FlowView(timed.store, ref, 1))
    await scene.round(10, failing="a")
    return scene


async def test_a_step_that_failed_took_as_long_as_it_ran(scene: Scene) -> None:
    await scene.timed.advance(LATER)
    assert await scene.shown("a") == await scene.shown("c") == {10.0}


async def test_a_step_that_was_reset_took_the_time_of_its_last_round_alone(scene: Scene) -> None:
    await scene.timed.advance(LATER)
    await flows.reset(scene.store, await scene.step("a"), Actor("ann"))
    assert await scene.shown() == {None}, "it has not begun yet"
    jobs = await scene.driver.start()
    await scene.timed.advance(5 * SECOND)
    assert await scene.shown() == {5.0}
    (running,) = (await live_view.read(scene.store, scene.ref)).running
    assert _seconds(await scene.store.now() - running.step["started_at"]) == 5.0
    await scene.driver.settle(jobs)
    await scene.timed.advance(LATER)
    assert await scene.shown() == {5.0}
    assert await scene.shown("c") == {10.0}, "it was done in the first round"


async def test_a_flow_that_is_tried_again_counts_its_second_round_and_so_does_what_is_expected_of_others(
    scene: Scene,
) -> None:
    await scene.timed.advance(LATER)
    await flows.retry(scene.store, scene.ref, Actor("ann"))
    await scene.round(5)
    await scene.round(7)
    assert (await scene.shown("a"), await scene.shown("b")) == ({5.0}, {7.0})
    usual = await eta.usual_times(scene.store, scene.ref.kind, "test", 1)
    assert {name: _seconds(int(us)) for name, us in usual.items()} == {"a": 5.0, "b": 7.0, "c": 10.0}


# --- tries


LEFT: dict[str, int] = {}


def fail_so_often(times: int) -> int:
    """Fails so many times, and then no more."""
    LEFT.setdefault(str(times), times)
    LEFT[str(times)] -= 1
    if LEFT[str(times)] >= 0:
        raise RuntimeError("not yet")
    return times


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    LEFT.clear()
    app = Keptwork(database_url)
    yield app
    await app.close()


async def tries(store: Store, ref: flows.FlowRef) -> dict[str, set[int]]:
    """How often steps were tried, by everyone who tells."""
    page = await stories.step_page(store, ref)
    report = await flow_report.report(store, FlowView(store, ref, 1))
    found: dict[str, set[int]] = {row["name"]: {row["attempts"]} for row in page.steps}
    for row in (await stories.story(store, ref)).steps:
        found[row["name"]] |= {row["attempts"], (await stories.step_shown(store, row))["attempts"]}
    for one in report.steps:
        found[one.name].add(one.attempts)
    return found


async def test_a_list_was_tried_as_often_as_the_element_that_was_tried_most(app: Keptwork) -> None:
    each = {"call": f"{__name__}:fail_so_often", "with": {"times": "${item}"}, "retries": 3, "backoff": "1ms"}
    inner = flow(step("a"), step("b"), step("c"), name="inner")
    store = await app.open()
    whole = flow({"id": "each", **each, "for_each": {"items": [0, 2, 0]}}, step("sub", flow="inner.yaml"))
    ref = await flows.start(store, whole, library={"inner.yaml": inner})
    while not (await flows.row_of(store, ref))["completed_at"]:  # a worker does not stay for what is due a moment later
        await app.work(until_idle=True)
    assert await tries(store, ref) == {"each": {3}, "each[0]": {1}, "each[1]": {3}, "each[2]": {1}, "sub": {0}}
