"""`keptwork events` as its users run it: a page, the next page, and the log as it grows."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.store import NewJob, open_store
from keptwork.store.contract.records import EVENT_FIELDS
from tests.support.command import run, start
from tests.support.lives import live


async def _fill(url: str, jobs: int) -> dict[int, list[str]]:
    store = await open_store(url)
    lives = await live(store, jobs)
    await store.close()
    return lives.moves


async def _enqueue(url: str, count: int, correlation_id: str | None = None) -> list[int]:
    store = await open_store(url)
    keys = await store.enqueue([NewJob("late", correlation_id=correlation_id) for _ in range(count)])
    await store.close()
    return keys


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, list[str]]]:
    url = f"sqlite:///{tmp_path_factory.mktemp('filled')}/keptwork.db"
    return url, asyncio.run(_fill(url, 40))


def listed(url: str, *options: str) -> dict[str, Any]:
    done = run("events", "list", "--json", "--db", url, *options)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_newest_come_first(filled):
    url, moves = filled
    found = listed(url, "--limit", "10")
    total = sum(map(len, moves.values())) + 1
    assert [event["id"] for event in found["events"]] == list(range(total, total - 10, -1))
    assert found["next"] == found["events"][-1]["cursor"]
    assert tuple(found["events"][0]) == (*EVENT_FIELDS, "cursor")


def test_page_after_page_there_is_every_event_once(filled):
    url, moves = filled
    for order in ([], ["--oldest-first"]):
        seen: list[int] = []
        page = listed(url, "--limit", "60", *order)
        while True:
            seen += [event["id"] for event in page["events"]]
            if not page["next"]:
                break
            page = listed(url, "--limit", "60", "--after", page["next"], *order)
        wanted = list(range(1, sum(map(len, moves.values())) + 2))
        assert seen == (wanted if order else wanted[::-1])


def test_one_entitys_story(filled):
    url, moves = filled
    key, made = max(moves.items(), key=lambda item: len(item[1]))
    found = listed(url, "--id", public_id("job", key), "--oldest-first", "--limit", "1000")["events"]
    assert [event["trigger"] for event in found] == made
    assert {event["entity_id"] for event in found} == {public_id("job", key)}


def test_filters_narrow_it_down(filled):
    url, moves = filled
    cancelled = sum(made[-1] == "cancel" for made in moves.values())
    assert len(listed(url, "--type", "job_cancelled")["events"]) == cancelled > 0
    assert [event["type"] for event in listed(url, "--entity", "worker")["events"]] == ["worker_register"]
    assert listed(url, "--correlation", "nothing") == {"events": [], "next": None}
    assert listed(url, "--since", "1h", "--limit", "10000")["events"] != []
    assert listed(url, "--until", "1h")["events"] == []
    assert listed(url, "--since", "2124-01-01T00:00:00Z")["events"] == []
    assert listed(url, "--since", "2024-01-01", "--until", "2025-01-01T00:00:00+02:00")["events"] == []


def test_people_see_whole_ids_at_any_width(filled):
    url, _ = filled
    newest = listed(url, "--limit", "1")["events"][0]
    for columns in ("80", "120", "200"):
        done = run("events", "list", "--limit", "1", "--db", url, COLUMNS=columns)
        assert newest["entity_id"] in done.stdout
        assert newest["type"] in done.stdout
        assert "…" not in done.stdout
        assert all(len(line) <= int(columns) for line in done.stdout.splitlines())
        assert done.stderr == f"There are more; go on with: --after {newest['cursor']}\n"


def test_no_events_are_said_to_be_none(tmp_path):
    url = f"sqlite:///{tmp_path}/keptwork.db"
    assert run("migrate", "--db", url).returncode == 0
    assert run("events", "list", "--db", url).stdout == "No events.\n"


# --- follow -------------------------------------------------------------------------------------------------


@contextmanager
def following(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = start("events", "follow", "--json", "--db", url, *options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


@pytest.mark.acceptance
def test_following_from_the_start_sees_what_is_there_and_what_comes(database_url):
    moves = asyncio.run(_fill(database_url, 10))
    there = sum(map(len, moves.values())) + 1
    with following(database_url, "--from-start") as process:
        seen = lines(process, there)
        keys = asyncio.run(_enqueue(database_url, 5))
        late = lines(process, 5)
    assert len({(event["entity_id"], event["seq"]) for event in seen + late}) == there + 5
    assert [event["entity_id"] for event in late] == [public_id("job", key) for key in keys]


@pytest.mark.acceptance
def test_following_goes_on_after_a_cursor_and_filters(database_url):
    asyncio.run(_enqueue(database_url, 3, "mine"))
    with following(database_url, "--from-start") as process:
        cursor = lines(process, 3)[1]["cursor"]
    asyncio.run(_enqueue(database_url, 2, "other"))
    with following(database_url, "--after", cursor, "--correlation", "mine") as process:
        (third,) = lines(process, 1)
        asyncio.run(_enqueue(database_url, 1, "mine"))
        (fourth,) = lines(process, 1)
    assert [third["correlation_id"], fourth["correlation_id"]] == ["mine", "mine"]
    assert third["entity_id"] != fourth["entity_id"]


@pytest.mark.acceptance
def test_following_begins_now_and_ends_quietly_when_interrupted(sqlite_url):
    """What was there before is not shown; there is no telling from outside when it looks, so work goes on till then."""
    old = asyncio.run(_enqueue(sqlite_url, 3))
    with following(sqlite_url) as process:
        seen: list[str] = []
        reader = _lines_into(process, seen)
        while not seen:
            asyncio.run(_enqueue(sqlite_url, 1))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        reader.join(60)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    shown = {json.loads(line)["entity_id"] for line in seen}
    assert shown.isdisjoint(public_id(JOB.prefix, key) for key in old)


def _lines_into(process: subprocess.Popen[str], seen: list[str]) -> threading.Thread:
    assert process.stdout is not None
    lines_to_come = iter(process.stdout.readline, "")
    reader = threading.Thread(target=lambda: seen.extend(lines_to_come))
    reader.start()
    return reader


@pytest.mark.acceptance
def test_a_reader_that_has_enough_ends_it_even_when_nothing_more_comes(filled):
    url, _ = filled
    with following(url, "--from-start", "--type", "worker_register") as process:
        lines(process, 1)
        assert process.stdout is not None
        process.stdout.close()
        began = time.monotonic()
        assert process.wait(60) == 1
        assert time.monotonic() - began < 10
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stdout = None


@pytest.mark.acceptance
def test_people_get_one_line_each(filled):
    url, _ = filled
    process = start("events", "follow", "--from-start", "--db", url)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.kill()
    process.communicate()
    assert " worker_register " in first
    assert "w_" in first


def test_the_log_can_be_read_through_a_path_with_spaces(tmp_path: Path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    url = f"sqlite:///{folder}/keptwork.db"
    asyncio.run(_enqueue(url, 1))
    assert len(listed(url)["events"]) == 1
