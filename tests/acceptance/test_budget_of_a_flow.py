"""A flow of many agents, many workers, and a budget that is too small for all: what was paid never passes it, by the
books of the provider itself; the flow waits, and ends when it is given more. The twin that looks without a lock is with
the spenders of `test_budgets`: calls to a model leave it too little chance here. The twin of this one forgets what was
promised to the calls that are under way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from keptwork import Keptwork
from keptwork.agents import budget_caps
from keptwork.agents.budget_rules import cost_micros
from keptwork.flows import commands as flows
from keptwork.settings import Config, read
from keptwork.store import JobFilter
from tests.acceptance.chaos import until
from tests.support import postgres_server
from tests.support.llm_acts import Call
from tests.support.llm_server import LlmServer, Say

PROGRAM = "tests.acceptance.agent_crowd"
PRICES = 'haiku = "m"\nmax_tokens = 80\n[models.prices."m"]\ninput_per_million_usd = 1\noutput_per_million_usd = 100'
REPLY = "It is mended. " * 20


class Stand(NamedTuple):
    """How a flow and its money stand, by our books."""

    held: int
    unfinished: int
    spent: int
    reserved: int
    wanted: int
    state: str


@contextmanager
def crowd(config: Path, url: str, workers: int, twin: str) -> Iterator[None]:
    command = [sys.executable, "-m", PROGRAM, str(config), url, str(workers), *([twin] if twin else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"all\n"
        try:
            yield
        finally:
            process.kill()


async def started(url: str, agents: int, cap: float) -> str:
    steps = [{"id": f"ask{n}", "agent": f"Fix the typo in file {n:04}", "tier": "haiku"} for n in range(agents)]
    async with Keptwork(url) as app:
        return (await app.start_flow({"name": "many", "budget_usd": cap, "steps": steps})).id


async def stand(url: str, flow: str) -> Stand:
    async with Keptwork(url) as app:
        store = await app.open()
        waiting = [job for job in await store.jobs(JobFilter(), limit=10_000) if job["completed_at"] is None]
        found = await store.budgets(app.tenant_id, scope="flow")
        budget = found[0].budget if found else None
        ref = await flows.found(store, flow, app.tenant_id)
        (row,) = await store.rows(ref.kind.flow, [ref.id], ("state",))
        held = sum(job["held_by"] == f"budget:flow:{flow}" for job in waiting)
        money = (budget.spent_micros, budget.reserved_micros, budget.wanted_micros or 0) if budget else (0, 0, 0)
        return Stand(held, len(waiting), *money, row["state"])


async def raised(url: str, flow: str) -> None:
    async with Keptwork(url) as app:
        await budget_caps.set_cap(await app.open(), app.tenant_id, flow, 100_000_000, actor="ann")


def said(call: Call) -> Say:
    """After a while, as models do, so that many calls are under way at once."""
    time.sleep(0.05)
    return Say(REPLY)


def billed(server: LlmServer, config: Config) -> int:
    return sum(cost_micros("anthropic", bill.model, bill.usage, config) for bill in server.bills)


def check(url: str, folder: Path, workers: int, agents: int, cap_micros: int, twin: str = "") -> None:
    """The cap lies in the middle of what all would cost."""
    began = time.monotonic()
    with LlmServer(said) as server:
        file = folder / "keptwork.toml"
        file.write_text(server.settings(more=PRICES))
        config, flow = read(file), asyncio.run(started(url, agents, cap_micros / 1_000_000))
        with crowd(file, url, workers, twin):

            def all_held() -> bool:
                now = asyncio.run(stand(url, flow))
                full = now.spent + now.wanted > cap_micros and not now.reserved  # all calls want the same
                return full and now.held == now.unfinished

            waits = until(all_held, 60 + agents)
            paid = billed(server, config)
            paused = asyncio.run(stand(url, flow))
            assert paid <= cap_micros, "the cap was passed"
            assert waits, paused
            assert (paused.spent, paused.reserved) == (paid, 0)
            asyncio.run(raised(url, flow))
            assert until(lambda: asyncio.run(stand(url, flow)).state == "S_SUCCESS", 60 + agents)
        now, calls = asyncio.run(stand(url, flow)), len(server.calls)
        print(
            f"\n{urlsplit(url).scheme}: {workers} workers, {agents} agents, {paid} micro-USD of {cap_micros} paid when "
            f"{paused.held} were held, {now.spent} in the end, {calls} calls, {time.monotonic() - began:.0f} s"
        )
        assert calls == agents
        assert now.spent == billed(server, config)


@pytest.mark.timeout(120)
def test_four_workers_never_pass_the_budget_of_a_flow_which_ends_when_it_is_raised(
    database_url: str, tmp_path: Path
) -> None:
    check(database_url, tmp_path, 4, 24, 100_000)


@pytest.mark.timeout(120)
def test_workers_that_forget_what_is_promised_pass_the_budget_and_are_caught(database_url: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the cap was passed"):
        check(database_url, tmp_path, 4, 24, 100_000, "no-promises")


@contextmanager
def roomy_server() -> Iterator[str]:
    """Each worker has several connections."""
    with postgres_server.start(settings={"max_connections": "800"}) as server:
        yield server.create_database()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_sixty_four_workers_on_one_file_never_pass_the_budget_of_a_flow(sqlite_url: str, tmp_path: Path) -> None:
    check(sqlite_url, tmp_path, 64, 300, 1_000_000)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_sixty_four_workers_on_a_server_never_pass_the_budget_of_a_flow(tmp_path: Path) -> None:
    with roomy_server() as url:
        check(url, tmp_path, 64, 300, 1_000_000)
