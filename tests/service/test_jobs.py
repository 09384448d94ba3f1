"""Jobs as operators handle them, on both stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from keptwork.core.durations import LONGEST_US
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import (
    BadInput,
    InvalidTransition,
    LeaseLost,
    NotFound,
    NotRunAgain,
    RunAgainBefore,
    StillUnfinished,
)
from keptwork.jobs import queries
from keptwork.store import JobFilter, NewJob, Store
from tests.conformance.stage import claim, entity, log, moved, queued, running, worker
from tests.service.rivalry import Rivalry

S = 1_000_000

OURS = 1


def named(key: int) -> str:
    return public_id("job", key)


async def failed(store: Store, **fields: Any) -> int:
    owner = await worker(store)
    (id,) = await store.enqueue([NewJob("kind", **fields)])
    await claim(store, owner, 1, fields.get("queue", "default"), start=True)
    await moved(store, JOB, id, "fail", by="holder", values={"error": "broken"})
    return id


# --- enqueue


async def test_what_is_said_of_a_job_is_kept(store: Store) -> None:
    before = await store.now()
    said: dict[str, Any] = {"queue": "q", "priority": 3, "key": "k", "max_attempts": 2, "correlation_id": "c"}
    key = await queries.enqueue(store, OURS, "mail", '{"to": "ann"}', run_in="5m", actor="cli:ann", **said)
    row = await queries.find(store, OURS, named(key))
    assert {name: row[name] for name in said} == said
    assert (row["kind"], json.loads(row["payload"]), row["actor"]) == ("mail", {"to": "ann"}, "cli:ann")
    assert row["run_at"] >= before + 300_000_000
    assert await queries.enqueue(store, OURS, "mail", key="k") == key


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"payload": "{"}, "no JSON"),
        ({"payload": "[1]"}, "must be a JSON object"),
        ({"payload": '{"x": NaN}'}, "no JSON"),
        ({"payload": json.dumps({"x": "y" * (1 << 20)})}, "over the limit of 1 MiB"),
        ({"kind": ""}, "is no kind"),
        ({"queue": "a\0b"}, "is no queue"),
        ({"key": " "}, "is no key"),
        ({"max_attempts": 0}, "at least 1"),
        ({"priority": 1 << 31}, "is no priority"),
        ({"run_in": "soon"}, "is no duration"),
    ],
)
async def test_what_could_not_run_is_refused_before_it_is_stored(
    store: Store, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        await queries.enqueue(store, OURS, **{"kind": "kind", **wrong})
    assert await store.jobs() == []


# --- reading


async def test_pages_follow_one_another_by_id(store: Store) -> None:
    keys = sorted(await queued(store, 5), reverse=True)
    first = await queries.page(store, JobFilter(OURS), limit=3)
    assert first.next == named(keys[2])
    rest = await queries.page(store, JobFilter(OURS), after=first.next, limit=3)
    assert [row["id"] for row in first.jobs + rest.jobs] == keys
    assert rest.next is None
    assert "payload" not in first.jobs[0]


async def test_a_story_has_the_row_its_events_and_who_runs_it_again(store: Store) -> None:
    key = await failed(store)
    new = await queries.retry(store, OURS, named(key))
    story = await queries.show(store, OURS, named(key))
    assert story.job["state"] == "failed"
    assert [event.trigger for event in story.events] == ["enqueue", "claim", "start", "fail"]
    assert story.redriven_as == [new]


async def test_a_foreign_an_unknown_and_a_mistyped_id_are_the_same(store: Store, other_tenant: int) -> None:
    (theirs,) = await queued(store, tenant_id=other_tenant)
    verbs = [queries.find, queries.show, queries.cancel, queries.retry, queries.wait]
    for id in (named(theirs), named(theirs + 1), "job_nonsense", public_id("worker", theirs), ""):
        for verb in verbs:
            with pytest.raises(NotFound) as caught:
                await cast(Any, verb)(store, OURS, id)
            assert str(caught.value) == f"No job {id!r}; list them with: keptwork jobs list"
    assert (await entity(store, JOB, theirs))["state"] == "queued"


def test_states_may_be_named_as_people_write_them() -> None:
    assert queries.states_named(["dead-lettered,queued", "queued"]) == ("dead_lettered", "queued")
    assert queries.states_named([]) is None
    with pytest.raises(BadInput, match="never 'lost'; it is one of: queued"):
        queries.states_named(["lost"])


# --- cancel


async def test_a_queued_and_an_assigned_job_are_cancelled_at_once(store: Store) -> None:
    assigned, waiting = await queued(store, 2)
    await claim(store, await worker(store), 1)
    for key in (assigned, waiting):
        assert await queries.cancel(store, OURS, named(key), reason="no more", actor="cli:ann") == "cancelled"
        last = (await log(store, entity_id=key))[-1]
        assert (last.trigger, last.reason, last.actor) == ("cancel", "no more", "cli:ann")


async def test_a_running_job_is_asked_and_taken_away_only_when_that_is_meant(store: Store) -> None:
    owner = await worker(store)
    (key,) = await running(store, owner)
    assert await queries.cancel(store, OURS, named(key)) == "asked to stop"
    assert (await store.held(owner, [key]))[key].stop_requested
    assert await queries.cancel(store, OURS, named(key), hard=True) == "cancelled"
    assert await store.held(owner, [key]) == {}


async def test_a_job_that_has_ended_cannot_be_cancelled(store: Store) -> None:
    key = await failed(store)
    with pytest.raises(InvalidTransition, match=f"job {named(key)} is failed: cannot cancel; allowed: nothing"):
        await queries.cancel(store, OURS, named(key))


async def test_a_job_that_moves_between_reading_and_cancelling_is_decided_on_anew(store: Store) -> None:
    owner = await worker(store)
    (key,) = await queued(store)
    rivalry = Rivalry(store, partial(claim, store, owner, 1), partial(moved, store, JOB, key, "start", by="holder"))
    assert await queries.cancel(cast(Store, rivalry), OURS, named(key)) == "asked to stop"
    assert (await entity(store, JOB, key))["state"] == "running"


async def test_a_job_that_stops_running_while_it_is_asked_to_is_cancelled_instead(store: Store) -> None:
    (key,) = await running(store, await worker(store))
    rivalry = Rivalry(store, partial(moved, store, JOB, key, "release", by="holder"))
    assert await queries.cancel(cast(Store, rivalry), OURS, named(key)) == "cancelled"


async def test_a_job_that_never_holds_still_is_given_up_with_a_clear_word(store: Store) -> None:
    owner = await worker(store)
    (key,) = await queued(store)
    away = partial(claim, store, owner, 1)
    back = partial(moved, store, JOB, key, "release", by="holder")
    rival: list[Callable[[], Awaitable[object]]] = [away, back]
    with pytest.raises(LeaseLost, match="has moved on since it was read: cancel changed nothing"):
        await queries.cancel(cast(Store, Rivalry(store, *rival * 5)), OURS, named(key))


# --- retry


async def test_a_retry_is_a_new_job_with_the_same_work(store: Store) -> None:
    same = {"queue": "q", "priority": 7, "max_attempts": 2, "on_exhausted": "fail", "correlation_id": "c"}
    key = await failed(store, payload='{"a":1}', key="order-17", **same)
    new = await entity(store, JOB, await queries.retry(store, OURS, named(key), actor="cli:ann"))
    assert {name: new[name] for name in same} == same
    assert (new["kind"], new["payload"], new["state"], new["attempts"]) == ("kind", '{"a":1}', "queued", 0)
    assert (new["redriven_from"], new["actor"], new["cause"]) == (key, "cli:ann", "redrive")


async def test_a_retry_may_have_another_payload(store: Store) -> None:
    key = await failed(store, payload='{"a":1}')
    new = await queries.retry(store, OURS, named(key), payload='{"a": 2}')
    assert json.loads((await entity(store, JOB, new))["payload"]) == {"a": 2}
    with pytest.raises(BadInput):
        await queries.retry(store, OURS, named(key), payload="2", again=True)


async def test_a_second_retry_must_be_meant(store: Store) -> None:
    key = await failed(store)
    new = await queries.retry(store, OURS, named(key))
    with pytest.raises(RunAgainBefore, match=named(new)):
        await queries.retry(store, OURS, named(key))
    another = await queries.retry(store, OURS, named(key), again=True)
    assert another not in (key, new)


async def test_many_who_retry_at_once_make_one_job(store: Store) -> None:
    key = await failed(store)
    tried = [queries.retry(store, OURS, named(key)) for _ in range(8)]
    answers = await asyncio.gather(*tried, return_exceptions=True)
    made = {answer for answer in answers if isinstance(answer, int)}
    assert len(made) == 1
    assert all(isinstance(answer, int | RunAgainBefore) for answer in answers)
    assert len(await store.jobs(JobFilter(redriven_from=(key,)))) == 1


async def test_only_what_ended_without_success_runs_again(store: Store) -> None:
    owner = await worker(store)
    (done,) = await running(store, owner)
    await moved(store, JOB, done, "succeed", by="holder")
    (waiting,) = await queued(store)
    for key, state in ((done, "succeeded"), (waiting, "queued")):
        with pytest.raises(NotRunAgain, match=f"is {state}; only what has ended without success"):
            await queries.retry(store, OURS, named(key))
    await queries.cancel(store, OURS, named(waiting))
    assert await queries.retry(store, OURS, named(waiting))


# --- wait


async def test_waiting_ends_when_the_job_does(store: Store) -> None:
    (key,) = await running(store, await worker(store))
    waiting = asyncio.ensure_future(queries.wait(store, OURS, named(key), "30s"))
    await asyncio.sleep(0)
    await moved(store, JOB, key, "succeed", by="holder", values={"result": '{"n":1}'})
    row = await waiting
    assert (row["state"], row["result"]) == ("succeeded", '{"n":1}')
    assert queries.succeeded(row)
    assert await queries.wait(store, OURS, named(key), "0s") == row


async def test_waiting_is_over_when_its_time_is(store: Store) -> None:
    (key,) = await queued(store)
    with pytest.raises(StillUnfinished, match=f"{named(key)} is still queued after 20ms") as caught:
        await queries.wait(store, OURS, named(key), "20ms")
    assert caught.value.exit_code == 124


# --- JSON


async def test_a_job_as_json_has_nothing_of_the_inside(store: Store) -> None:
    key = await failed(store, payload='{"a":1}')
    new = await queries.retry(store, OURS, named(key))
    shown = queries.as_json(await entity(store, JOB, key))
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["id"], shown["state"], shown["status"]) == (named(key), "failed", "failed")
    assert shown["payload"] == {"a": 1}
    assert shown["owner"].startswith("w_")
    assert shown["completed_at"].endswith("Z")
    assert queries.as_json(await entity(store, JOB, new))["redriven_from"] == named(key)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"run_at": 0}, "waiting 1 min"),
        ({"run_at": 180 * S}, "due in 2 min"),
        ({"run_at": 60 * S + LONGEST_US}, "until it is woken"),
        ({"held_by": "limit:mail"}, "held by limit:mail"),
        ({"state": "running", "updated_at": 0}, "for 1 min"),
        ({"state": "running", "lease_until": 58 * S}, "lease over for 2 s"),
        ({"state": "running", "cancel_requested_at": 57 * S}, "asked to stop 3 s ago"),
        ({"state": "failed", "completed_at": 30 * S}, "30 s ago"),
    ],
)
def test_how_a_job_is_getting_on_is_said_in_a_few_words(said: dict[str, Any], shown: str) -> None:
    nothing = dict.fromkeys(("completed_at", "cancel_requested_at", "lease_until", "held_by", "run_at", "updated_at"))
    assert queries.lately({**nothing, "state": "queued", **said}, 60 * S) == shown
