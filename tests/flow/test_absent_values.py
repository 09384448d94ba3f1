"""What is absent is an error; null is a value like any other."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator

import pytest

from keptwork import Keptwork
from keptwork.errors import BadFlow
from keptwork.flows import commands as flows
from keptwork.flows import forks
from keptwork.flows.transaction import Actor
from keptwork.flows.validation import load
from tests.flow.stage import flow_of, ran, returning, worked


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    app = Keptwork(database_url)
    yield app
    await app.close()


async def test_input_that_was_not_given_and_has_no_default_is_an_error_where_it_is_used(app: Keptwork) -> None:
    done = await ran(app, returning("a"), {**returning("b", "a"), "when": "${inputs.x} == null"}, inputs={"x": {}})
    assert done.states == {"a": "S_SUCCESS", "b": "S_FAILED"}
    said = "there is no value for ${inputs.x}: the input x was not given and has no default"
    assert done.steps["b"]["error"] == said


async def test_input_with_default_null_is_null_and_can_be_compared(app: Keptwork) -> None:
    done = await ran(
        app,
        {**returning("a", x="${inputs.x}"), "when": "${inputs.x} == null"},
        inputs={"x": {"type": "integer", "default": None}},
    )
    assert done.outputs["a"] == {"x": None}


async def test_null_that_a_function_returned_is_a_value(app: Keptwork) -> None:
    done = await ran(
        app,
        returning("a", n=None, list=[None]),
        {**returning("b", "a", x="${a.n}", y="${a.list[0]}"), "when": "${a.n} == null and ${a.list[0]} == null"},
    )
    assert done.outputs["b"] == {"x": None, "y": None}


@pytest.mark.acceptance
async def test_null_that_a_program_printed_is_a_value(app: Keptwork) -> None:
    prints = [sys.executable, "-c", "print('{\"n\": null}')"]
    done = await ran(
        app,
        {"id": "a", "command": prints},
        {**returning("b", "a", x="${a.json.n}"), "when": "${a.json.n} == null"},
    )
    assert done.outputs["b"] == {"x": None}


async def test_null_in_a_list_is_an_item_like_any_other(app: Keptwork) -> None:
    each = {**returning("b", x="${item}"), "for_each": {"items": [None, 1]}, "when": "${item} == null"}
    done = await ran(app, each)
    assert done.outputs["b"] == {"items": [{"x": None}, None], "count": 2}


async def test_value_of_a_skipped_step_is_an_error_that_says_so(app: Keptwork) -> None:
    done = await ran(
        app,
        {**returning("a", n=1), "when": "1 == 2"},
        {**returning("b", "a"), "when": "${a.n} == null"},
    )
    assert done.steps["b"]["error"] == "there is no value for ${a.n}: a did not run: it was skipped"


async def test_step_that_was_skipped_inside_a_flow_has_no_value_outside(app: Keptwork) -> None:
    """It was null."""
    inner = flow_of({**returning("x", n=1), "when": "1 == 2"}, returning("y", n=2))
    done = await ran(
        app,
        {"id": "sub", "flow": "inner"},
        returning("b", "sub", x="${sub.steps.x}"),
        library={"inner": inner},
    )
    assert list(done.outputs["sub"]["steps"]) == ["y"]
    assert done.steps["b"]["error"] == "PermanentError: there is no value for ${sub.steps.x}"


async def test_fork_of_a_flow_whose_input_was_not_given_starts(app: Keptwork) -> None:
    """It was refused: null is no text."""
    done = await ran(app, returning("a"), returning("b", "a"), inputs={"x": {}, "y": {"default": None}})
    forked = await worked(app, await forks.fork(done.store, done.ref, "b", actor=Actor("ann")))
    assert json.loads(forked.flow["inputs"]) == {"y": None}


async def test_key_of_an_older_flow_that_stored_null_for_an_absent_input_is_still_its_key(app: Keptwork) -> None:
    store, definition = await app.open(), flow_of(returning("a"), inputs={"x": {}})
    first = await flows.start(store, definition, {}, key="once")
    await store.atomically(lambda tx: tx.execute("""UPDATE workstreams SET inputs = '{"x":null}'"""))
    assert await flows.start(store, definition, {}, key="once") == first


def test_item_in_the_list_of_its_own_step_is_refused() -> None:
    text = "name: f\nsteps:\n- {id: a, command: [echo], for_each: {items: ['${item}']}}\n"
    with pytest.raises(BadFlow, match=r"a uses \$\{item\} in the items of for_each"):
        load(text, "f.yaml")
