"""`keptwork breakers`: list, show, and reset circuit breakers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.audit import events as event_service
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.core.ids import actor_name
from keptwork.core.lifecycles.breaker import CLOSED
from keptwork.core.validation import check_name
from keptwork.jobs import breakers as service
from keptwork.jobs import held_jobs

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store import Event, Store
    from keptwork.store.contract.breakers import BreakerView

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the breaker, such as payments-api or tool:ruff.")]


@app.command("list")
def list_(tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List circuit breakers: their states, held jobs, and next probes."""

    async def read(store: Store, tenant_id: int) -> tuple[list[BreakerView], int]:
        return await store.breakers(tenant_id), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"breakers": [service.as_json(standing) for standing in found]},
        lambda: _table(found, now) if found else "No breakers: no job that has one was ever run.",
        as_json,
    )


@app.command()
def show(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one circuit breaker: why it opened, its next probe, and its history."""

    async def read(store: Store, tenant_id: int) -> tuple[BreakerView, list[Event], int]:
        return *await service.show(store, tenant_id, name), await store.now()

    standing, events, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {**service.as_json(standing), "events": [event_service.as_json(event) for event in events]}
    screen.emit(shown, lambda: _story(standing, events, now), as_json)


@app.command()
def reset(
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the event log.")],
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Close a circuit breaker and lift its holds."""
    check_name("reason", reason)

    async def close(store: Store, tenant_id: int) -> int:
        return await held_jobs.reset(store, tenant_id, name, actor=operator(), reason=reason)

    let_go = asyncio.run(with_tenant(db, tenant, close))
    count = "1 held job is" if let_go == 1 else f"{let_go:,} held jobs are"
    said = f"{name} is {CLOSED.name}; {count} let go."
    screen.emit({"name": name, "state": CLOSED.name, "let_go": let_go}, lambda: said, as_json)


# --- text output


def _table(found: list[BreakerView], now: int) -> RenderableType:
    table = screen.table("name", "state", "failures", "held", "what next")
    for column in table.columns[2:4]:
        column.justify = "right"
    for standing in found:
        row = standing.row
        failures = f"{row['failures']} of {row['failure_threshold']}"
        table.add_row(row["name"], row["state"], failures, f"{standing.held:,}", service.what_next(standing, now))
    return table


def _story(standing: BreakerView, events: list[Event], now: int) -> RenderableType:
    from rich.console import Group

    row, table = standing.row, screen.table("", "")
    table.show_header = False
    facts = {
        "state": row["state"],
        "what next": service.what_next(standing, now),
        "failures in a row": f"{row['failures']}; it opens at {row['failure_threshold']}",
        "good probes": f"{row['successes']}; it closes at {row['success_threshold']}",
        "cooldown": screen.took(row["cooldown_us"]),
        "jobs held back": f"{standing.held:,}",
        "last failure": row["error"] or "–",
    }
    for name, value in facts.items():
        table.add_row(name, value)
    log = screen.table("when", "event", "to", "by", "why")
    for event in events:
        who = actor_name(event.actor) or "–"
        log.add_row(screen.moment(event.ts), event.type, event.to_state, who, event.reason or "–")
    return Group(row["name"], "", table, "", log)
