"""However a handler ends, its job becomes what the documentation says, its slot is free, and the next job is done.

The table in docs/how-to/recovery.md is the list of endings: each row is a test, and each ending has a row.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from keptwork import Context, Keptwork
from keptwork.errors import WorkerExhausted
from keptwork.jobs import queries
from keptwork.process.tree import descendants, signal_all
from keptwork.store import Event
from tests.process.survivors import NAME, assert_none, new_mark
from tests.support.command import SOURCE, environment
from tests.worker import odd_endings
from tests.worker.odd_endings import ASYNC, PLAIN, REAL, SOON
from tests.worker.scene import reaches, row, story, working

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "recovery.md"
TIMED = ("exceeds its timeout", "swallows its cancellation at its timeout")


class Wanted(NamedTuple):
    """A row of the table."""

    state: str
    reason: str
    attempts: int


def table() -> dict[str, Wanted]:
    section = PAGE.read_text().partition("## How a handler can end\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {
        ending: Wanted(state.strip("`"), reason.strip("`").replace("–", ""), int(attempt == "spent"))
        for ending, state, reason, attempt in rows[2:]
    }


TABLE = table()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("keptwork.workers.slot.END_SECONDS", 0.05)
    odd_endings.gate.clear()
    yield
    odd_endings.gate.set()


def test_every_ending_of_the_table_is_tested_and_every_tested_ending_is_in_the_table() -> None:
    assert TABLE.keys() == PLAIN.keys() | ASYNC.keys() | REAL.keys()


async def patiently(holds: Callable[[], Awaitable[bool]]) -> None:
    """A process takes its time on a busy machine."""
    async with asyncio.timeout(90):
        while not await holds():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.02)


def ended(events: list[Event]) -> Event:
    """The first move out of running."""
    return next(event for event in events if event.from_state == "running")


async def has_left(app: Keptwork, job: Any) -> bool:
    return any(event.from_state == "running" for event in await story(app, job))


async def insist(app: Keptwork, job: Any, wanted: Wanted) -> None:
    await patiently(partial(has_left, app, job))
    found, last = await row(app, job), ended(await story(app, job))
    assert (last.to_state, found["attempts"]) == (wanted.state, wanted.attempts)
    assert (last.reason or "").startswith(wanted.reason)
    assert wanted.reason or not last.reason


@pytest.mark.parametrize("way", ["task", "thread"])
@pytest.mark.parametrize("ending", PLAIN)
async def test_job_ends_as_documented_and_the_next_one_is_done(app: Keptwork, ending: str, way: str) -> None:
    async def in_task(ctx: Context) -> Any:
        return PLAIN[ending](ctx)

    odd = app.job(name="odd", backoff="1h", backoff_cap="1h")(in_task if way == "task" else PLAIN[ending])
    await check(app, odd, ending)


@pytest.mark.parametrize("ending", ASYNC)
async def test_async_job_ends_as_documented_and_the_next_one_is_done(app: Keptwork, ending: str) -> None:
    timeout = SOON if ending in TIMED else None
    odd = app.job(name="odd", backoff="1h", backoff_cap="1h", timeout=timeout)(ASYNC[ending])
    await check(app, odd, ending)
    odd_endings.gate.set()
    await asyncio.sleep(0.1)  # lets what was left running end on the loop it runs on


async def check(app: Keptwork, odd: Any, ending: str) -> None:
    @app.job()
    async def after(ctx: Context) -> None: ...

    async with working(app, concurrency=4, grace="50ms"):
        job = await odd.enqueue()
        if "stop" in ending:
            await reaches(app, job, "running")
        if "asked to stop" in ending:
            await queries.cancel(await app.open(), 1, job.id)
        if "its worker stops" not in ending:
            await insist(app, job, TABLE[ending])
            await reaches(app, await after.enqueue(), "succeeded")
    await insist(app, job, TABLE[ending])


# --- in processes of their own


@contextmanager
def process(url: str, folder: Path, *command: str, broken: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run a command; `broken` is code that takes a guard out of its process first."""
    mark = new_mark()
    env = environment(**{NAME: mark, "PYTHONPATH": f"{SOURCE}:{Path(__file__).parents[2]}"})
    program = f"{broken}\nfrom keptwork.cli.main import run\nrun()"
    argv = [sys.executable, "-c", program, *command, "--db", url, "--concurrency", "4"]
    made = subprocess.Popen(argv, cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()
        assert_none(mark)


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize("ending", REAL)
async def test_job_of_a_real_worker_ends_as_documented_and_the_next_one_is_done(
    app: Keptwork, tmp_path: Path, database_url: str, ending: str
) -> None:
    await app.open()
    twin = odd_endings.app.kinds
    declared = {
        name: app.job(name=name, **_rules(twin[name]))(twin[name].function) for name in (*REAL.values(), "after")
    }
    wanted, name = TABLE[ending], REAL[ending]
    with process(database_url, tmp_path, "supervise", "tests.worker.odd_endings:app", "--workers", "1") as supervisor:
        if name == "needs_thread":
            await insist(
                app, await declared["starts_threads"].enqueue(), TABLE["starts threads until it reaches the limit"]
            )
        job = await declared[name].enqueue()
        await patiently(partial(has_left, app, job))
        await succeeds(app, await declared["after"].enqueue())
        last = ended(await story(app, job))
        assert last.to_state == wanted.state
        assert (last.reason or "").startswith(wanted.reason)
        if "process" in wanted.reason:
            await succeeds(app, job)
            assert (await row(app, job))["result"] == "2", "the death has not cost an attempt"
        elif wanted.state == "queued" and name != "needs_thread":
            assert (await row(app, job))["attempts"] == wanted.attempts
        supervisor.send_signal(signal.SIGTERM)
        await asyncio.to_thread(supervisor.communicate, timeout=60)


def _rules(kind: Any) -> dict[str, Any]:
    return {"lease": f"{kind.lease_us // 1_000_000}s", "backoff": "1h", "backoff_cap": "1h"}


async def succeeds(app: Keptwork, made: Any) -> None:
    async def done() -> bool:
        return bool((await row(app, made))["state"] == "succeeded")

    await patiently(done)


DYING = {
    "exits": r"job_\S+ \(exits\) called os._exit\(0\): this worker and the jobs beside it end here",
    "stops_loop": "Event loop stopped before Future completed",
    "opens": "it has no file descriptor left",
}


@pytest.mark.acceptance
@pytest.mark.parametrize("name", DYING)
async def test_plain_worker_that_cannot_go_on_exits_non_zero_and_says_so(
    app: Keptwork, tmp_path: Path, database_url: str, name: str
) -> None:
    job = app.job(name=name)(odd_endings.app.kinds[name].function)
    await job.enqueue()
    with process(database_url, tmp_path, "work", "tests.worker.odd_endings:app") as worker:
        _, said = await asyncio.to_thread(worker.communicate, timeout=60)
    assert worker.returncode not in (0, None)
    assert re.search(DYING[name], said), said


# --- broken twins: the same checks must notice that a guard is missing


@pytest.mark.acceptance
async def test_check_notices_a_worker_that_waits_for_handlers_which_do_not_end(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keptwork.workers.slot.Slot.abandon", lambda self, said: None)
    odd = app.job(name="odd", timeout=SOON)(ASYNC[TIMED[1]])
    async with working(app, concurrency=4, grace="50ms"):
        job = await odd.enqueue()
        await reaches(app, job, "running")
        await asyncio.sleep(0.5)
        assert not await has_left(app, job), "the guard is not what works"
        odd_endings.gate.set()
        await reaches(app, job, "succeeded")


UNGUARDED = """
import contextlib
from keptwork.workers import process_exit
process_exit.guarded = lambda loop: contextlib.nullcontext()
process_exit.end_child = lambda made_by: None
from tests.worker.odd_endings import app
"""


@pytest.mark.acceptance
@pytest.mark.parametrize("guarded", [True, False])
async def test_forked_child_runs_on_only_where_the_guard_is_missing(
    app: Keptwork, tmp_path: Path, database_url: str, guarded: bool
) -> None:
    (tmp_path / "twin.py").write_text(UNGUARDED)
    job = app.job(name="forks")(odd_endings.app.kinds["forks"].function)
    made = await job.enqueue(sleeps=True)
    target = "tests.worker.odd_endings:app" if guarded else "twin:app"
    with process(database_url, tmp_path, "work", target) as worker:
        went_on = tmp_path / "child_went_on"

        async def seen() -> bool:
            return went_on.exists() or (await row(app, made))["state"] == "succeeded"

        await patiently(seen)
        assert went_on.exists() is not guarded
        signal_all([*descendants(worker.pid), worker.pid], signal.SIGKILL)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("ending", ["raises another `BaseException`", "raises `GeneratorExit`"])
async def test_base_exception_is_lost_as_a_reason_only_where_the_guard_is_missing(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, ending: str, guard: bool
) -> None:
    if not guard:
        monkeypatch.setattr("keptwork.workers.slot.BaseException", Exception, raising=False)

    async def raises(ctx: Context) -> Any:
        return PLAIN[ending](ctx)

    async with working(app, concurrency=4):
        job = await app.job(name="odd", backoff="1h", backoff_cap="1h")(raises).enqueue()
        await insist(app, job, TABLE[ending if guard else "raises `CancelledError`"])


@pytest.mark.parametrize("guard", [True, False])
async def test_worker_that_lost_half_its_slots_goes_on_only_where_the_guard_is_missing(
    app: Keptwork, monkeypatch: pytest.MonkeyPatch, guard: bool
) -> None:
    if not guard:
        monkeypatch.setattr("keptwork.workers.worker.Worker._stuck", lambda self: None)
    odd = app.job(name="odd", timeout=SOON, max_attempts=1)(ASYNC[TIMED[1]])
    work = asyncio.create_task(app.work(concurrency=4))
    made = await app.enqueue_many(odd, [{}] * 2)
    for job in made:
        await reaches(app, job, "dead_lettered")
    ended, _ = await asyncio.wait({work}, timeout=60 if guard else 0.5)
    assert bool(ended) is guard
    odd_endings.gate.set()
    app.stop()
    with pytest.raises(WorkerExhausted, match="2 handlers do not end") if guard else nullcontext():
        await work


# Each takes a guard out of a worker's process.
INTERRUPTIBLE = "from keptwork.workers import slot; slot.BaseException = Exception"
NEEDS_NO_DESCRIPTOR = "from keptwork.workers import heartbeat; heartbeat.no_descriptor_left = lambda: False"
NEEDS_NO_THREAD = "from keptwork.workers.worker import Worker; Worker._give_up_once = lambda self, what: None"
EXITS_AS_TOLD = (
    "import contextlib; from keptwork.workers import process_exit; process_exit.reported = contextlib.nullcontext"
)


class Death(NamedTuple):
    """Jobs, and the code with which a worker exits after them: with its guard and without it, None if it goes on. Where
    it exits as it should, it says these words."""

    broken: str
    jobs: dict[str, dict[str, str]]
    guarded: int | None
    unguarded: int | None
    words: str


DEATHS = {
    "raises `KeyboardInterrupt`": Death(
        INTERRUPTIBLE, {"in_a_task": {"how": "raises `KeyboardInterrupt`"}}, None, 130, "failed in attempt 1 of 4"
    ),
    "opens all file descriptors": Death(NEEDS_NO_DESCRIPTOR, {"opens": {}}, 4, None, "it has no file descriptor left"),
    "finds no room for its thread": Death(
        NEEDS_NO_THREAD, {"starts_threads": {}, "needs_thread": {}}, 4, None, "it cannot start a thread"
    ),
    "calls `os._exit`": Death(EXITS_AS_TOLD, {"exits": {}}, 1, 0, "called os._exit"),
}
GOES_ON_SECONDS = 2.0


@pytest.mark.acceptance
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("ending", DEATHS)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_worker_ends_otherwise_only_where_the_guard_is_missing(
    app: Keptwork, tmp_path: Path, database_url: str, ending: str, guard: bool
) -> None:
    death = DEATHS[ending]
    code = death.guarded if guard else death.unguarded
    target, *jobs = "tests.worker.odd_endings:app", *death.jobs
    with process(database_url, tmp_path, "work", target, broken="" if guard else death.broken) as worker:
        for name in jobs:
            declared: Any = app.job(name=name)(odd_endings.app.kinds[name].function)
            job = await declared.enqueue(**death.jobs[name])
            if name != "needs_thread" and (code is None or name != jobs[-1]):
                await patiently(partial(has_left, app, job))
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(worker.wait, GOES_ON_SECONDS if code is None else 60)
        found = worker.poll()
        worker.kill()
        _, said = await asyncio.to_thread(worker.communicate, timeout=60)
    assert found == code, said
    assert (death.words in said) is guard, said


SLOW_START = "from keptwork.workers import supervisor; supervisor.START_SECONDS = 600"
UNCLAIMED = """
from keptwork.jobs import outcome
async def nothing(*of): return 0
outcome.reclaim = nothing
"""
BLAMED = """
from keptwork.workers.supervisor import Supervisor
bury = Supervisor._bury
async def buried(*of): return await bury(*of) and False
Supervisor._bury = buried
"""


def until_started_again(said: IO[str]) -> str:
    lines = [""]
    while sum("is started as process" in line for line in lines) < 2:
        lines.append(said.readline())
    return "".join(lines)


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize(
    ("kind", "broken", "is_back", "is_blamed"),
    [
        ("exits", "", True, False),
        ("exits", UNCLAIMED, False, True),
        ("exits", BLAMED, True, True),
        ("opens", "", True, False),
        ("opens", "supervisor.WorkerExhausted = supervisor.NoWorkerStarts", True, True),
    ],
    ids=["exits", "exits-unclaimed", "exits-blamed", "opens", "opens-blamed"],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_job_is_back_and_the_next_worker_starts_at_once_unless_a_guard_is_missing(
    app: Keptwork, tmp_path: Path, database_url: str, kind: str, broken: str, is_back: bool, is_blamed: bool
) -> None:
    target, broken = "tests.worker.odd_endings:app", f"{SLOW_START}\n{broken}"
    declared: Any = app.job(name=kind, lease="10m", backoff="1h", backoff_cap="1h")(
        odd_endings.app.kinds[kind].function
    )
    job = await declared.enqueue()
    with process(database_url, tmp_path, "supervise", target, "--workers", "1", broken=broken) as supervisor:
        assert supervisor.stderr is not None
        said = await asyncio.to_thread(until_started_again, supervisor.stderr)
        assert await has_left(app, job) is is_back
        assert ("died at start" in said) is is_blamed
        supervisor.send_signal(signal.SIGTERM)
        await asyncio.to_thread(supervisor.communicate, timeout=60)
