"""`keptwork work`, run as a user would: a real process, a real application, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keptwork.app import Keptwork
from keptwork.core.lifecycles import JOB
from keptwork.errors import NotMigrated
from keptwork.store import NewJob
from keptwork.store.migrations import newest
from tests.store.conftest import hand_on
from tests.store.schemas import history, is_empty
from tests.support.command import run
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.acceptance

PROGRAM = """
import asyncio
from pathlib import Path
from typing import Any

from keptwork import Keptwork

app = Keptwork()

@app.job()
async def greet(ctx, name):
    return f"Hello {name}"

@app.job()
async def slow(ctx, seconds):
    Path("begun").touch()
    await asyncio.sleep(seconds)
    return "done"

other = 1
"""


SLOW_TO_OPEN = """
import asyncio
from pathlib import Path

from keptwork import Keptwork

class Slow(Keptwork):
    async def open(self):
        if not Path("opening").exists():
            Path("opening").touch()
            await asyncio.sleep(1)
        return await super().open()

app = Slow()
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "keptwork", "work", *arguments]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


async def enqueued(url: str, kind: str, **arguments: Any) -> int:
    app = Keptwork(url)
    declared = app.job(name=kind)(lambda ctx, **any: None)
    async with app:
        return (await declared.enqueue(**arguments)).key


async def stored(url: str, jobs: list[NewJob]) -> None:
    async with Keptwork(url) as app:
        await (await app.open()).enqueue(jobs)


async def job(url: str, key: int) -> dict[str, object]:
    async with Keptwork(url) as app:
        row = await (await app.open()).get(JOB, key, None)
    assert row is not None
    return row


def test_it_runs_what_is_due_and_says_how_much(folder: Path, database_url: str) -> None:
    key = asyncio.run(enqueued(database_url, "greet", name="Ada"))
    done = subprocess.run(
        command("shop:app", "--db", database_url, "--until-idle", "--json"),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"settled": 1}
    assert "serving default" in done.stderr
    row = asyncio.run(job(database_url, key))
    assert (row["state"], row["result"]) == ("succeeded", '"Hello Ada"')


def test_it_says_what_became_of_jobs_that_did_not_succeed(folder: Path, sqlite_url: str) -> None:
    (folder / "shop.py").write_text(PROGRAM + "\n@app.job()\nasync def broken(ctx): raise OSError('no route')\n")
    asyncio.run(enqueued(sqlite_url, "greet", name="Ada"))
    jobs = [NewJob("broken", max_attempts=attempts) for attempts in (1, 2)]
    asyncio.run(stored(sqlite_url, jobs))
    done = subprocess.run(
        command("shop:app", "--db", sqlite_url, "--until-idle"), cwd=folder, capture_output=True, text=True, check=True
    )
    told = "\n".join(text for text in done.stderr.splitlines() if "(broken)" in text)
    assert re.search(
        r"Z WARNING job_\S+ \(broken\) is a dead letter \(exhausted_retries\): OSError: no route$", told, re.M
    )
    assert re.search(
        r"Z INFO job_\S+ \(broken\) failed in attempt 1 of 2, again in 0.\d s: OSError: no route$", told, re.M
    )
    assert "greet" not in done.stderr.partition("ends it.")[2]


def test_without_an_application_it_carries_out_what_is_left_of_flows(folder: Path, sqlite_url: str) -> None:
    (folder / "numbers_of.py").write_text("def double(n): return n * 2")
    steps = [{"id": "a", "command": ["echo", "4"]}, {"id": "b", "call": "numbers_of:double", "with": {"n": 4}}]

    async def flow(outputs: bool) -> dict[str, Any]:
        """The key makes one when it is first asked for; its outputs are waited for."""
        async with Keptwork(sqlite_url) as app:
            handle = await app.start_flow({"name": "f", "steps": steps}, key="one")
            return await handle.outputs() if outputs else {}

    asyncio.run(flow(outputs=False))
    done = subprocess.run(
        command("--db", sqlite_url, "--until-idle"), cwd=folder, capture_output=True, text=True, check=True
    )
    assert "steps of flows: serving default" in done.stderr
    assert done.stdout == "2 jobs settled.\n"
    found = asyncio.run(flow(outputs=True))
    assert (found["a"]["stdout"], found["b"]) == ("4\n", {"value": 8})


