"""`keptwork top` as its users run it: once, for a log or a program, and on a terminal of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import termios
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import apsw
import pytest
from rich.console import Console

from keptwork.cli.main import _outcome
from keptwork.cli.top import drawn
from keptwork.diagnostics import overview
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.jobs import limits
from keptwork.store import NewJob, Store, open_store
from tests.cli.flow_stage import Stage, Terminal
from tests.conformance.stage import claim, worker
from tests.http.flow_stage import GRAPH
from tests.support.command import run

T = TypeVar("T")

IN, OUT = "\x1b[?1049h", "\x1b[?1049l"
"""How a terminal is told to show another screen, and the first one again."""

COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def do(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def done() -> T:
        store = await open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(done())


async def scene(store: Store) -> None:
    """A job that runs and many that wait, a flow that asks, and a queue that is paused."""
    owner = await worker(store, "RUNNING", name="ann", serves='{"queues": ["work"], "concurrency": 4}')
    await store.enqueue([NewJob("index", queue="work")])
    await claim(store, owner, 1, "work", start=True, lease_us=3_600_000_000)
    await store.enqueue([NewJob("send", queue="emails")] * 1_234)
    await limits.pause(store, 1, "emails")
    await flows.start(store, Flow.model_validate({**GRAPH, "kind": "workstream"}))


@pytest.fixture
def terminal(here: Stage) -> Callable[..., Terminal]:
    """Opens the command on a terminal, over a database with something in it."""
    do(here.url, scene)
    here.command = "top"
    return lambda *arguments, **env: Terminal(here, *arguments, **{"COLUMNS": "100", "LINES": "40", **env})


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_it_fits_on_a_screen_of_any_width(sqlite_url: str, columns: int) -> None:
    async def drawing(store: Store) -> str:
        await scene(store)
        console = Console(file=io.StringIO(), width=columns)
        console.print(drawn(await overview.read(store, 1), "default", columns))
        return cast(io.StringIO, console.file).getvalue()

    said = do(sqlite_url, drawing)
    assert all(len(line) <= columns for line in said.splitlines())
    assert said.startswith("1 running · 1,234 queued · 1 worker")
    assert "Needs somebody: 1 open approval · 1 paused queue" in " ".join(said.split())
    for word in ("graph", "index", "emails", "work", "ann"):
        assert word in said


def test_where_there_is_no_terminal_it_shows_one_screen_and_ends(sqlite_url: str) -> None:
    do(sqlite_url, scene)
    done = run("top", "--db", sqlite_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("1 running · 1,234 queued · 1 worker")


def test_as_json_it_tells_the_same_and_it_only_reads(database_url: str) -> None:
    do(database_url, scene)
    before = do(database_url, lambda store: store.event_count())
    done = run("top", "--once", "--json", "--db", database_url)
    found = json.loads(done.stdout)
    assert found["needs"]["approvals"] == found["needs"]["paused_queues"] == 1
    assert found["jobs"] == {"queued": 1_234, "running": 1}
    assert [queue["name"] for queue in found["queues"]] == ["emails", "work"]
    assert (found["flows"][0]["name"], found["flows"][0]["done"], found["flows"][0]["total"]) == ("graph", 0, 2)
    assert (found["running"][0]["kind"], found["workers"][0]["jobs"]) == ("index", 1)
    assert found["throughput"]["last_minute"]["enqueued"] == 1_235
    assert do(database_url, lambda store: store.event_count()) == before


@pytest.mark.parametrize(("arguments", "code"), [(("--tenant", "nobody"), 1), (("--every", "0"), 2)])
def test_what_cannot_be_is_one_clear_line(
    sqlite_url: str, arguments: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    do(sqlite_url, lambda store: store.now())
    assert _outcome(["top", *arguments, "--db", sqlite_url]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("keptwork: ")


@pytest.mark.acceptance
def test_on_a_terminal_it_keeps_up_until_q_is_typed_and_leaves_the_terminal_as_it_was(
    here: Stage, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("--every", "0.1")
    before = termios.tcgetattr(shown.ours)
    shown.until("1,234 queued")
    assert IN in shown.written
    assert COLOURS.search(shown.written)

    # While the database fails, the last screen stays with the reason.
    hand = apsw.Connection(here.url.removeprefix("sqlite:///"))
    hand.execute("ALTER TABLE workers RENAME TO workers_gone")
    shown.until("What you see is old: ")
    hand.execute("ALTER TABLE workers_gone RENAME TO workers")
    hand.close()

    do(here.url, lambda store: store.enqueue([NewJob("newcomer", queue="fresh")]))
    shown.until("fresh")
    shown.type("xyz")
    shown.type("q")
    assert shown.ended() == 0
    assert OUT in shown.written
    assert termios.tcgetattr(shown.ours) == before


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Terminal], number: signal.Signals
) -> None:
    shown = terminal("--every", "3600")
    shown.until("1,234 queued")
    os.kill(shown.process.pid, number)
    assert shown.ended() == 0
    assert OUT in shown.written


@pytest.mark.acceptance
def test_on_a_low_terminal_without_colours_what_does_not_fit_is_counted(terminal: Callable[..., Terminal]) -> None:
    shown = terminal("--every", "3600", LINES="14", NO_COLOR="1")
    shown.until("Queues, 1 of 2")
    shown.type("q")
    assert shown.ended() == 0
    picture = shown.written.partition(IN)[2].partition(OUT)[0]
    assert picture.count("\n") <= 14
    assert not COLOURS.search(shown.written)
