"""Steps that begin where the one before them has ended: without a way through the queue, and on PostgreSQL in one
statement. The story of a flow is the same, however its steps were handed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.audit.verify import verify
from keptwork.core.lifecycles import JOB, Change
from keptwork.errors import Unreachable
from keptwork.flows import commands as flows
from keptwork.flows import handover
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Actor, Seat
from keptwork.store import Job, Store
from keptwork.store.postgres.handover_unmoved import Unmoved
from keptwork.store.postgres.store import PostgresStore
from tests.conformance.stage import log
from tests.worker.scene import eventually, working

ORDER: list[str] = []


async def note(name: str) -> str:
    ORDER.append(name)
    return name


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    ORDER.clear()


@pytest.fixture
async def far(postgres_copy: str) -> AsyncIterator[Keptwork]:
    """Its database is in another process; only there it is worth while to hand over in one statement."""
    async with Keptwork(postgres_copy) as app:
        yield app


def chain(*names: str, kind: str = "workstream", **more: Any) -> Flow:
    """One step after the other, which in a run goes without saying."""
    steps = [
        {"id": name, "call": f"{__name__}:note", "with": {"name": name}}
        | ({"depends_on": [before]} if before and kind == "workstream" else {})
        for name, before in zip(names, (None, *names), strict=False)
    ]
    return Flow.model_validate({"name": "chain", "kind": kind, "steps": steps, **more})


async def ended(store: Store, ref: flows.FlowRef, state: str) -> None:
    async def there() -> bool:
        (row,) = await store.rows(ref.kind.flow, [ref.id], ("state",))
        return bool(row["state"] == state)

    await eventually(there)


async def story(store: Store, ref: flows.FlowRef) -> list[tuple[str, str, str]]:
    """What happened to steps and their jobs, in order."""
    found = await log(store, correlation_id=ref.public_id)
    return [(event.entity, event.trigger, event.to_state) for event in found if event.entity != ref.kind.flow.name]


@pytest.mark.parametrize("kind", ["run", "workstream"])
async def test_steps_that_take_a_seat_leave_the_same_story_as_those_that_are_claimed(
    app: Keptwork, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, definition = await app.open(), chain("a", "b", "c", "d", kind=kind)
    async with working(app):
        seated = await flows.start(store, definition)
        await ended(store, seated, "SUCCEEDED" if kind == "run" else "S_SUCCESS")
        monkeypatch.setattr(Seat, "is_for", lambda seat, job: False)
        claimed = await flows.start(store, definition)
        await ended(store, claimed, "SUCCEEDED" if kind == "run" else "S_SUCCESS")
    assert ORDER == ["a", "b", "c", "d"] * 2
    assert await story(store, seated) == await story(store, claimed)
    assert (await verify(store)).problems == []


async def test_most_steps_of_a_chain_are_handed_over_in_one_statement_where_the_database_is_far(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, done = await far.open(), []
    hand_over = PostgresStore.hand_over

    async def counted(self: Any, *given: Any) -> Any:
        done.append(await hand_over(self, *given))
        return done[-1]

    monkeypatch.setattr(PostgresStore, "hand_over", counted)
    async with working(far):
        await ended(store, await flows.start(store, chain(*"abcdefgh")), "S_SUCCESS")
    assert [*"abcdefgh"] == ORDER
    assert len([job for job in done if job]) >= 5  # the first begins its flow, and the last ends it


async def test_a_chain_is_looked_at_once_for_many_steps_where_the_database_is_far(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looks = await far.open(), []
    scene = PostgresStore.scene

    async def counted(self: Any, table: str, flow: int, names: Sequence[str]) -> Any:
        looks.append(names)
        return await scene(self, table, flow, names)

    monkeypatch.setattr(PostgresStore, "scene", counted)
    names = [f"s{place:02}" for place in range(40)]
    async with working(far):
        await ended(store, await flows.start(store, chain(*names)), "S_SUCCESS")
    assert names == ORDER
    assert len(looks) <= 8  # not forty
    assert max(map(len, looks)) <= handover.FORESEEN
    assert (await verify(store)).problems == []


async def test_what_is_remembered_of_a_flow_and_not_true_any_more_does_no_harm(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step far ahead is skipped after the one look at the flow."""
    store, call = await far.open(), {"call": f"{__name__}:note"}
    steps = [
        {"id": name, **call, "with": {"name": name}, "depends_on": [*before]}
        for name, before in (("a", ""), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "cd"), ("f", "e"))
    ]
    hand_over, handed, looked = PostgresStore.hand_over, list[str](), 0
    scene = PostgresStore.scene

    async def meddle(self: Any, changes: Sequence[Change], unmoved: Sequence[Unmoved], job: Any, *rest: Any) -> Any:
        handed.append(json.loads(job.payload)["step"])
        if handed[-1] == "c":
            found = await store.steps(ref.id, names=["d"])
            await flows.skip(store, found[0], Actor("ann"))
        return await hand_over(self, changes, unmoved, job, *rest)

    async def counted(self: Any, *given: Any) -> Any:
        nonlocal looked
        looked += 1
        return await scene(self, *given)

    monkeypatch.setattr(PostgresStore, "hand_over", meddle)
    monkeypatch.setattr(PostgresStore, "scene", counted)
    async with working(far):
        ref = await flows.start(store, Flow.model_validate({"name": "skipped", "steps": steps}))
        await ended(store, ref, "S_SUCCESS")
    assert [*"abcef"] == ORDER
    assert "d" in handed  # it was foreseen, and the statement refused it
    assert looked <= 4
    assert {row["name"]: row["state"] for row in await store.steps(ref.id)}["d"] == "S_SKIPPED"
    assert (await verify(store)).problems == []


