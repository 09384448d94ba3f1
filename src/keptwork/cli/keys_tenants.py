"""`keptwork tenants`: list, add, and limit tenants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.access import tenants as service
from keptwork.cli import screen
from keptwork.cli.database import Db, opened
from keptwork.cli.database_allowance import Burst, MaxInFlight, MaxQueued, MaxStreams, RequestsPerSecond

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.records import Tenant as TenantRow

tenants_app = typer.Typer()


@tenants_app.command("list")
def list_tenants(db: Db = None, as_json: screen.Json = False) -> None:
    """List tenants. Every entity belongs to a tenant; the default tenant is `default`."""

    async def read() -> list[TenantRow]:
        async with opened(db) as store:
            return await service.listing(store)

    tenants = asyncio.run(read())
    screen.emit({"tenants": [service.as_json(tenant) for tenant in tenants]}, lambda: _tenants_table(tenants), as_json)


@tenants_app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")],
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Add a tenant. Commands and keys of other tenants cannot see its work."""

    async def write() -> TenantRow:
        async with opened(db) as store:
            return await service.add(store, name)

    tenant = asyncio.run(write())
    screen.emit({"tenant": service.as_json(tenant)}, lambda: f"{tenant.name} is tenant {tenant.id}.", as_json)


@tenants_app.command()
def limit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")],
    requests_per_second: RequestsPerSecond = None,
    burst: Burst = None,
    max_in_flight: MaxInFlight = None,
    max_streams: MaxStreams = None,
    max_queued: MaxQueued = None,
    reset: Annotated[bool, typer.Option("--reset", help="Remove the tenant's earlier limits.")] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Set the HTTP API limits of a tenant; 0 means unlimited.

    Limits that you omit stay unchanged. Limits that the tenant does not have come from the settings of each server.
    Servers apply changes within 5 s.
    """
    changes = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "max_in_flight": max_in_flight,
        "max_streams": max_streams,
        "max_queued": max_queued,
    }

    async def write() -> TenantRow:
        async with opened(db) as store:
            return await service.limit(store, name, changes, reset=reset)

    tenant = asyncio.run(write())
    screen.emit({"tenant": service.as_json(tenant)}, lambda: f"{tenant.name}: {_limits(tenant)}", as_json)


def _limits(tenant: TenantRow) -> str:
    own = service.as_json(tenant)["limits"]
    return ", ".join(f"{name} {value:,}" for name, value in own.items()) or "as each server says"


def _tenants_table(tenants: list[TenantRow]) -> RenderableType:
    table = screen.table("tenant", "name", "since", "limits")
    for tenant in tenants:
        table.add_row(str(tenant.id), tenant.name, screen.moment(tenant.created_at or None), _limits(tenant))
    return table
