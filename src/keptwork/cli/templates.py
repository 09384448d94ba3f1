"""`keptwork templates`: store flow definitions by version, and start them by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, SecretEnv, Tenant, Webhook, operator, webhook, with_tenant
from keptwork.cli.flow_commands import Inputs, Reason
from keptwork.cli.jobs import lines
from keptwork.errors import BadFlow, BadInput
from keptwork.flows import commands as flows
from keptwork.flows import graph
from keptwork.flows import queries as stories
from keptwork.flows import start as service
from keptwork.flows.definition import Flow
from keptwork.flows.files import read, read_flow
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.commands import FlowRef
    from keptwork.store import Store
    from keptwork.store.contract.flows_templates import Template


# `keptwork flows`: check and draw flow files, and print their JSON Schema.


flows_app = typer.Typer()

File = Annotated[str, typer.Argument(metavar="FILE", help="Flow file. Use - to read stdin.")]


@flows_app.command()
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Flow files. Use - to read stdin.")],
    as_json: screen.Json = False,
) -> None:
    """Check flow files and the flows inside them.

    Every problem is listed with its line and what was expected. Exit code 2 if there are problems.
    """
    found = [(file, *_checked(file)) for file in files]
    for _, flow, error in found:
        if not as_json:
            screen.stdout().print(_summary(flow) if flow else str(error), soft_wrap=True)
    if as_json:
        print(json.dumps([_as_json(*one) for one in found], indent=2))
    if any(error for _, _, error in found):
        raise typer.Exit(BadFlow.exit_code)


@flows_app.command("graph")
def graph_(
    file: File,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: screen.Json = False,
) -> None:
    """Draw the steps of a flow, level by level. Steps of one level can run concurrently."""
    if mermaid and as_json:
        raise BadInput(what="--mermaid and --json exclude each other")
    flow = read_flow(file)
    human = (lambda: graph.mermaid(flow).rstrip()) if mermaid else (lambda: _drawn(flow))
    levels = graph.levels(flow.dependencies)
    screen.emit({"name": flow.name, "levels": levels, "dependencies": flow.dependencies}, human, as_json)


@flows_app.command()
def schema(as_json: screen.Json = False) -> None:
    """Print the JSON Schema of flow files, for editors and programs."""
    print(json.dumps(Flow.published_schema(), indent=2))


def _checked(file: str) -> tuple[Flow | None, Exception | None]:
    try:
        return read(file).flow, None
    except (BadFlow, BadInput) as error:
        return None, error


def _as_json(file: str, flow: Flow | None, error: Exception | None) -> dict[str, Any]:
    problems: list[dict[str, Any]]
    problems = [{"line": line, "what": what} for line, what in error.problems] if isinstance(error, BadFlow) else []
    if error is not None and not problems:
        problems = [{"line": None, "what": str(error)}]
    return {"file": file, "ok": flow is not None, "name": flow.name if flow else None, "problems": problems}


def _summary(flow: Flow) -> str:
    count = len(flow.steps)
    return f"{flow.name}: {flow.kind} of {count} {'step' if count == 1 else 'steps'}, nothing wrong."


def _drawn(flow: Flow) -> str:
    return "\n".join([f"{flow.name} ({flow.kind})", *graph.lines(flow)])


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
    yield from graph.lines(flow)
