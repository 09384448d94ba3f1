"""`keptwork limits`: show the limits of jobs and queues, and the jobs that wait for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.jobs import limits as service

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.jobs.limits import Limit

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
