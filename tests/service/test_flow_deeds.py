"""What may be asked of flows: exactly what is told can be done, in every state, on both stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from keptwork.errors import InvalidTransition
from keptwork.flows import commands as flows
from keptwork.flows import commands_flow_deeds
from keptwork.flows.commands import FlowRef
from keptwork.flows.transaction import Actor
from keptwork.store import Store
from tests.service.flow_driver import Driver, flow, step

ANN = Actor("ann", "because")
Scene = Callable[[Store], Awaitable[FlowRef]]
OF_FLOWS = {"cancel": flows.cancel, "retry": flows.retry, "resume": flows.resume, "hold": flows.hold}
OF_STEPS = {"skip": flows.skip, "reset": flows.reset}


async def running(store: Store) -> FlowRef:
    return await flows.start(store, flow(step("a"), step("b", "a")))


async def held(store: Store) -> FlowRef:
    return await flows.start(store, flow(step("a"), step("b", "a")), hold=True)


async def a_run(store: Store) -> FlowRef:
    return await flows.start(store, flow(step("a"), kind="run"))


async def over(store: Store) -> FlowRef:
    ref = await running(store)
    await flows.cancel(store, ref, ANN)
    return ref


async def failed(store: Store, retries: int = 0) -> FlowRef:
    ref, driver = await flows.start(store, flow(step("a"), step("b", "a"), max_retries=retries)), Driver(store)
    await driver.settle(await driver.start(), lambda _: True)
    return ref


async def to_be_tried_again(store: Store) -> FlowRef:
    return await failed(store, retries=1)


SCENES = pytest.mark.parametrize("scene", [running, held, a_run, over, failed, to_be_tried_again])


async def refused(deed: Awaitable[None]) -> bool:
    try:
        await deed
    except InvalidTransition:
        return True
    return False


@SCENES
async def test_what_is_told_can_be_done_and_nothing_else(store: Store, scene: Scene) -> None:
    for name, deed in OF_FLOWS.items():
        ref = await scene(store)
        row = await flows.row_of(store, ref)
        told = commands_flow_deeds.of_flow(ref.kind, row)
        if ref.kind.name == "run" and name == "resume":
            assert name not in told  # nobody can ask it of a run
        elif name == "hold":
            assert await refused(deed(store, ref, ANN)) is told.isdisjoint({"hold", "release"})
        else:
            assert await refused(deed(store, ref, ANN)) is (name not in told), name


@SCENES
@pytest.mark.parametrize("name", ["a", "b"])
async def test_the_same_of_steps(store: Store, scene: Scene, name: str) -> None:
    for wish, deed in OF_STEPS.items():
        ref = await scene(store)
        for row in await store.steps(ref.id, names=[name]):
            told = commands_flow_deeds.of_step(row, await flows.row_of(store, ref))
            assert await refused(deed(store, row, ANN)) is (wish not in told), wish
