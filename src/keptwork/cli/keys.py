"""`keptwork keys`: create, list, rotate, and revoke API keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.access import api_keys as service
from keptwork.access.scopes import KNOWN_SCOPES
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.access.api_keys import Made
    from keptwork.store import Store
    from keptwork.store.contract.access import ApiKeyRow

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
        service.USUAL_LIFE
    ),
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Create a key. Its secret is printed only once, because Keptwork stores only its hash."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    life = None if expires == NEVER else expires

    async def make(store: Store, tenant_id: int) -> tuple[Made, int]:
        made = await service.create(store, tenant_id, name, wanted, expires=life, by=operator())
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
        return await service.listed(store, tenant_id, ended=all, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"keys": [service.as_json(row, now) for row in found]},
        lambda: (
            _table(found, now) if found else "No keys: make one with keptwork keys create --name NAME --scopes read."
        ),
        as_json,
    )


@app.command()
def revoke(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Revoke a key. Within 5 s, every server rejects it."""

    async def end(store: Store, tenant_id: int) -> tuple[ApiKeyRow, int]:
        return await service.revoke(store, tenant_id, id, by=operator()), await store.now()

    row, now = asyncio.run(with_tenant(db, tenant, end))
    said = f"{row.public_id} ({row.name}) is revoked; servers that are running know within 5 s."
    screen.emit({"key": service.as_json(row, now)}, lambda: said, as_json)


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="Time that the old key stays valid, such as 1h. Maximum: 30d.")
    ] = (service.USUAL_OVERLAP),
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Replace a key with a new one that has the same name, scopes, and lifetime. Its secret is printed only once."""

    async def replace(store: Store, tenant_id: int) -> tuple[Made, int]:
        return await service.rotate(store, tenant_id, id, overlap=overlap, by=operator()), await store.now()

    made, now = asyncio.run(with_tenant(db, tenant, replace))
    _show_secret(made, now, as_json, f"in the place of {id.strip()}, which ends in {overlap} or sooner")


def _show_secret(made: Made, now: int, as_json: bool, what: str) -> None:
    """Print only the secret to stdout, so that programs can read it."""
    shown: dict[str, Any] = {"key": service.as_json(made.row, now), "secret": made.secret.value}
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
        table.add_row(row.public_id, row.name, row.scopes, service.state(row, now), *times)
    return table
