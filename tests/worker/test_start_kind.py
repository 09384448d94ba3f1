"""Flows that are started by schedules: exactly one for each tick, however often its job runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import JOB, WORKSTREAM
from keptwork.core.schedule_rules import Rule, correlation
from keptwork.flows import start
from keptwork.jobs import schedules
from keptwork.jobs.schedules import Declaration
from keptwork.store import NewJob, Store
from tests.service.flow_driver import flow, step

TICK = 1_794_762_620_000_000


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    await app.close()


async def made(store: Store) -> list[dict[str, object]]:
    return await store.flows(WORKSTREAM)


async def test_each_tick_starts_one_flow_even_if_its_job_runs_twice(app: Keptwork) -> None:
    store = await app.open()
    await start.put(store, 1, flow(step("a"), inputs={"n": {"type": "integer", "default": 1}}))
    job = schedules.start_of(1, "test", {"n": 2}, "default")
    twice = [job._replace(correlation_id=correlation("nightly", TICK))] * 2
    await store.enqueue([*twice, job._replace(correlation_id=correlation("nightly", TICK + 1_000_000))])
    await app.work(until_idle=True)
    rows = await made(store)
    assert sorted(str(row["key"]) for row in rows) == [
        "schedule:nightly:2026-11-15T17:10:20.000000Z",
        "schedule:nightly:2026-11-15T17:10:21.000000Z",
    ]
    assert {row["state"] for row in rows} == {"S_SUCCESS"}
    assert {str(row["inputs"]) for row in rows} == {'{"n":2}'}


async def test_a_tick_that_runs_again_after_its_flow_was_changed_stands_for_its_first_one(app: Keptwork) -> None:
    store = await app.open()
    job = schedules.start_of(1, "test", {}, "default")._replace(correlation_id=correlation("nightly", TICK))
    for definition in (flow(step("a")), flow(step("a"), step("b"))):
        await start.put(store, 1, definition)
        (id,) = await store.enqueue([job])
        await app.work(until_idle=True)
        row = await store.get(JOB, id, 1)
        assert row is not None
        assert row["state"] == "succeeded"
    assert len(await made(store)) == 1


async def test_a_schedule_starts_its_flow(app: Keptwork) -> None:
    store = await app.open()
    kept = await start.put(store, 1, flow(step("a")))
    declared = Declaration.of("often", Rule.of(None, "1h"))
    await schedules.add(store, declared, schedules.start_of(1, kept.public_id, {}, "default"), "ann")
    await schedules.run_now(store, 1, "often", "ann")
    await app.work(until_idle=True)
    (row,) = await made(store)
    assert row["template_id"] == kept.id


async def test_a_flow_that_is_not_there_fails_its_job_for_good(app: Keptwork) -> None:
    store = await app.open()
    (id,) = await store.enqueue([NewJob("keptwork.start", '{"flow": "nothing"}')])
    await app.work(until_idle=True)
    row = await store.get(JOB, id, 1)
    assert row is not None
    assert row["state"] == "failed"
    assert "No template 'nothing'" in row["error"]