def test_on_a_terminal_a_line_keeps_up_with_the_work(folder: Path, sqlite_url: str) -> None:
    for _ in range(3):
        asyncio.run(enqueued(sqlite_url, "slow", seconds=0.4))
    main, terminal = pty.openpty()
    worker = subprocess.Popen(
        command("shop:app", "--db", sqlite_url, "--until-idle", "--concurrency", "1"), cwd=folder, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal says when nobody is left to write to it
        while chunk := os.read(main, 4096):
            shown += chunk
    os.close(main)
    assert worker.wait(60) == 0
    assert b"1 of 1 at work \xc2\xb7 1 succeeded" in shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_job_end(folder: Path, sqlite_url: str, number: signal.Signals) -> None:
    key = asyncio.run(enqueued(sqlite_url, "slow", seconds=0.5))
    worker = subprocess.Popen(command("shop:app", "--db", sqlite_url), cwd=folder, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline, "the job never began"
        time.sleep(0.01)
    os.kill(worker.pid, number)
    out, _ = worker.communicate(timeout=20)
    assert (worker.returncode, out) == (0, "1 job settled.\n")
    assert asyncio.run(job(sqlite_url, key))["state"] == "succeeded"


def test_a_signal_is_heard_while_the_database_is_being_opened(folder: Path, sqlite_copy: str) -> None:
    """It used to be forgotten when the worker began, which then went on until it was killed."""
    (folder / "shop.py").write_text(SLOW_TO_OPEN)
    worker = subprocess.Popen(command("shop:app", "--db", sqlite_copy), cwd=folder, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (folder / "opening").exists():
        assert time.monotonic() < deadline, "it never opened its database"
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGTERM)
    try:
        out, _ = worker.communicate(timeout=20)
    finally:
        worker.kill()
    assert (worker.returncode, out) == (0, "0 jobs settled.\n")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("shop", "'shop' names no application; write MODULE:APP, as in shop.jobs:app"),
        ("nowhere:app", "there is no module 'nowhere' to import for nowhere:app, seen from here"),
        ("shop:other", "shop has no application 'other'; it should say: other = Keptwork()"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_clear_line(folder: Path, target: str, says: str) -> None:
    done = subprocess.run(command(target), cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (2, f"keptwork: {says}\n", "")


# --- a database that is missing or outdated


def outdated(url: str) -> None:
    """Make the database look like one of the release before."""
    hand = hand_on(url)
    hand.run(f"DELETE FROM keptwork_migrations WHERE number = {newest()}")
    hand.close()


def tables(url: str) -> list[str]:
    hand = hand_on(url)
    found = [*history(hand)] if not is_empty(hand) else []
    hand.close()
    return [name for _, name in found]


START = {"work": ("work", "shop:app", "--until-idle"), "supervise": ("supervise", "shop:app", "--workers", "2")}


@pytest.mark.parametrize("start", START)
def test_a_worker_refuses_a_missing_database_and_creates_nothing(
    folder: Path, sqlite_url: str, postgres_url: str, start: str
) -> None:
    for url, says in ((sqlite_url, "There is no database"), (postgres_url, "has schema 0")):
        done = run(*START[start], "--db", url, cwd=folder)
        assert done.returncode == 2
        last = done.stderr.splitlines()[-1]
        assert says in last
        assert "keptwork migrate" in last
        assert done.stdout == ""
    assert not (folder / "keptwork.db").exists()
    assert tables(postgres_url) == []


@pytest.mark.parametrize("start", START)
def test_a_worker_refuses_a_mistyped_database_name_without_retry(
    folder: Path, postgres_server: PostgresServer, start: str
) -> None:
    done = run(*START[start], "--db", postgres_server.url("not_there"), cwd=folder)
    assert (done.returncode, done.stderr.count("is started")) == (2, 2 * (start == "supervise"))
    assert "createdb not_there" in done.stderr.splitlines()[-1]


def test_a_worker_refuses_an_older_schema_and_leaves_it_as_it_is(folder: Path, database_url: str) -> None:
    outdated(database_url)
    before = tables(database_url)
    for start in START.values():
        done = run(*start, "--db", database_url, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"has schema {newest() - 1}, this Keptwork needs {newest()}; run: keptwork migrate" in done.stderr
    assert tables(database_url) == before


def test_a_worker_with_migrate_creates_the_database_it_works_on(
    folder: Path, sqlite_url: str, postgres_url: str
) -> None:
    for url in (sqlite_url, postgres_url):
        done = run("work", "shop:app", "--until-idle", "--migrate", "--db", url, cwd=folder)
        assert (done.returncode, done.stdout) == (0, "0 jobs settled.\n")
        assert len(tables(url)) == newest()


def test_a_worker_without_a_database_refuses_migrate(folder: Path) -> None:
    done = run("work", "shop:app", "--migrate", "--server", "http://127.0.0.1:1", cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--migrate needs a database" in done.stderr


def test_a_program_refuses_an_older_postgres_schema_and_names_the_command(postgres_copy: str) -> None:
    outdated(postgres_copy)
    with pytest.raises(NotMigrated, match="run: keptwork migrate"):
        asyncio.run(enqueued(postgres_copy, "greet", name="Ada"))
    assert len(tables(postgres_copy)) == newest() - 1


def test_adding_a_schedule_creates_the_database(folder: Path) -> None:
    done = run("schedules", "add", "nightly", "--kind", "greet", "--every", "1d", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(tables(f"sqlite:///{folder}/keptwork.db")) == newest()
