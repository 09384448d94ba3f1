"""Many who answer one question at the same time, each with a connection of their own: one wins, and one event says
so."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import RUN_STEP, WORKSTREAM_STEP
from keptwork.errors import AlreadyDecided, ApprovalChanged, BadInput, InvalidTransition, KeptworkError
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.flows.steps import approval
from keptwork.flows.transaction import Actor
from keptwork.store import Store, open_store
from keptwork.store.contract.records import EventFilter
from tests.conformance.stage import worker
from tests.support.database_time import open_timed

RIVALS = 32
CALL = {"call": "time:time"}
ENDED = {"approve", "reject", "expire", "cancel", "success", "failure", "abandon"}


def asking(kind: str, **approval: Any) -> Flow:
    steps: list[dict[str, Any]] = [{"id": "sign", "approval": approval}, {"id": "ship", **CALL}]
    if kind == "workstream":
        steps[1]["depends_on"] = ["sign"]
    return Flow.model_validate({"name": "ask", "kind": kind, "steps": steps})


async def answered(url: str, ref: flows.FlowRef, step: dict[str, Any], how: str) -> str:
    """What one rival is told, on a connection of its own."""
    store = await open_store(url)
    try:
        if how == "cancel":
            await flows.cancel(store, ref, Actor("rival"))
        else:
            await flows.decide_gate(store, step, how, by="rival")
        return f"{how} won"
    except (AlreadyDecided, InvalidTransition, BadInput) as told:
        return type(told).__name__
    finally:
        await store.close()


async def ends_of(store: Store, step: dict[str, Any]) -> list[str]:
    lifecycle = RUN_STEP if step["lifecycle"] == RUN_STEP.name else WORKSTREAM_STEP
    events = await store.events(EventFilter(entity=lifecycle.name, entity_id=step["id"]))
    return [event.trigger for event in events if event.trigger in ENDED]


async def raced(url: str, kind: str) -> tuple[list[str], list[str], str]:
    """32 rivals at one gate: what they were told, how the step ended, and how the flow stands."""
    store = await open_store(url)
    ref = await flows.start(store, asking(kind))
    (step, *_) = await store.steps(ref.id)
    ways = [("approved", "rejected", "cancel")[number % 3] for number in range(RIVALS)]
    told = await asyncio.gather(*(answered(url, ref, step, how) for how in ways))
    ends = await ends_of(store, step)
    (flow,) = await store.rows(ref.kind.flow, [ref.id])
    await store.close()
    return list(told), ends, flow["state"]


def faults(told: list[str], ends: list[str]) -> list[str]:
    """The same answer twice is the first one: those who gave it have won too; but nobody wins against another."""
    winners = {one for one in told if one.endswith("won")}
    found = [] if len(winners) == 1 else [f"{len(winners)} different answers won: {sorted(winners)}"]
    return found + ([] if len(ends) == 1 else [f"the step ended {len(ends)} times: {ends}"])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["run", "workstream"])
async def test_of_32_rivals_at_one_gate_one_answer_wins_and_one_event_says_so(database_url: str, kind: str) -> None:
    told, ends, state = await raced(database_url, kind)
    if ends[0] in ("approve", "success", "failure"):
        # Its gate has been answered, and then the flow was given up: one after the other, both are right.
        told, ends = [one for one in told if one != "cancel won"], [one for one in ends if one != "abandon"]
    assert faults(told, ends) == []
    assert Counter(told).total() - sum(one.endswith("won") for one in told) > 0
    assert state


async def test_the_check_catches_a_gate_that_does_not_look_who_was_first() -> None:
    assert faults(["approved won", "rejected won"], ["approve"]) != []
    assert faults(["approved won"], ["approve", "reject"]) != []


@pytest.mark.timeout(60)
async def test_the_check_catches_answers_that_are_written_without_a_look(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin that takes every answer for the first one."""

    async def careless(scene: Any, step: Any, decision: str, by: Any, comment: Any, asked: Any) -> Any:
        gate = await scene.tx.gate(scene.tenant_id, step["id"])
        return gate._replace(decision=decision)

    monkeypatch.setattr(approval, "decide_gate", careless)
    told, ends, _ = await raced(database_url, "workstream")
    assert faults(told, ends) != []


async def test_no_worker_ever_claims_an_approval(store: Store) -> None:
    for kind in ("run", "workstream"):
        await flows.start(store, asking(kind))
    assert await store.claim(await worker(store), ["default"], 100, 60_000_000, claim_id=1, start=True) == []


async def test_an_answer_and_the_end_of_its_time_race_and_one_wins(database_url: str) -> None:
    """Until its time is over an answer counts; from then on none does, even before the clock has looked."""
    timed = await open_timed(database_url)
    ref = await flows.start(timed.store, asking("workstream", expires="1m"))
    (step, *_) = await timed.store.steps(ref.id)
    await timed.advance(60_000_001)
    with pytest.raises(AlreadyDecided, match="expired"):
        await flows.decide_gate(timed.store, step, "approved", by="late")
    results = await asyncio.gather(
        *(flows.wake(timed.store) for _ in range(4)),
        *(flows.decide_gate(timed.store, step, "approved", by="late") for _ in range(4)),
        return_exceptions=True,
    )
    assert all(isinstance(one, int | KeptworkError) for one in results), results
    assert await ends_of(timed.store, step) == ["failure"]
    await timed.close()


async def test_if_what_it_releases_has_changed_it_is_asked_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = await flows.start(store, asking("run"))
    (step, *_) = await store.steps(ref.id)
    first = await store.gate(1, step["id"])
    assert first is not None
    released = approval.released

    async def other(scene: Any, name: str) -> Any:
        return [*await released(scene, name), {"step": "another"}]

    monkeypatch.setattr(approval, "released", other)
    with pytest.raises(ApprovalChanged):
        await flows.decide_gate(store, step, "approved", by="ann")
    second = await store.gate(1, step["id"])
    assert second is not None
    assert second.id != first.id
    with pytest.raises(ApprovalChanged, match=first.public_id):  # the question shown first is not open any longer
        await flows.decide_gate(store, step, "approved", by="ann", asked=first.id)
    assert (await flows.decide_gate(store, step, "approved", by="ann", asked=second.id)).decision == "approved"
    assert await ends_of(store, step) == ["approve"]


async def test_two_processes_that_start_a_flow_under_one_key_start_one(database_url: str) -> None:
    app = Keptwork(database_url)
    store = await app.open()
    others = [await open_store(database_url) for _ in range(4)]
    refs = await asyncio.gather(
        *(flows.start(one, asking("run"), key="k") for one in (store, *others) for _ in range(4))
    )
    assert len({ref.id for ref in refs}) == 1
    for one in others:
        await one.close()
    await app.close()
