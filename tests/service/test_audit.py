"""The audit: it counts what the test counted, rebuilds every row, and sees what was done behind the product's back."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest

from keptwork.audit import verify
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, LIFECYCLES, WORKER
from keptwork.errors import StoreError
from keptwork.store import Store, open_store, upgrade_migrate
from keptwork.store.contract.records import EVENT_FIELDS
from tests.conformance.stage import queued
from tests.support.lives import Lives, live

SQLITE_INTEGER_MAX = (1 << 63) - 1


async def triggers_by_job(store: Store) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    after: tuple[int, int] = (0, 0)
    while page := await store.history(after, 20_000):
        for event in page:
            if event.entity == "job":
                found.setdefault(event.entity_id, []).append(event.trigger)
        after = (page[-1].entity_id, page[-1].seq)
    return found


async def test_a_thousand_jobs_leave_exactly_the_events_of_their_moves(store):
    lives = await live(store, 1000)
    verdict = await verify.verify(store)
    assert verdict.problems == []
    assert verdict.events == lives.total + 1  # the worker's
    assert (verdict.entities, verdict.rows["job"], verdict.rows["worker"]) == (1001, 1000, 1)
    assert await triggers_by_job(store) == lives.moves
    ends = Counter(moves[-1] for moves in lives.moves.values())
    assert set(ends) == {"succeed", "fail", "cancel", "dead_letter"}  # the dice reached every end
    assert {"retry", "snooze", "release", "expire"} <= {move for moves in lives.moves.values() for move in moves}


async def many_events(store: Store, wanted: int, capsys: pytest.CaptureFixture[str]) -> None:
    lives = Lives(store, seed=17)
    await lives.begin()
    began = time.perf_counter()
    while lives.total < wanted:
        await lives.enqueue(1000)
        await lives.go_on(1000)
    written = time.perf_counter() - began
    told: list[tuple[int, int]] = []
    began = time.perf_counter()
    verdict = await verify.verify(store, lambda done, total: told.append((done, total)))
    checked = time.perf_counter() - began
    assert verdict.problems == []
    assert verdict.events == await store.event_count() == lives.total + 1
    assert told[-1] == (verdict.events, verdict.events)
    assert len(told) >= wanted // verify.EVENTS_AT_ONCE
    with capsys.disabled():
        rates = f"written {lives.total / written:,.0f}/s, verified {verdict.events / checked:,.0f}/s"
        print(f"\n{store.url.partition(':')[0]}: {verdict.events:,} events, {rates}")


async def test_twenty_thousand_events_replay_to_every_row(store, capsys):
    await many_events(store, 20_000, capsys)


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_a_million_events_replay_to_every_row(store, capsys):
    await many_events(store, 1_000_000, capsys)


async def test_an_empty_database_is_clean(store):
    verdict = await verify.verify(store)
    assert (verdict.clean, verdict.events, verdict.entities, set(verdict.rows)) == (True, 0, 0, set(LIFECYCLES))


async def test_one_entity_with_more_events_than_a_page_is_replayed_across_pages(store, monkeypatch):
    monkeypatch.setattr(verify, "EVENTS_AT_ONCE", 3)
    lives = await live(store, 40)
    assert max(len(moves) for moves in lives.moves.values()) > 6
    verdict = await verify.verify(store)
    assert (verdict.problems, verdict.events, verdict.entities) == ([], lives.total + 1, 41)


# --- behind the product's back ------------------------------------------------------------------------------


async def problems(store: Store) -> dict[str, str]:
    return {problem.entity: problem.what for problem in (await verify.verify(store)).problems}


async def longest(store: Store) -> int:
    """A job that went through something, ended, and has its row."""
    lives = await live(store, 60)
    return max((len(moves), key) for key, moves in lives.moves.items() if moves[-1] == "succeed")[1]


EDITS = {
    "the state of a row": ("UPDATE jobs SET state = 'queued' WHERE id = {id}", "state is queued, by its events"),
    "the sequence of a row": ("UPDATE jobs SET seq = seq + 1 WHERE id = {id}", "seq is "),
    "the epoch of a row": ("UPDATE jobs SET epoch = epoch + 5 WHERE id = {id}", "epoch is "),
    "the birth of a row": ("UPDATE jobs SET created_at = created_at - 1 WHERE id = {id}", "created_at is "),
    "the time of a row": ("UPDATE jobs SET updated_at = updated_at + 1 WHERE id = {id}", "updated_at is "),
    "the start of a row": ("UPDATE jobs SET started_at = NULL WHERE id = {id}", "started_at is None, by"),
    "the end of a row": ("UPDATE jobs SET completed_at = 5 WHERE id = {id}", "completed_at is 5, by"),
    "the last move of a row": ("UPDATE jobs SET move = 'fail' WHERE id = {id}", "move is fail, by its events succeed"),
    "the tenant of a row": ("UPDATE jobs SET tenant_id = 2 WHERE id = {id}", "tenant is 2, not 1"),
    "the first event deleted": ("DELETE FROM events WHERE entity_id = {id} AND seq = 1", "event 1 is missing"),
    "an event deleted": ("DELETE FROM events WHERE entity_id = {id} AND seq = 3", "event 3 is missing"),
    "the tail cut": ("DELETE FROM events WHERE entity_id = {id} AND seq > 4", "seq is "),
    "the trigger of an event": (
        "UPDATE events SET trigger = 'snooze' WHERE entity_id = {id} AND seq = 2",
        "no declared move",
    ),
    "the type of an event": (
        "UPDATE events SET type = 'job_failed' WHERE entity_id = {id} AND seq = 2",
        "no declared move",
    ),
    "where an event leads": (
        "UPDATE events SET to_state = 'running' WHERE entity_id = {id} AND seq = 2",
        "event 2 is no declared move",
    ),
    "where an event starts": (
        "UPDATE events SET from_state = 'running' WHERE entity_id = {id} AND seq = 2",
        "event 2 starts from running",
    ),
    "the epoch of an event": ("UPDATE events SET epoch = 9 WHERE entity_id = {id} AND seq = 2", "has epoch 9 after 0"),
    "the time of an event": ("UPDATE events SET ts = 7 WHERE entity_id = {id} AND seq = 2", "event 2 is older"),
    "the tenant of an event": (
        "UPDATE events SET tenant_id = 7 WHERE entity_id = {id} AND seq = 2",
        "event 2 is of tenant 7, not 1",
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
async def test_an_edit_behind_the_products_back_is_reported(store, tamper, edit):
    id = await longest(store)
    assert await problems(store) == {}
    sql, words = edit
    tamper(sql.format(id=id))
    found = await problems(store)
    assert list(found) == [public_id("job", id)]
    assert words in found[public_id("job", id)]


async def test_two_events_in_each_others_place_are_reported(store, tamper):
    id = await longest(store)
    swap = [(3, -3), (4, 3), (-3, 4)]
    tamper(*(f"UPDATE events SET seq = {new} WHERE entity_id = {id} AND seq = {old}" for old, new in swap))
    assert "event 3" in (await problems(store))[public_id("job", id)]


async def test_a_whole_history_that_is_gone_is_reported(store, tamper):
    id = await longest(store)
    tamper(f"DELETE FROM events WHERE entity_id = {id}")
    assert await problems(store) == {"–": "1 job row has no events at all"}


async def test_an_invented_event_is_reported(store, tamper):
    id = await longest(store)
    fields = ", ".join(name for name in EVENT_FIELDS if name not in ("id", "seq"))
    tamper(f"INSERT INTO events ({fields}, seq) SELECT {fields}, 99 FROM events WHERE entity_id = {id} AND seq = 1")
    assert "is missing: the next in the log is 99" in (await problems(store))[public_id("job", id)]


async def test_an_event_of_no_known_entity_is_reported(store, tamper):
    id = await longest(store)
    tamper(f"UPDATE events SET entity = 'unicorn' WHERE entity_id = {id}")
    assert (await problems(store))[f"unicorn:{id}"] == "there is no lifecycle 'unicorn'"


@pytest.mark.parametrize("key", [0, -1, -(1 << 63), SQLITE_INTEGER_MAX])
async def test_an_event_under_an_impossible_key_is_reported(store, tamper, key):
    id = await longest(store)
    tamper(f"UPDATE events SET entity_id = {key} WHERE entity_id = {id} AND seq = 2")
    assert "event 1 is missing" in (await problems(store))[public_id("job", key)]


async def test_a_row_that_ended_may_only_be_gone_if_retention_accounts_for_it(store, tamper):
    id = await longest(store)
    tamper(f"DELETE FROM jobs WHERE id = {id}")
    assert list(await problems(store)) == [public_id("job", id)]
    tamper(f"INSERT INTO retention VALUES (1, 'job', 'succeeded', 1, {await store.now()})")
    assert await problems(store) == {}


async def test_a_row_that_is_gone_before_its_end_is_reported(store, tamper):
    worker = await store.create(WORKER, name="w", incarnation="i", workspace_id="x")
    tamper(f"DELETE FROM workers WHERE id = {worker}")
    assert "the row is gone, though its last event left it IDLE" in (await problems(store)).values()


async def test_two_kinds_of_entity_under_one_key_are_told_apart(store, tamper, monkeypatch):
    monkeypatch.setattr(verify, "EVENTS_AT_ONCE", 1)
    id = await longest(store)
    columns = "created_at, updated_at, tenant_id, state, move, name, incarnation, workspace_id"
    events = "entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state"
    tamper(
        f"INSERT INTO workers (id, {columns}) VALUES ({id}, 5, 5, 1, 'IDLE', 'register', 'w', 'i', 'x')",
        f"INSERT INTO events ({events}) VALUES ({id}, 5, 1, 1, 0, 'worker', 'worker_register', 'register', 'IDLE')",
    )
    assert await problems(store) == {}


async def test_a_guard_that_was_dropped_is_reported_and_put_back_when_asked(store, database_url, request):
    await queued(store)
    if database_url.startswith("sqlite"):
        db = apsw.Connection(database_url.removeprefix("sqlite:///"))
        db.execute("DROP TRIGGER keptwork_job_moves")
        db.close()
    else:
        name = urlsplit(database_url).path.lstrip("/")
        request.getfixturevalue("postgres_server").superuser_sql(
            "ALTER TABLE jobs DISABLE TRIGGER keptwork_job_moves", name
        )
    assert "the guard keptwork_job_moves is missing" in (await problems(store))["–"]
    assert not (await upgrade_migrate.migrate(database_url)).guards
    assert (await upgrade_migrate.migrate(database_url, guards=True)).guards == ["keptwork_job_moves"]
    assert await problems(store) == {}
    with pytest.raises(StoreError, match="no declared move of a job"):
        async with store.transaction() as tx:
            await tx.execute("UPDATE jobs SET state = 'succeeded' WHERE state = 'queued'")


async def test_only_the_first_problems_are_kept_and_all_are_counted(store, tamper, monkeypatch):
    monkeypatch.setattr(verify, "PROBLEMS_KEPT", 5)
    await live(store, 60)
    tamper("UPDATE jobs SET epoch = epoch + 1")
    verdict = await verify.verify(store)
    assert (verdict.clean, len(verdict.problems), verdict.problem_count) == (False, 5, 60)


# --- the export ---------------------------------------------------------------------------------------------


async def exported(store: Store, wanted: int) -> tuple[verify.Exported, list[dict[str, Any]]]:
    """On a busy server the newest events are held back while any transaction is open: until then, again."""
    while True:
        lines: list[str] = []
        done = await verify.export(store, lines.append)
        if done.events == wanted or not done.left:
            return done, [json.loads(line) for line in "".join(lines).splitlines()]


async def test_the_export_has_every_event_once_in_the_order_of_commits(store, monkeypatch):
    monkeypatch.setattr(verify, "EVENTS_AT_ONCE", 37)
    lives = await live(store, 100)
    done, events = await exported(store, lives.total + 1)
    assert (done.events, done.left, len(events)) == (lives.total + 1, 0, lives.total + 1)
    assert all(tuple(event) == EVENT_FIELDS for event in events)
    assert len({(event["entity_id"], event["seq"]) for event in events}) == len(events)
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    made = {public_id("job", key): moves for key, moves in lives.moves.items()}
    for event in (event for event in events if event["entity"] == "job"):
        assert made[event["entity_id"]][event["seq"] - 1] == event["trigger"]


async def test_a_worker_is_exported_by_its_public_id(store):
    await live(store, 3)
    _, events = await exported(store, await store.event_count())
    worker = next(event["entity_id"] for event in events if event["entity"] == "worker")
    assert {event["actor"] for event in events if event["type"] == "job_claimed"} == {worker}


async def test_a_later_export_goes_on_where_the_last_one_ended(store):
    await live(store, 20)
    first, _ = await exported(store, await store.event_count())
    before = await store.event_count()
    await live(store, 10, seed=2)
    while True:
        lines: list[str] = []
        done = await verify.export(store, lines.append, after=first.cursor)
        if done.events == await store.event_count() - before:
            break
    assert len("".join(lines).splitlines()) == done.events > 0


async def test_a_failing_output_is_the_outputs_error_not_the_databases(store):
    await live(store, 5)

    def full(_: str) -> None:
        raise OSError(28, "No space left on device")

    while not await store.events(limit=1):
        pass  # on a busy server events are held back while somebody else's transaction is open
    with pytest.raises(OSError, match="No space left"):
        await verify.export(store, full)


async def test_what_is_shown_of_a_reopened_database_is_the_same(database_url):
    store = await open_store(database_url)
    lives = await live(store, 50)
    await store.close()
    again = await open_store(database_url, migrate=False, create=False)
    verdict = await verify.verify(again)
    assert (verdict.problems, verdict.events) == ([], lives.total + 1)
    assert await triggers_by_job(again) == lives.moves
    assert JOB.name in verdict.rows
    await again.close()