async def test_what_is_remembered_of_a_flow_goes_with_the_job_it_is_of_however_that_ends(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, remembered = await far.open(), list[dict[int, handover.Picture]]()
    remember = handover._remember

    def noted(pictures: dict[int, handover.Picture], job: Job, picture: handover.Picture) -> None:
        remember(pictures, job, picture)
        remembered.append(pictures)

    monkeypatch.setattr(handover, "_remember", noted)
    steps = chain(*"abcd").model_dump(by_alias=True, exclude_unset=True)["steps"]
    steps[-1]["with"] = {"no_such": "argument"}
    async with working(far):
        ref = await flows.start(store, Flow.model_validate({"name": "fails", "steps": steps}))
        await ended(store, ref, "S_FAILED")
        await eventually(lambda: _so(remembered[-1] == {}))
    assert [*"abc"] == ORDER


async def test_a_flow_that_is_held_or_cancelled_between_the_look_and_the_statement_is_not_gone_on_with(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever meddles comes after the picture was taken: the statement must see it, though its step is untouched."""
    store = await far.open()
    hand_over, meddled = PostgresStore.hand_over, asyncio.Event()
    following: list[str] = []

    async def meddle(self: Any, changes: Sequence[Change], unmoved: Sequence[Unmoved], *rest: Any) -> Any:
        if not meddled.is_set():
            meddled.set()
            following.append(json.loads(rest[0].payload)["step"])
            await flows.hold(store, ref, Actor("ann"))
        return await hand_over(self, changes, unmoved, *rest)

    monkeypatch.setattr(PostgresStore, "hand_over", meddle)
    async with working(far):
        ref = await flows.start(store, chain(*"abcd"))
        await eventually(lambda: _so(meddled.is_set()))
        await asyncio.sleep(0.2)
        so_far = list(ORDER)
        await flows.let_go(store, ref, Actor("ann"))
        await ended(store, ref, "S_SUCCESS")
    assert following[0] not in so_far
    assert ORDER == ["a", "b", "c", "d"]
    assert (await verify(store)).problems == []


async def test_a_handover_whose_records_were_moved_meanwhile_changes_nothing(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its conditions, broken one at a time."""
    store, tried = await far.open(), []
    hand_over = PostgresStore.hand_over

    async def wronged(self: Any, changes: Sequence[Change], unmoved: Sequence[Unmoved], *rest: Any) -> Any:
        before = [tuple(event) for event in await log(store)]
        for place in range(len(changes)):
            other = [one._replace(seq=one.seq + (n == place)) for n, one in enumerate(changes)]
            tried.append(await hand_over(self, other, unmoved, *rest))
        for place in range(len(unmoved)):
            others = [one._replace(seq=one.seq + (n == place)) for n, one in enumerate(unmoved)]
            tried.append(await hand_over(self, changes, others, *rest))
        job, worker, *how = rest
        tried.append(await hand_over(self, changes, unmoved, job, worker + 1, *how))
        assert [tuple(event) for event in await log(store)] == before
        assert (await store.rows(JOB, [changes[0].id], ("state",))) == [{"state": "running"}]
        return await hand_over(self, changes, unmoved, *rest)

    monkeypatch.setattr(PostgresStore, "hand_over", wronged)
    async with working(far):
        await ended(store, await flows.start(store, chain(*"abcd")), "S_SUCCESS")
    assert len(tried) >= 2 * 5
    assert set(tried) == {None}


async def test_what_the_engine_wants_beyond_one_step_goes_the_usual_way(app: Keptwork) -> None:
    """Steps that fork and join, are skipped, or refer to what came before."""
    call = {"call": f"{__name__}:note"}
    steps = [
        {"id": "a", **call, "with": {"name": "a"}},
        {"id": "b", **call, "with": {"name": "${a.value}b"}, "depends_on": ["a"]},
        {"id": "c", **call, "with": {"name": "c"}, "depends_on": ["b"], "when": "false"},
        {"id": "d", **call, "with": {"name": "d"}, "depends_on": ["c"]},
        {"id": "e", **call, "with": {"name": "e"}, "depends_on": ["d"]},
        {"id": "f", **call, "with": {"name": "f"}, "depends_on": ["d"]},
        {"id": "g", **call, "with": {"name": "g"}, "depends_on": ["e", "f"]},
    ]
    store = await app.open()
    async with working(app):
        ref = await flows.start(store, Flow.model_validate({"name": "several", "steps": steps}))
        await ended(store, ref, "S_SUCCESS")
    assert (ORDER[:3], sorted(ORDER[3:5]), ORDER[5:]) == (["a", "ab", "d"], ["e", "f"], ["g"])
    assert (await verify(store)).problems == []


async def test_an_answer_that_is_lost_leaves_no_step_with_a_worker_that_does_not_know_of_it(
    far: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lost = await far.open(), list[Job]()
    hand_over = PostgresStore.hand_over

    async def lossy(self: Any, *given: Any) -> Any:
        made = await hand_over(self, *given)
        if len(lost) < 2 and made:
            lost.append(made)
            raise Unreachable(url=store.url, detail="the line is dead", database="it")
        return made

    monkeypatch.setattr(PostgresStore, "hand_over", lossy)
    async with working(far):
        await ended(store, await flows.start(store, chain(*"abcdef")), "S_SUCCESS")
    assert len(lost) == 2
    assert [*"abcdef"] == ORDER
    assert (await verify(store)).problems == []


async def _so(held: bool) -> bool:
    return held
