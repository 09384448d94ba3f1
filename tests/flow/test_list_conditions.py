"""Conditions of steps that run for a list: decided once, or for each item if they use `${item}`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.flows import commands as flows
from keptwork.flows.transaction import Actor
from keptwork.store import Store
from tests.conformance.stage import entity
from tests.flow.stage import flow_of, given, ran, returning, worked
from tests.service.flow_driver import Driver

CALLED: list[Any] = []


def note(value: Any) -> dict[str, Any]:
    CALLED.append(value)
    return given(value=value)


def for_each(items: Any, when: str, *after: str, **more: Any) -> dict[str, Any]:
    limit = more.pop("limit", 8)
    does = more or {"call": f"{__name__}:note", "with": {"value": "${item}"}}
    return {"id": "b", "for_each": {"items": items, "limit": limit}, "when": when, "depends_on": list(after), **does}


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    CALLED.clear()
    app = Keptwork(database_url)
    yield app
    await app.close()


async def test_condition_with_item_skips_only_the_items_for_which_it_is_false(app: Keptwork) -> None:
    done = await ran(
        app,
        returning("a", list=["keep", "skip", "keep too"]),
        for_each("${a.list}", "${item} != 'skip'", "a"),
        returning("c", "b", items="${b.items}", count="${b.count}"),
    )
    assert done.states == {
        "a": "S_SUCCESS",
        "b": "S_SUCCESS",
        "c": "S_SUCCESS",
        "b[0]": "S_SUCCESS",
        "b[1]": "S_SKIPPED",
        "b[2]": "S_SUCCESS",
    }
    assert sorted(CALLED) == ["keep", "keep too"]
    assert done.outputs["c"] == {"items": [{"value": "keep"}, None, {"value": "keep too"}], "count": 3}
    assert done.steps["b[1]"]["reason"] == "when: ${item} != 'skip'"


async def test_list_of_which_every_item_is_skipped_succeeds(app: Keptwork) -> None:
    done = await ran(app, for_each([1, 2, 3], "${item} == 'keep'"), returning("c", "b", count="${b.count}"))
    assert done.flow["state"] == "S_SUCCESS"
    assert done.states["b"] == "S_SUCCESS"
    assert {done.states[f"b[{n}]"] for n in range(3)} == {"S_SKIPPED"}
    assert done.outputs["b"] == {"items": [None, None, None], "count": 3}
    assert not CALLED


async def test_condition_without_item_is_decided_once_before_the_list(app: Keptwork) -> None:
    done = await ran(app, for_each("${inputs.none}", "1 == 2"), inputs={"none": {}})
    assert done.states == {"b": "S_SKIPPED"}


async def test_item_whose_condition_cannot_be_decided_fails_that_item(app: Keptwork) -> None:
    done = await ran(app, for_each([1, "x", 3], "${item} > 1"))
    assert (done.flow["state"], done.states["b"]) == ("S_FAILED", "S_FAILED")
    assert done.states["b[0]"] == "S_SKIPPED"
    assert done.states["b[1]"] == "S_FAILED"
    assert "cannot be decided" in done.steps["b[1]"]["error"]
    assert done.flow["error"].startswith("b: b[1]: '${item} > 1' cannot be decided")
    assert not CALLED


async def test_field_that_an_item_does_not_have_fails_that_item(app: Keptwork) -> None:
    done = await ran(app, for_each([{"n": None}, {}], "${item.n} == null"))
    assert (done.states["b[0]"], done.states["b[1]"]) == ("S_PENDING", "S_FAILED")
    assert done.steps["b[1]"]["error"] == "there is no value for ${item.n}"


async def test_retry_decides_the_condition_of_a_failed_item_again(app: Keptwork) -> None:
    """An item that was reset began without another look at its condition."""
    done = await ran(app, for_each([1, "x", 3], "${item} > 1"))
    await flows.retry(done.store, done.ref, Actor("ann"))
    done = await worked(app, done.ref)
    assert done.states["b[1]"] == "S_FAILED"
    await flows.skip(done.store, done.steps["b[1]"], Actor("ann"))
    done = await worked(app, done.ref)
    assert (done.flow["state"], CALLED) == ("S_SUCCESS", [3])
    assert done.outputs["b"] == {"items": [None, None, {"value": 3}], "count": 3}


async def test_condition_filters_the_items_of_a_step_that_is_a_flow(app: Keptwork) -> None:
    inner = flow_of(returning("x", n="${inputs.n}"), inputs={"n": {"type": "integer"}})
    each = for_each([1, 2, 3], "${item} != 2", flow="inner", **{"with": {"n": "${item}"}})
    done = await ran(app, each, library={"inner": inner})
    assert done.flow["state"] == "S_SUCCESS"
    assert [one and one["steps"]["x"]["n"] for one in done.outputs["b"]["items"]] == [1, None, 3]


@pytest.mark.parametrize("limit", [1, 3])
async def test_list_with_skipped_items_runs_no_more_at_a_time_than_its_limit(store: Store, limit: int) -> None:
    items, driver = list(range(40)), Driver(store)
    definition = flow_of(for_each(items, "${item} not in [0, 1, 5, 6, 7, 8, 30, 39]", limit=limit))
    ref, most, ran = await flows.start(store, definition), 0, 0
    while jobs := await driver.start():
        most, ran = max(most, len(jobs)), ran + len(jobs)
        await driver.settle(jobs[:1])
        for job in jobs[1:]:
            await driver.settle([job])
    assert (most, ran) == (limit, 32)
    assert (await entity(store, ref.kind.flow, ref.id))["state"] == "S_SUCCESS"
