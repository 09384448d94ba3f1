"""A flow's key: the same request again is the first flow, and any other is refused with what differs."""

from __future__ import annotations

from typing import Any

import pytest

from keptwork.errors import FlowKeyReused
from keptwork.flows import commands as flows
from keptwork.flows import start
from keptwork.flows.commands import FlowRef
from keptwork.flows.definition import Flow
from keptwork.store import Store
from tests.service.flow_driver import flow, step

INPUTS = {"n": {"type": "number", "default": 1}, "to": {"default": "here"}, "deep": {"type": "object", "default": {}}}
OUTER = flow(step("sub", flow="inner.yaml"))


def definition(*steps: dict[str, Any], **more: Any) -> Flow:
    return flow(*(steps or (step("a"),)), **{"inputs": INPUTS, **more})


async def started(store: Store, given: dict[str, Any] | None = None, what: Flow | None = None, **how: Any) -> FlowRef:
    return await flows.start(store, what or definition(), given, key="k", hold=True, **how)


async def refusal(store: Store, *arguments: Any, **how: Any) -> str:
    with pytest.raises(FlowKeyReused) as refused:
        await started(store, *arguments, **how)
    assert (refused.value.status, refused.value.exit_code) == (422, 2)
    return str(refused.value)


async def test_the_same_inputs_and_definition_again_are_the_first_flow(store: Store) -> None:
    first = await started(store, {"n": 2, "deep": {"a": 1, "b": 2}})
    assert await started(store, {"deep": {"b": 2, "a": 1}, "n": 2}) == first
    assert await started(store, {"n": 2, "deep": {"a": 1, "b": 2}, "to": "here"}) == first


async def test_other_inputs_under_the_same_key_are_refused_and_named(store: Store) -> None:
    first = await started(store, {"n": 1})
    said = await refusal(store, {"n": 2, "to": "there"})
    assert said == (
        f"The key 'k' has made {first.public_id} before, with other inputs: n, to; "
        f"use a new key for a new flow, or see that one: keptwork workstreams show {first.public_id}"
    )
    assert len(await store.flows(first.kind.flow)) == 1


async def test_true_is_not_taken_for_1_under_the_same_key(store: Store) -> None:
    await started(store, {"deep": {"on": True}})
    assert "with other inputs: deep;" in await refusal(store, {"deep": {"on": 1}})


async def test_another_definition_of_the_same_name_is_refused_and_leaves_no_version_behind(store: Store) -> None:
    await started(store)
    assert "by another definition of test;" in await refusal(store, what=definition(step("a", retries=2)))
    assert [one.version for one in await start.listed(store, 1, every=True)] == [1]


async def test_a_definition_that_was_changed_and_changed_back_is_the_same(store: Store) -> None:
    first = await started(store)
    await start.put(store, 1, definition(step("a", retries=2)))
    assert await started(store) == first


async def test_what_is_inside_a_flow_counts_however_often_it_was_kept(store: Store) -> None:
    inner, other = (flow(step("a", retries=count), name="inner") for count in (1, 2))
    first = await started(store, what=OUTER, library={"inner.yaml": inner})
    assert "by another definition of test;" in await refusal(store, what=OUTER, library={"inner.yaml": other})
    await start.put(store, 1, other)
    assert await started(store, what=OUTER, library={"inner.yaml": inner}) == first


async def test_another_webhook_is_refused_for_it_would_never_be_told(store: Store) -> None:
    hook = {"url": "https://example.com/a"}
    first = await started(store, webhook=hook)
    assert await started(store, webhook=hook) == first == await started(store)
    assert "no webhook or another" in await refusal(store, webhook={"url": "https://example.com/b"})


async def test_who_names_the_newest_version_asks_for_the_same_when_there_is_a_newer_one(store: Store) -> None:
    older = await start.put(store, 1, definition())
    first = await flows.start_template(store, older, {"n": 2}, newest=True, key="k", hold=True)
    newer = await start.put(store, 1, definition(inputs={**INPUTS, "new": {"default": "x"}}))
    assert await flows.start_template(store, newer, {"n": 2}, newest=True, key="k") == first
    with pytest.raises(FlowKeyReused, match="with other inputs: n;"):
        await flows.start_template(store, newer, {"n": 3}, newest=True, key="k")
    with pytest.raises(FlowKeyReused, match="by another definition of test;"):
        await flows.start_template(store, newer, {"n": 2}, key="k")
