"""Questions that are steps of flows: asked once, decided once and in time."""

from __future__ import annotations

import asyncio

from keptwork.core.lifecycles import RUN, RUN_STEP, WORKSTREAM
from keptwork.store import Store
from keptwork.store.contract.flows_steps import NewGate
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps
from tests.conformance.times import SetClock

OURS = 1


async def gate_at(store: Store, name: str = "sign", tenant_id: int = OURS) -> NewGate:
    """What would be asked at a step of a fresh flow."""
    flow = await store.create(RUN, tenant_id=tenant_id)
    step = await store.create(RUN_STEP, tenant_id=tenant_id, flow_id=flow, name=name)
    return NewGate(step, tenant_id, name, "Ship?", "digest-1", '{"v":1}', "ops")


@keeps(
    Writer.open_gate,
    "Open the approval request of a flow step",
    "A different open request of that step is withdrawn",
)
@keeps(Reader.gate, "Return the latest approval request of a flow step")
async def test_a_question_is_asked_once_and_another_takes_its_place(store: Store, other_tenant: int) -> None:
    gate = await gate_at(store)
    assert await store.gate(OURS, gate.step_id) is None
    first = await store.open_gate(gate)
    assert (first.step_id, first.job_id, first.question, first.details) == (gate.step_id, None, "Ship?", '{"v":1}')
    assert (first.digest, first.scope, first.decision, first.expires_at) == ("digest-1", "ops", None, None)
    assert await store.open_gate(gate) == first == await store.gate(OURS, gate.step_id)
    second = await store.open_gate(gate._replace(digest="digest-2"))
    assert second.id > first.id
    assert await store.gate(OURS, gate.step_id) == second
    old = await store.approval(OURS, first.id)
    assert old is not None
    assert old.decision == "withdrawn"
    await store.close_gate(OURS, gate.step_id, "approved", "ann")
    third = await store.open_gate(gate._replace(digest="digest-2"))
    assert third.id > second.id
    assert [one.id for one in await store.approvals(OURS)] == [third.id]
    assert await store.gate(other_tenant, gate.step_id) is None


@keeps(
    Writer.close_gate,
    "Decide the open approval of a flow step, or return None if the step has none",
    "Only after the deadline can the decision be `expired`, and only before it `approved` or `rejected`",
)
async def test_a_question_is_decided_once_and_in_time(timed: Store, clock: SetClock, other_tenant: int) -> None:
    gate, late, withdrawn = [(await gate_at(timed))._replace(expires_us=1000) for _ in range(3)]
    assert await timed.close_gate(OURS, gate.step_id, "approved", "ann") is None
    for one in (gate, late, withdrawn):
        await timed.open_gate(one)
    assert await timed.close_gate(OURS, gate.step_id, "expired") is None
    assert await timed.close_gate(other_tenant, gate.step_id, "approved", "eve") is None
    await clock.advance(999)
    decided = await timed.close_gate(OURS, gate.step_id, "rejected", "ann", "not yet")
    assert decided is not None
    assert (decided.decision, decided.decided_by, decided.comment) == ("rejected", "ann", "not yet")
    assert decided.decided_at == clock.now
    assert await timed.close_gate(OURS, gate.step_id, "approved", "bob") is None
    await clock.advance(1)
    for decision in ("approved", "rejected"):
        assert await timed.close_gate(OURS, late.step_id, decision, "ann") is None
    over = await timed.close_gate(OURS, late.step_id, "expired")
    assert over is not None
    assert over.decision == "expired"
    taken_back = await timed.close_gate(OURS, withdrawn.step_id, "withdrawn")
    assert taken_back is not None
    assert taken_back.decision == "withdrawn"
    assert await timed.gate(OURS, gate.step_id) == decided


async def test_of_thirty_two_who_decide_one_decides(store: Store) -> None:
    gate = await gate_at(store)
    await store.open_gate(gate)
    said = await asyncio.gather(
        *[
            store.close_gate(OURS, gate.step_id, "approved" if number % 2 else "rejected", f"p{number}")
            for number in range(32)
        ]
    )
    assert [one for one in said if one] == [await store.gate(OURS, gate.step_id)]


@keeps(
    Reader.expired_gates,
    "Return at most `limit` open approvals of flow steps whose deadline has passed, the earliest first",
)
async def test_questions_whose_time_is_over_are_found_the_longest_first(timed: Store, clock: SetClock) -> None:
    gates = [(await gate_at(timed))._replace(expires_us=us) for us in (3000, 1000, 2000, 9000, None, 500)]
    asked = [await timed.open_gate(gate) for gate in gates]
    await timed.close_gate(OURS, gates[5].step_id, "approved", "ann")
    assert await timed.expired_gates(10) == []
    await clock.advance(3000)
    assert await timed.expired_gates(10) == [asked[1], asked[2], asked[0]]
    assert await timed.expired_gates(1) == [asked[1]]


@keeps(
    Reader.next_flow_wake, "Return when time will next move a flow or expire its approval (µs), or None if it will not"
)
async def test_the_next_moment_is_that_of_a_run_a_workstream_or_a_question(timed: Store, clock: SetClock) -> None:
    assert await timed.next_flow_wake() is None
    gate = (await gate_at(timed))._replace(expires_us=5000)
    await timed.open_gate(gate)
    assert await timed.next_flow_wake() == clock.now + 5000
    await timed.create(WORKSTREAM, max_retries=1, wake_at=clock.now + 4000)
    run = await timed.create(RUN, wake_at=clock.now + 3000)
    assert await timed.next_flow_wake() == clock.now + 3000
    await timed.amend(RUN, [run], OURS, wake_at=None)
    assert await timed.next_flow_wake() == clock.now + 4000
