"""`keptwork audit` as its users run it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from keptwork.store import open_store
from keptwork.store.contract.records import EVENT_FIELDS
from tests.cli.refusals import refused
from tests.support.command import environment, run
from tests.support.lives import live


async def _fill(url: str) -> int:
    store = await open_store(url)
    lives = await live(store, 30)
    await store.close()
    return lives.total + 1


@pytest.fixture
def filled(sqlite_url: str) -> tuple[str, int]:
    return sqlite_url, asyncio.run(_fill(sqlite_url))


def test_a_clean_database_exits_with_0(filled):
    url, events = filled
    done = run("audit", "verify", "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{events:,} events of 31 entities replayed" in done.stdout
    assert "rows: 30 job, 1 worker." in done.stdout
    assert "Clean: " in done.stdout


def test_a_clean_postgres_database_exits_with_0(postgres_url):
    events = asyncio.run(_fill(postgres_url))
    found = json.loads(run("audit", "verify", "--json", "--db", postgres_url).stdout)
    assert (found["clean"], found["events"], found["problems"]) == (True, events, [])


def test_problems_are_listed_and_exit_with_1(filled):
    url, _ = filled
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.execute("DROP TRIGGER keptwork_job_moves")
    db.execute("UPDATE jobs SET state = 'queued', lease_until = NULL WHERE state = 'succeeded'")
    wrong = db.changes()
    db.close()
    done = run("audit", "verify", "--db", url)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("state is queued, by its events succeeded") == wrong > 1
    assert "the guard keptwork_job_moves is missing" in done.stdout
    assert f"NOT clean: {wrong + 1} problems." in done.stdout
    assert "keptwork migrate --guards" in done.stdout
    found = json.loads(run("audit", "verify", "--json", "--db", url).stdout)
    assert (found["clean"], found["problem_count"]) == (False, wrong + 1)
    assert set(found["problems"][0]) == {"entity", "what", "where"}
    restored = run("migrate", "--guards", "--db", url)
    assert restored.stdout.splitlines()[1:] == ["Put back: keptwork_job_moves"]
    assert json.loads(run("audit", "verify", "--json", "--db", url).stdout)["problem_count"] == wrong
    refused(run("migrate", "--guards", "--dry-run", "--db", url), 2, "--guards changes the database")


def test_a_seal_is_told_and_kept_elsewhere_tells_whether_the_log_was_cut(filled):
    url, events = filled
    done = run("audit", "seal", "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{events:,} events are sealed now, {events:,} in all.\nSeal 1: " in done.stdout
    hash = done.stdout.split()[-1]
    assert run("audit", "seal", "--db", url).stdout.startswith("Nothing was left to seal: ")
    done = run("audit", "verify", "--against", hash, "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{events:,} of the events are sealed, by 1 seal.\nClean: " in done.stdout
    done = run("audit", "verify", "--against", hash[::-1], "--json", "--db", url)
    assert done.returncode == 1
    assert json.loads(done.stdout)["sealed"] == {"seals": 1, "events": events, "hash": hash}


def test_an_empty_log_has_nothing_to_seal(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert run("audit", "seal", "--db", sqlite_url).stdout == "There are no events to seal.\n"


def test_a_file_holds_every_event_as_a_line_of_json(filled, tmp_path):
    url, events = filled
    target = tmp_path / "log.jsonl"
    done = run("audit", "export", str(target), "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{events} events are in {target}.")
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == events
    assert all(tuple(line) == EVENT_FIELDS for line in lines)
    assert lines[0]["ts"].endswith("Z")
    assert len(lines[0]["ts"]) == len("2026-11-15T17:10:20.123456Z")
    told = json.loads(run("audit", "export", str(target), "--json", "--db", url).stdout)
    assert told == {"file": str(target), "events": events, "left": 0, "cursor": str(events)}


def test_without_a_file_the_events_are_the_output(filled):
    url, events = filled
    for extra in ([], ["-"], ["--json"]):
        done = run("audit", "export", *extra, "--db", url)
        assert (done.returncode, done.stderr) == (0, "")
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == list(range(1, events + 1))


def test_an_earlier_file_is_replaced_only_by_a_complete_one(filled, tmp_path):
    url, _ = filled
    target = tmp_path / "log.jsonl"
    target.write_text("earlier")
    assert run("audit", "export", str(target), "--after", "nonsense", "--db", url).returncode == 2
    assert target.read_text() == "earlier"
    assert run("audit", "export", str(target), "--db", url).returncode == 0
    assert target.read_text() != "earlier"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_device_is_written_to_and_stays_a_device(filled, tmp_path):
    """Renaming a finished file over it would replace it."""
    url, events = filled
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert run("audit", "export", str(pipe), "--db", url).returncode == 0
    output, _ = reader.communicate(timeout=20)
    assert len(output.splitlines()) == events
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert run("audit", "export", "/dev/null", "--db", url).returncode == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [("verify",), ("export", "/dev/null")], ids=" ".join)
def test_a_terminal_sees_progress_and_a_pipe_does_not(command, filled):
    url, _ = filled
    argv = [sys.executable, "-m", "keptwork", "audit", *command, "--db", url]
    leader, follower = pty.openpty()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=follower, env=environment(TERM="xterm"), timeout=60)
    os.close(follower)
    assert done.returncode == 0
    assert b"ing" in os.read(leader, 10_000)
    os.close(leader)
    assert run("audit", *command, "--db", url).stderr == ""
