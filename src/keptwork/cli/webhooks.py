"""`keptwork webhooks`: list, show, and resend webhook deliveries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.cli.jobs import WIDE_ENOUGH, lines
from keptwork.store.contract.outbox import GIVEN_UP
from keptwork.webhooks import outbox as service
from keptwork.webhooks.address import shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store import Store
    from keptwork.store.contract.outbox import Delivery

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Delivery ID: the ID of the flow and the number of the move.")]


@app.command("list")
def list_(
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only this state: pending, delivered, or given_up.")
    ] = None,
    flow: Annotated[str | None, typer.Option(metavar="ID", help="Only deliveries of this flow.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List webhook deliveries, newest first, with their attempts and last errors."""

    async def read(store: Store, tenant_id: int) -> tuple[list[Delivery], int]:
        found = await service.listed(store, tenant_id, flow=flow, state=state, limit=limit)
        return found, await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"webhooks": [service.as_json(one) for one in found]},
        lambda: _table(found, now) if found else "No webhooks.",
        as_json,
    )


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one delivery: its URL, body, attempts, and state."""

    async def read(store: Store, tenant_id: int) -> tuple[Delivery, int]:
        return await service.find(store, tenant_id, id), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(service.as_json(found, whole=True), lambda: "\n".join(lines(_facts(found, now))), as_json)


@app.command()
def retry(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Resend a delivery now, with the same ID, even if it was delivered."""

    async def send(store: Store, tenant_id: int) -> Delivery:
        return await service.retry(store, tenant_id, id)

    before = asyncio.run(with_tenant(db, tenant, send))
    name = service.as_json(before)["id"]
    said = f"{name} is sent again by the next worker that looks; it was {_words(before)}."
    screen.emit({"id": name, "was": before.state, "attempts": before.attempts}, lambda: said, as_json)


# --- drawing


def _table(found: list[Delivery], now: int) -> RenderableType:
    if screen.stdout().width < WIDE_ENOUGH:
        return _narrow_table(found, now)
    table = screen.table("message", "event", "to", "state", "attempts", "when", "last error")
    for one in found:
        name, url = service.as_json(one)["id"], shown(one.url)
        error = one.last_error or ""
        table.add_row(name, one.event, url, _words(one), str(one.attempts), _when(one, now), error)
    return table


def _narrow_table(found: list[Delivery], now: int) -> RenderableType:
    table = screen.table("message", "state")
    for one in found:
        state = f"{_words(one)} {_when(one, now)}\n{one.last_error or shown(one.url)}"
        table.add_row(f"{service.as_json(one)['id']}\n{one.event}", state)
    return table


def _words(delivery: Delivery) -> str:
    return delivery.state.replace("_", " ")


def _when(delivery: Delivery, now: int) -> str:
    """Return when the delivery ended, or is attempted next."""
    return screen.ago(delivery.next_at if delivery.ended_at is None else delivery.ended_at, now)


def _attempts(delivery: Delivery) -> str:
    if delivery.state == GIVEN_UP:
        return f"given up after {delivery.attempts} attempt{'s' if delivery.attempts != 1 else ''}"
    return f"{delivery.attempts} of at most {delivery.most_attempts}"


def _facts(delivery: Delivery, now: int) -> Iterator[tuple[str, Any]]:
    facts = service.as_json(delivery)
    yield "message", facts["id"]
    yield "event", delivery.event
    yield "to", facts["url"]
    yield "signed with", facts["secret"]
    yield "state", f"{_words(delivery)}, {_when(delivery, now)}"
    yield "attempts", _attempts(delivery)
    yield "made", screen.moment(delivery.created_at)
    yield "last error", delivery.last_error
    yield "body", json.dumps(json.loads(delivery.body), ensure_ascii=False)
