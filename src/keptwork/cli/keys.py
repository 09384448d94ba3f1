"""`keptwork keys`: create, list, rotate, and revoke API keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.access import api_keys
from keptwork.access import tenants as service
from keptwork.access.scopes import KNOWN_SCOPES
from keptwork.cli import screen
from keptwork.cli.database import (
    DEFAULT_TENANT_NAME,
    Burst,
    Db,
    MaxInFlight,
    MaxQueued,
    MaxStreams,
    RequestsPerSecond,
    Tenant,
    opened,
    operator,
    with_tenant,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.access.api_keys import Made
    from keptwork.store import Store
    from keptwork.store.contract.access import ApiKeyRow
    from keptwork.store.contract.records import Tenant as TenantRow


app = typer.Typer()

NEVER = "never"

Id = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the key (key_…), never the secret.")]


@app.command()
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the key, such as its user or program.")],
    scopes: Annotated[
        str,
        typer.Option(metavar="SCOPE[,…]", help=f"Scopes of the key: {KNOWN_SCOPES}. admin includes all."),
    ],
    expires: Annotated[str, typer.Option(metavar="TIME", help="Lifetime of the key, such as 90d, or never.")] = (
        api_keys.USUAL_LIFE
    ),
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Create a key. Its secret is printed only once, because Keptwork stores only its hash."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    life = None if expires == NEVER else expires

    async def make(store: Store, tenant_id: int) -> tuple[Made, int]:
        made = await api_keys.create(store, tenant_id, name, wanted, expires=life, by=operator())
        return made, await store.now()

    made, now = asyncio.run(with_tenant(db, tenant, make))
    _show_secret(made, now, as_json, f"for {', '.join(made.row.scopes.split(','))}; {_ends(made.row)}")


@app.command("list")
def list_(
    all: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 100,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List keys, newest first: scopes, expiry, and last use."""

    async def read(store: Store, tenant_id: int) -> tuple[list[ApiKeyRow], int]:
        return await api_keys.listed(store, tenant_id, ended=all, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"keys": [api_keys.as_json(row, now) for row in found]},
        lambda: (
            _table(found, now) if found else "No keys: make one with keptwork keys create --name NAME --scopes read."
        ),
        as_json,
    )


@app.command()
def revoke(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Revoke a key. Within 5 s, every server rejects it."""

    async def end(store: Store, tenant_id: int) -> tuple[ApiKeyRow, int]:
        return await api_keys.revoke(store, tenant_id, id, by=operator()), await store.now()

    row, now = asyncio.run(with_tenant(db, tenant, end))
    said = f"{row.public_id} ({row.name}) is revoked; servers that are running know within 5 s."
    screen.emit({"key": api_keys.as_json(row, now)}, lambda: said, as_json)


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="Time that the old key stays valid, such as 1h. Maximum: 30d.")
    ] = (api_keys.USUAL_OVERLAP),
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Replace a key with a new one that has the same name, scopes, and lifetime. Its secret is printed only once."""

    async def replace(store: Store, tenant_id: int) -> tuple[Made, int]:
        return await api_keys.rotate(store, tenant_id, id, overlap=overlap, by=operator()), await store.now()

    made, now = asyncio.run(with_tenant(db, tenant, replace))
    _show_secret(made, now, as_json, f"in the place of {id.strip()}, which ends in {overlap} or sooner")


def _show_secret(made: Made, now: int, as_json: bool, what: str) -> None:
    """Print only the secret to stdout, so that programs can read it."""
    shown: dict[str, Any] = {"key": api_keys.as_json(made.row, now), "secret": made.secret.value}
    if not as_json:
        screen.complain(
            f"{made.row.public_id} ({made.row.name}) is {what}.\n"
            "This is its secret, shown this once: only its hash is kept. Put it where your secrets are:"
        )
    screen.emit(shown, lambda: made.secret.value, as_json)


def _ends(row: ApiKeyRow) -> str:
    return "it never expires" if row.expires_at is None else f"it expires at {screen.moment(row.expires_at)}"


def _table(found: list[ApiKeyRow], now: int) -> RenderableType:
    table = screen.table("key", "name", "scopes", "state", "made", "ends", "last used")
    table.columns[0].no_wrap = True
    for row in found:
        ends = row.expires_at if row.revoked_at is None else row.revoked_at
        times = screen.ago(row.created_at, now), screen.ago(ends, now), screen.ago(row.last_used_at, now)
        table.add_row(row.public_id, row.name, row.scopes, api_keys.state(row, now), *times)
    return table


# `keptwork tenants`: list, add, and limit tenants.


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
