"""`keptwork queues`: list, pause, resume, and limit queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.cli.jobs import WIDE_ENOUGH, state_name
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.jobs import limits
from keptwork.jobs import limits as service
from keptwork.jobs.concurrency import Throttle

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.jobs.limits import Limit
    from keptwork.store.contract.records import QueueSummary


app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the queue.")]


@app.command("list")
def list_(tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List queues: jobs by state, the wait of the oldest due job, and pauses."""

    async def read() -> tuple[list[QueueSummary], int]:
        async with opened(db) as store:
            return await service.list_queues(store, await store.tenant(tenant)), await store.now()

    queues, now = asyncio.run(read())
    screen.emit(
        {"queues": [service.queue_json(queue) for queue in queues]},
        lambda: table(queues, now) if queues else "No queues: nothing was ever enqueued.",
        as_json,
    )


@app.command()
def pause(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Pause a queue. Jobs can be enqueued and wait; running jobs continue."""
    before = asyncio.run(_change(service.pause, name, tenant, db))
    said = f"{name} was paused already." if before.paused_at is not None else f"{name} is paused."
    if not before.jobs:
        said += " It has no jobs."
    screen.emit({"name": name, "paused": True, "was_paused": before.paused_at is not None}, lambda: said, as_json)


@app.command()
def resume(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Resume a paused queue."""
    before = asyncio.run(_change(service.resume, name, tenant, db))
    said = f"{name} was not paused." if before.paused_at is None else f"{name} is served again."
    screen.emit({"name": name, "paused": False, "was_paused": before.paused_at is not None}, lambda: said, as_json)


@app.command()
def limit(
    name: Name,
    most: Annotated[
        int | None, typer.Option("--most", metavar="N", help="Maximum concurrent jobs across all workers.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Maximum start rate, such as 100/min.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limit.")] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Limit how many jobs of a queue run concurrently and how fast they start, for all tenants together.

    Running jobs continue.
    """
    throttle = Throttle.of(most, rate)
    if none == (throttle is not None):
        raise BadInput(what="say --most or --rate, or --none alone, as in: keptwork queues limit emails --most 10")
    asyncio.run(_limit(name, throttle, db))
    said = f"{name} has no limit." if throttle is None else f"{name} is limited: keptwork limits list shows it."
    screen.emit({"name": name, "most": most, "rate": rate}, lambda: said, as_json)


async def _limit(name: str, throttle: Throttle | None, db: str | None) -> None:
    async with opened(db) as store:
        await limits.limit_queue(store, name, throttle)


async def _change(change: Any, name: str, tenant: str, db: str | None) -> QueueSummary:
    async with opened(db) as store:
        before: QueueSummary = await change(store, await store.tenant(tenant), name)
        return before


def table(queues: list[QueueSummary], now: int) -> RenderableType:
    """Return queues as a table, which `keptwork stats` also shows."""
    states = [state.name for state in JOB.states]
    if screen.stdout().width < WIDE_ENOUGH:
        return _narrow_table(queues, states, now)
    table = screen.table("queue", *map(state_name, states), "oldest due", "")
    for column in table.columns[1 : len(states) + 1]:
        column.justify = "right"
    for queue in queues:
        counts = (f"{queue.jobs[state]:,}" if state in queue.jobs else "–" for state in states)
        table.add_row(queue.name, *counts, _waiting(queue, now) or "–", _paused(queue, now))
    return table


def _narrow_table(queues: list[QueueSummary], states: list[str], now: int) -> RenderableType:
    table = screen.table("queue", "jobs", "")
    for queue in queues:
        counts = [f"{queue.jobs[state]:,} {state_name(state)}" for state in states if state in queue.jobs]
        notes = "\n".join(filter(None, (_waiting(queue, now), _paused(queue, now))))
        table.add_row(queue.name, ", ".join(counts) or "–", notes)
    return table


def _waiting(queue: QueueSummary, now: int) -> str:
    return "" if queue.oldest_due is None else f"waiting {screen.span(now - queue.oldest_due)}"


def _paused(queue: QueueSummary, now: int) -> str:
    return "" if queue.paused_at is None else f"paused {screen.ago(queue.paused_at, now)}"


# `keptwork limits`: show the limits of jobs and queues, and the jobs that wait for them.


limits_app = typer.Typer()


@limits_app.callback()
def limits_group() -> None:
    """Show the limits of jobs and queues, and the jobs that wait for them."""


@limits_app.command("list")
def list_limits(tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List limits: maximum and rate, running and waiting jobs, and when the next job can start."""

    async def read() -> tuple[list[Limit], int]:
        async with opened(db) as store:
            return await service.listing(store, await store.tenant(tenant)), await store.now()

    found, now = asyncio.run(read())
    screen.emit(
        {"limits": [service.as_json(limit) for limit in found]},
        lambda: limits_table(found, now) if found else "No limits: none was declared.",
        as_json,
    )


def limits_table(found: list[Limit], now: int) -> RenderableType:
    """Return limits as a table."""
    table = screen.table("key", "most", "rate", "running", "waiting", "next")
    for column in table.columns[1:5]:
        column.justify = "right"
    for limit in found:
        most = "–" if limit.rule.most is None else f"{limit.rule.most:,}"
        table.add_row(limit.key.key, most, _rate(limit), f"{limit.running:,}", f"{limit.waiting:,}", _next(limit, now))
    return table


def _rate(limit: Limit) -> str:
    rule = limit.rule
    return "–" if rule.rate is None or rule.window_us is None else f"{rule.rate:,} in {screen.span(rule.window_us)}"


def _next(limit: Limit, now: int) -> str:
    if not limit.waiting:
        return "–"
    if limit.next_at is not None:
        return f"in {screen.ahead(max(limit.next_at - now, 0))}"
    return "when one ends" if limit.rule.most is not None and limit.running >= limit.rule.most else "–"
