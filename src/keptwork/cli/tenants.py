"""`keptwork tenants`: whose work the database holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.allowance import Burst, MaxInFlight, MaxQueued, MaxStreams, RequestsPerSecond
from keptwork.cli.database import Db, opened
from keptwork.service import tenants as service

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.records import Tenant

app = typer.Typer()


@app.command("list")
def list_(db: Db = None, as_json: screen.Json = False) -> None:
    """List the tenants. Everything belongs to one of them; who names none works for `default`."""

    async def read() -> list[Tenant]:
        async with opened(db) as store:
            return await service.listing(store)

    tenants = asyncio.run(read())
    screen.emit({"tenants": [service.as_json(tenant) for tenant in tenants]}, lambda: _table(tenants), as_json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Add a tenant. Its work is its own: nobody else's commands see it."""

    async def write() -> Tenant:
        async with opened(db) as store:
            return await service.add(store, name)

    tenant = asyncio.run(write())
    screen.emit({"tenant": service.as_json(tenant)}, lambda: f"{tenant.name} is tenant {tenant.id}.", as_json)


@app.command()
def limit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which tenant.")],
    requests_per_second: RequestsPerSecond = None,
    burst: Burst = None,
    max_in_flight: MaxInFlight = None,
    max_streams: MaxStreams = None,
    max_queued: MaxQueued = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what it had of its own before.")] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Say what a tenant may ask of the HTTP API; 0 is no bound. For what is not said, the settings of each server hold.
    Servers know within 5 s."""
    changes = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "max_in_flight": max_in_flight,
        "max_streams": max_streams,
        "max_queued": max_queued,
    }

    async def write() -> Tenant:
        async with opened(db) as store:
            return await service.limit(store, name, changes, reset=reset)

    tenant = asyncio.run(write())
    screen.emit({"tenant": service.as_json(tenant)}, lambda: f"{tenant.name}: {_limits(tenant)}", as_json)


def _limits(tenant: Tenant) -> str:
    own = service.as_json(tenant)["limits"]
    return ", ".join(f"{name} {value:,}" for name, value in own.items()) or "as each server says"


def _table(tenants: list[Tenant]) -> RenderableType:
    table = screen.table("tenant", "name", "since", "limits")
    for tenant in tenants:
        table.add_row(str(tenant.id), tenant.name, screen.moment(tenant.created_at or None), _limits(tenant))
    return table
