"""How long a flow will still take, from how long others took."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.flows import commands as flows
from keptwork.flows.compiled import KINDS
from keptwork.flows.definition import Flow
from keptwork.flows.eta import medians, time_left, usual_times
from keptwork.flows.live_view import FlowView
from keptwork.flows.plan import Phase

KIND = KINDS["workstream"]


def row(name: str, state: str = "S_PENDING", started: int | None = None, ended: int | None = None) -> dict[str, Any]:
    return {"name": name, "state": state, "started_at": started, "completed_at": ended, "parent_id": None}


def flow(*steps: tuple[str, list[str]]) -> Flow:
    said = [{"id": name, "command": ["true"], "depends_on": after} for name, after in steps]
    return Flow.model_validate({"name": "f", "steps": said})


DIAMOND = flow(("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"]))
USUAL = {"a": 10.0, "b": 100.0, "c": 30.0, "d": 5.0}


def left(*rows: dict[str, Any], now: int = 0, at_once: int = 8, usual: dict[str, float] = USUAL) -> float | None:
    return time_left(DIAMOND, KIND, rows, usual, now, at_once)


def test_it_is_the_longest_way_through_what_is_left():
    assert left(row("a"), row("b"), row("c"), row("d")) == 115


def test_what_runs_is_counted_by_what_is_left_of_its_usual_time_and_never_below_nothing():
    done = row("a", "S_SUCCESS", 0, 10)
    assert left(done, row("b", "S_RUNNING", 10), row("c", "S_RUNNING", 10), row("d"), now=60) == 55
    assert left(done, row("b", "S_RUNNING", 10), row("c", "S_SUCCESS", 10, 20), row("d"), now=9_999) == 5


def test_few_at_once_take_longer_than_the_longest_way():
    assert left(row("a"), row("b"), row("c"), row("d"), at_once=1) == 145


def test_a_step_nothing_is_known_of_leaves_it_unknown():
    assert left(row("a"), row("b"), row("c"), row("d"), usual={"a": 10.0}) is None
    over = row("b", "S_SUCCESS", 1, 2)
    assert left(row("a", "S_SUCCESS", 0, 1), over, row("c"), row("d"), usual={"c": 7.0, "d": 1.0}) == 8


def test_people_are_not_counted():
    asked = Flow.model_validate(
        {"name": "f", "steps": [{"id": "a", "approval": {}}, {"id": "b", "command": ["true"], "depends_on": ["a"]}]}
    )
    assert time_left(asked, KIND, [row("a", "S_RUNNING", 0), row("b")], {"b": 9.0}, 50, 8) == 9


def test_usual_times_are_medians_and_what_was_skipped_took_none():
    rows = [row("a", "S_SUCCESS", 0, took) for took in (10, 20, 900)] + [row("b", "S_SKIPPED")]
    assert medians(KIND, [*rows, row("c", "S_FAILED", 0, 50), row("d")]) == {"a": 20, "b": 0}


@pytest.mark.parametrize("earlier", [0, 2])
async def test_they_come_from_earlier_flows_of_the_same_name_that_succeeded(earlier, database_url):
    app = Keptwork(database_url)
    async with app:
        store = await app.open()
        for name in [*["f"] * earlier, "other"]:
            await app.start_flow({"name": name, "steps": [{"id": f"{name}-a", "call": "time:time"}]})
        await app.work(until_idle=True)
        found = await usual_times(store, KIND, "f", app.tenant_id)
        assert list(found) == ["f-a"] * bool(earlier)
        assert all(took > 0 for took in found.values())


async def test_a_view_keeps_up_with_what_is_inside_steps(database_url):
    app = Keptwork(database_url)
    inner = {"name": "inner", "steps": [{"id": "x", "call": "time:time"}, {"id": "y", "call": "time:time"}]}
    outer = {
        "name": "outer",
        "steps": [
            {"id": "sub", "flow": "inner"},
            {"id": "each", "call": "time:time", "for_each": {"items": [1, 2, 3], "limit": 1}},
        ],
    }
    async with app:
        store = await app.open()
        library = {"inner": Flow.model_validate(inner)}
        ref = await flows.start(store, Flow.model_validate(outer), library=library)
        view = FlowView(store, ref, app.tenant_id)
        await view.look()
        inside = {step["name"]: view.inside(step) for step in view.steps.values()}
        assert inside == {"sub": (0, 2), "each": (0, 3)}
        await app.work(until_idle=True)
        moved = await view.look()
        assert [step["name"] for step in moved if view.phase(step) is Phase.SATISFIED]
        assert {step["name"]: view.inside(step) for step in view.steps.values()} == {"sub": (2, 2), "each": (3, 3)}
        assert view.succeeded
        assert await view.look() == []
