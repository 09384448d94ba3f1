"""Flows from Python: started from files, definitions and dicts, awaited, approved and cancelled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.errors import BadFlow, BadInput, FlowFailed, StillUnfinished
from keptwork.flows.definition import Flow


def twice(n: int) -> dict[str, int]:
    return {"n": 2 * n}


def fail() -> None:
    raise RuntimeError("no")


def call(id: str, name: str, *after: str, **given: Any) -> dict[str, Any]:
    return {"id": id, "call": f"{__name__}:{name}", "with": given, "depends_on": list(after)}


DOUBLE: dict[str, Any] = {
    "name": "double",
    "inputs": {"n": {"type": "integer", "default": 1}},
    "steps": [call("a", "twice", n="${inputs.n}"), call("b", "twice", "a", n="${a.n}")],
}
GATED: dict[str, Any] = {
    "name": "gated",
    "steps": [{"id": "sign", "approval": {"question": "Go?"}}, call("a", "twice", "sign", n=1)],
}


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    worker = asyncio.create_task(app.work())
    yield app
    app.stop()
    await worker
    await app.close()


def length(of: list[int]) -> dict[str, int]:
    return {"n": len(of)}


async def test_a_flow_is_what_was_started_whatever_becomes_of_the_lists_it_was_made_of(app):
    given = [1]
    made = {"name": "made", "steps": [call("gate", "twice", n=1), call("a", "length", "gate", of=given)]}
    first = await app.start_flow(Flow.model_validate(made))
    given.append(2)
    assert (await first.outputs("30s"))["a"] == {"n": 1}
    given.remove(2)
    assert (await (await app.start_flow(made)).outputs("30s"))["a"] == {"n": 1}


async def test_what_is_wrong_with_a_definition_is_told_like_that_of_a_dict(app):
    wrong = {"name": "wrong", "steps": [call("a", "twice", "nobody", n=1)]}
    for what in (wrong, Flow.model_validate(wrong)):
        with pytest.raises(BadFlow, match="a depends on nobody, and there is no such step"):
            await app.start_flow(what)


async def test_a_file_a_definition_and_a_dict_are_started_alike(app, tmp_path):
    file = tmp_path / "double.yaml"
    file.write_text(json.dumps(DOUBLE))
    for what in (str(file), Path(file), Flow.model_validate(DOUBLE), DOUBLE):
        handle = await app.start_flow(what, {"n": 3})
        found = await handle.ended("30s")
        assert (found.id, found.word, [step.word for step in found.steps]) == (
            handle.id,
            "succeeded",
            ["succeeded"] * 2,
        )
        assert await handle.outputs() == {"a": {"n": 6}, "b": {"n": 12}}


async def test_flows_inside_a_file_come_with_it(app, tmp_path):
    (tmp_path / "double.yaml").write_text(json.dumps(DOUBLE))
    outer = {"name": "outer", "steps": [{"id": "sub", "flow": "double.yaml", "with": {"n": 5}}]}
    (tmp_path / "outer.yaml").write_text(json.dumps(outer))
    outputs = await (await app.start_flow(tmp_path / "outer.yaml")).outputs("30s")
    assert outputs["sub"]["steps"]["b"] == {"n": 20}


async def test_what_cannot_be_is_refused_and_nothing_is_stored(app):
    with pytest.raises(BadFlow, match="these steps wait for one another"):
        await app.start_flow({"name": "f", "steps": [call("a", "twice", "b"), call("b", "twice", "a")]})
    with pytest.raises(BadFlow, match="depends on c"):
        await app.start_flow(Flow.model_validate({"name": "f", "steps": [call("a", "twice", "c")]}))
    with pytest.raises(BadInput, match="has no input m"):
        await app.start_flow(DOUBLE, {"m": 1})


async def test_a_flow_that_failed_has_no_outputs_and_says_why(app):
    handle = await app.start_flow({"name": "f", "steps": [call("a", "fail")]})
    assert (await handle.ended("30s")).word == "failed"
    with pytest.raises(FlowFailed, match="a: RuntimeError: no"):
        await handle.outputs()


async def test_it_waits_for_approval_as_long_as_it_is_given_and_goes_on_with_it(app):
    handle = await app.start_flow(GATED)
    with pytest.raises(StillUnfinished, match=handle.id):
        await handle.ended("50ms")
    assert [one.question for one in await handle.approvals()] == ["Go?"]
    assert [one.decided_by for one in await handle.approve("sign", by="ann")] == ["ann"]
    assert (await handle.outputs("30s"))["a"] == {"n": 2}


async def test_a_cancelled_one_has_ended(app):
    handle = await app.start_flow(GATED)
    await handle.cancel("enough", by="ann")
    found = await handle.ended("30s")
    assert (found.word, found.error) == ("cancelled", "enough")


async def test_held_it_begins_when_it_is_let_go_and_a_key_makes_one_flow(app):
    handle = await app.start_flow(DOUBLE, key="k", hold=True)
    assert (await handle.report()).word == "held"
    assert (await app.start_flow(DOUBLE, key="k")).id == handle.id
    await handle.let_go()
    assert (await handle.ended("30s")).word == "succeeded"


@contextmanager
def working(url: str) -> Iterator[None]:
    """A worker on a thread of its own, as another process would be."""
    app, loop = Keptwork(url), asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_work(app)))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(app.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _work(app: Keptwork) -> None:
    async with app:
        await app.work()


def test_ordinary_code_has_the_same(database_url):
    app = Keptwork(database_url)
    try:
        with working(database_url):
            assert app.sync.start_flow(DOUBLE, {"n": 2}).outputs("30s")["b"] == {"n": 8}
            gated = app.sync.start_flow(GATED)
            assert len(gated.approve(by="ann")) == 1
            assert gated.ended("30s").word == "succeeded"
            other = app.sync.start_flow(GATED)
            other.cancel("enough")
            assert (other.id == gated.id, other.ended("30s").word) == (False, "cancelled")
    finally:
        app.sync.close()
