"""Commands to workers: every row of the lifecycle's tables, idempotent, and never more than what was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keptwork.core import metrics
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, WORKER, decide
from keptwork.errors import BadInput, InvalidTransition, KeyReused, NotFound
from keptwork.observability import stats
from keptwork.store import Store
from keptwork.store.contract.records import Standing, WorkerFilter
from keptwork.workers import commands as workers
from keptwork.workers.commands import Wish
from keptwork.workers.registration import Order, understood
from tests.conformance.stage import entity, log, queued, running, worker

COMMANDS = {
    "pause": workers.pause,
    "resume": workers.resume,
    "terminate": workers.terminate,
}

# Seed 001 §1.3: what a supervisor may ask for.
ALLOWED = [
    ("RUNNING", "pause", "PAUSED"),
    ("PAUSED", "resume", "RUNNING"),
    *((state, "terminate", "TERMINATED") for state in ("IDLE", "RUNNING", "PAUSED", "COMPLETED", "FAILED")),
]

# Seed 001 §1.4, and everything else it does not list as allowed.
FORBIDDEN = [
    ("IDLE", "pause"),
    ("IDLE", "resume"),
    ("COMPLETED", "resume"),
    ("COMPLETED", "pause"),
    ("FAILED", "resume"),
    ("FAILED", "pause"),
    *(("TERMINATED", verb) for verb in COMMANDS),
    ("PAUSED", "pause"),
    ("RUNNING", "resume"),
]


async def named(store: Store, state: str, **columns: Any) -> str:
    return public_id(WORKER.name, await worker(store, state, **columns))


async def state_of(store: Store, id: str) -> str:
    return str((await workers.find(store, 1, id))["state"])


def test_the_two_tables_cover_every_state_and_command() -> None:
    everything = {(state.name, verb) for state in WORKER.states for verb in COMMANDS}
    assert {(state, verb) for state, verb, _ in ALLOWED} | set(FORBIDDEN) == everything


async def test_what_is_allowed_is_done_with_actor_and_reason(store: Store) -> None:
    for before, verb, after in ALLOWED:
        id = await named(store, before)
        answer = await COMMANDS[verb](store, 1, id, Wish("cli:ann", "because"))
        assert (answer["from_state"], answer["to_state"]) == (before, after)
        assert answer["worker"]["state"] == answer["worker"]["status"] == after == await state_of(store, id)
        event = (await log(store, entity="worker", entity_id=workers.key_of(id)))[-1]
        assert (event.trigger, event.actor, event.reason) == (verb, "cli:ann", "because")


async def test_what_is_forbidden_is_a_409_that_says_what_is_allowed(store: Store) -> None:
    for before, verb in FORBIDDEN:
        id = await named(store, before)
        with pytest.raises(InvalidTransition) as refused:
            await COMMANDS[verb](store, 1, id)
        assert (refused.value.status, refused.value.exit_code) == (409, 1)
        assert refused.value.allowed == WORKER.allowed_from(before)
        assert id in str(refused.value)
        assert await state_of(store, id) == before


@pytest.mark.parametrize(("before", "trigger"), [("IDLE", "complete_tasks"), ("COMPLETED", "start_task")])
def test_a_worker_neither_completes_before_it_runs_nor_runs_after_it_completed(before: str, trigger: str) -> None:
    row = {"id": 7, "tenant_id": 1, "state": before, "seq": 1, "epoch": 0}
    assert isinstance(decide(WORKER, row, trigger), InvalidTransition)


async def test_the_same_request_id_gets_the_same_answer_and_one_event(store: Store) -> None:
    id = await named(store, "RUNNING")
    wish = Wish("cli:ann", "test pause", "req_abc123")
    first = await workers.pause(store, 1, id, wish)
    assert await workers.pause(store, 1, id, wish) == first
    assert [e.trigger for e in await log(store, entity="worker", entity_id=workers.key_of(id))].count("pause") == 1
    await workers.resume(store, 1, id, Wish(request_id="req_abc123"))  # another command, another request
    assert await workers.pause(store, 1, id, wish) == first, "the answer stays the first one for an hour"
    assert await state_of(store, id) == "RUNNING"
    with pytest.raises(KeyReused):
        await workers.pause(store, 1, await named(store, "RUNNING"), wish)


async def test_a_refused_request_leaves_its_id_free(store: Store) -> None:
    id = await named(store, "PAUSED")
    wish = Wish(request_id="once")
    with pytest.raises(InvalidTransition):
        await workers.pause(store, 1, id, wish)
    await workers.resume(store, 1, id)
    assert (await workers.pause(store, 1, id, wish))["to_state"] == "PAUSED"


async def test_drain_asks_and_moves_nothing(store: Store) -> None:
    for state in ("IDLE", "RUNNING", "PAUSED"):
        id = await named(store, state)
        await store.beat(workers.key_of(id))
        answer = await workers.drain(store, 1, id, Wish("cli:ann", "new version"))
        assert (answer["from_state"], answer["to_state"]) == (state, state)
        assert answer["worker"]["asked_to_end"] == Order("drain", "release", "cli:ann", "new version")._asdict()


async def test_one_that_no_process_has_ever_been_ends_when_it_is_to_drain(store: Store) -> None:
    answer = await workers.drain(store, 1, await named(store, "IDLE"), Wish("cli:ann", "new version"))
    assert (answer["to_state"], answer["worker"]["reason"]) == ("TERMINATED", "drained: new version")


async def test_what_has_ended_cannot_drain(store: Store) -> None:
    for state in ("COMPLETED", "FAILED", "TERMINATED"):
        with pytest.raises(InvalidTransition, match="cannot drain"):
            await workers.drain(store, 1, await named(store, state))


async def test_a_soft_end_may_become_a_hard_one_without_a_second_move(store: Store) -> None:
    id = await named(store, "RUNNING")
    await workers.terminate(store, 1, id, Wish("cli:ann"))
    answer = await workers.terminate(store, 1, id, Wish("cli:bob"), hard=True)
    assert (answer["from_state"], answer["to_state"]) == ("TERMINATED", "TERMINATED")
    assert answer["worker"]["asked_to_end"]["how"] == "hard"
    with pytest.raises(InvalidTransition):
        await workers.terminate(store, 1, id, hard=True)
    assert len(await log(store, entity="worker", entity_id=workers.key_of(id))) == 3


async def test_a_hard_end_cancels_the_jobs_if_asked_and_touches_no_others(store: Store) -> None:
    one, other = await worker(store), await worker(store)
    mine, theirs = await running(store, one, 2), await running(store, other)
    waiting = await queued(store)
    await workers.terminate(store, 1, public_id("worker", one), Wish("cli:ann"), hard=True, cancel_jobs=True)
    rows = {row["id"]: row["state"] for row in await store.rows(JOB, [*mine, *theirs, *waiting])}
    assert [rows[id] for id in (*mine, *theirs, *waiting)] == ["cancelled", "cancelled", "running", "queued"]


async def test_without_being_asked_the_jobs_stay_with_the_process_that_must_let_go_of_them(store: Store) -> None:
    one = await worker(store)
    (job,) = await running(store, one)
    await workers.terminate(store, 1, public_id("worker", one), hard=True)
    assert (await entity(store, JOB, job))["state"] == "running"


async def test_the_silent_are_terminated_and_their_jobs_keep_their_leases(store: Store) -> None:
    silent, spared, never = [await worker(store, "RUNNING") for _ in range(3)]
    (job,) = await running(store, silent)
    for id in (silent, spared):
        await store.beat(id)
    before = await entity(store, JOB, job)
    assert await workers.end_silent(store, 0, {silent, never}, "supervisor:s") == [silent]
    assert await entity(store, JOB, job) == before
    event = (await log(store, entity="worker", entity_id=silent))[-1]
    assert (event.trigger, event.reason, event.actor) == ("terminate", "supervisor_timeout", "supervisor:s")
    assert "seen_at" in json.loads(event.payload or "{}")
    assert await state_of(store, public_id("worker", spared)) == "RUNNING"


async def test_who_serves_a_queue(store: Store) -> None:
    mail = json.dumps({"queues": ["mail", "default"], "kinds": ["send"], "concurrency": 3, "version": "1"})
    both, paused = await worker(store, serves=mail), await worker(store, "PAUSED", serves=mail)
    await worker(store, "TERMINATED", serves=mail)
    await worker(store)
    assert [row["id"] for row in await workers.serving(store, "mail")] == [paused, both]
    assert await workers.serving(store, "other") == []


async def test_a_page_tells_how_many_jobs_each_holds(store: Store) -> None:
    one, other = await worker(store), await worker(store)
    await running(store, one, 2)
    page = await workers.page(store, WorkerFilter(1), limit=1)
    assert ([row["id"] for row in page.workers], page.jobs[one]) == ([other], 2)
    rest = await workers.page(store, WorkerFilter(1), after=page.next)
    assert [row["id"] for row in rest.workers] == [one]
    with pytest.raises(BadInput):
        await workers.page(store, WorkerFilter(1), limit=0)


async def test_foreign_and_unknown_ids_look_the_same(store: Store) -> None:
    id = await named(store, "RUNNING")
    with pytest.raises(NotFound) as foreign:
        await workers.pause(store, 2, id)
    with pytest.raises(NotFound) as unknown:
        await workers.pause(store, 1, public_id("worker", 7))
    assert str(foreign.value).replace(id, "ID") == str(unknown.value).replace(public_id("worker", 7), "ID")
    with pytest.raises(NotFound):
        await workers.show(store, 1, "job_nonsense")


async def test_moves_times_refusals_and_hits_of_workers_are_counted(store: Store) -> None:
    id = await named(store, "RUNNING")
    for _ in range(2):
        await workers.pause(store, 1, id, Wish(request_id="k"))
    with pytest.raises(InvalidTransition):
        await workers.pause(store, 1, id)
    await stats.roll_up(store)
    figures = await stats.read(store, "default")
    assert figures.own.counts[metrics.TRANSITIONS]["worker", "RUNNING", "PAUSED", "pause"] == 1
    assert figures.own.times[metrics.TIME_IN_STATE]["worker", "RUNNING"].count == 1
    assert figures.own.counts[metrics.REFUSED]["worker", "PAUSED", "pause"] == 1
    assert figures.hit_rate == 0.5
    assert figures.workers == {"PAUSED": 1}


def test_how_a_worker_understands_its_row() -> None:
    drain, soft, hard = (Order(how) for how in ("drain", "soft", "hard"))
    table = [
        (Standing("RUNNING", None, None, None), None),
        (Standing("PAUSED", drain.text, None, None), drain),
        (Standing("RUNNING", soft.text, None, None), None),
        (Standing("TERMINATED", soft.text, "x", "y"), soft),
        (Standing("TERMINATED", hard.text, "x", "y"), hard),
        (Standing("TERMINATED", drain.text, "x", "y"), Order("hard", by="x", reason="y")),
        (Standing("TERMINATED", None, "x", "supervisor_timeout"), Order("hard", by="x", reason="supervisor_timeout")),
        (Standing("TERMINATED", "nonsense", "x", None), Order("hard", by="x")),
        (None, Order("hard", reason="its row is gone")),
    ]
    assert [understood(standing) for standing, _ in table] == [order for _, order in table]
