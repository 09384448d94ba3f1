"""`keptwork templates`: store flow definitions by version, and start them by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.database_webhook import SecretEnv, Webhook, webhook
from keptwork.cli.flow_commands import Inputs, Reason
from keptwork.cli.jobs import lines
from keptwork.cli.templates_flows import File
from keptwork.flows import commands as flows
from keptwork.flows import graph_drawing
from keptwork.flows import queries as stories
from keptwork.flows import start as service
from keptwork.flows.files import read
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.commands import FlowRef
    from keptwork.store import Store
    from keptwork.store.contract.flows_templates import Template

app = typer.Typer()

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Template name for the newest version, or the public ID of a version.")
]


@app.command("list")
def list_(
    all: Annotated[bool, typer.Option("--all", help="List every version, not only the newest.")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only this name.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 100,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List the stored definitions by name."""

    async def read(store: Store, tenant_id: int) -> tuple[list[Template], int]:
        return await service.listed(store, tenant_id, name=name, every=all, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"templates": [service.as_json(one) for one in found]},
        lambda: _table(found, now) if found else "No templates: keep one with keptwork templates put FILE.",
        as_json,
    )


@app.command()
def show(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one definition: its inputs, and a drawing of its steps."""

    async def read(store: Store, tenant_id: int) -> tuple[Template, int]:
        return await service.find(store, tenant_id, name), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(service.as_json(found, whole=True), lambda: "\n".join(_told(found, now)), as_json)


@app.command()
def put(file: File, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Store a flow file as the next version of its name. An unchanged file returns the newest version."""
    given = read(file)

    async def keep(store: Store, tenant_id: int) -> Template:
        return await service.put(store, tenant_id, given.flow, given.library)

    found = asyncio.run(with_tenant(db, tenant, keep))
    said = f"{found.public_id} is version {found.version} of {found.name}."
    screen.emit(service.as_json(found), lambda: said, as_json)


@app.command()
def start(
    name: Name,
    inputs: Inputs = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Idempotency key. A repeated key returns the same flow; a different flow is rejected."
        ),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Start no step until the hold is lifted.")] = False,
    webhook_url: Webhook = None,
    webhook_secret: SecretEnv = None,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Start a flow from a stored definition. Workers run it."""
    how: dict[str, Any] = {"key": key, "hold": hold, "webhook": webhook(webhook_url, webhook_secret)}

    async def begin(store: Store, tenant_id: int) -> tuple[FlowRef, dict[str, Any]]:
        template = await service.find(store, tenant_id, name)
        given = service.given(service.flow_of(template), inputs or [])
        newest, actor = service.by_name(template, name), Actor(operator(), reason)
        ref = await flows.start_template(store, template, given, newest=newest, actor=actor, **how)
        (row,) = await store.rows(ref.kind.flow, [ref.id])
        return ref, row

    ref, row = asyncio.run(with_tenant(db, tenant, begin))
    said = f"{ref.public_id} is {row['state']}; see it with: keptwork {ref.kind.name}s show {ref.public_id}"
    screen.emit(stories.flow_json(ref.kind, row), lambda: said, as_json)


def _table(found: list[Template], now: int) -> RenderableType:
    table = screen.table("template", "name", "version", "kind", "")
    table.columns[0].no_wrap = True
    for one in found:
        table.add_row(one.public_id, one.name, str(one.version), one.kind, screen.ago(one.created_at, now))
    return table


def _told(found: Template, now: int) -> Iterator[str]:
    flow = service.flow_of(found)
    facts = {
        "template": found.public_id,
        "name": f"{found.name}, version {found.version}",
        "kind": found.kind,
        "kept": screen.ago(found.created_at, now),
        "description": flow.description,
    }
    yield from lines(iter(facts.items()))
    for name, wanted in flow.inputs.items():
        default = "required" if wanted.required else f"default {json.dumps(wanted.default)}"
        yield f"{'input':<16}{name}: {wanted.type}, {default}"
    yield ""
    yield from graph_drawing.lines(flow)
