"""`keptwork crews`: submit, list, show, and cancel crews, and set quotas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.jobs import lines
from keptwork.core.ids import public_id, states_named
from keptwork.core.lifecycles import CREW, JOB
from keptwork.core.lifecycles.crew import FAILED
from keptwork.crews import commands as service
from keptwork.crews.engine import quotas as quotas_of
from keptwork.errors import BadInput
from keptwork.jobs import queries
from keptwork.store.contract.crews import HELD_BY_QUOTA

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree as Drawing

    from keptwork.store.contract.store import Store

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the crew.")]
Quotas = list[tuple[int, int, int]]


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="Only crews in this state. Repeatable.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Include crews inside other crews.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List crews, newest first."""
    states = states_named(CREW, state or [])

    async def read(store: Store, tenant_id: int) -> tuple[list[dict[str, Any]], int]:
        return await service.listed(store, tenant_id, states=states, inside=all, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {"crews": [service.as_json(row) for row in found]}
    screen.emit(shown, lambda: _table(found, now) if found else "No crews.", as_json)


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show a crew with its shares, its inner crews, and the workers in use."""

    async def read(store: Store, tenant_id: int) -> tuple[service.Tree, Quotas, int]:
        found = await service.tree(store, tenant_id, id)
        return found, await quotas_of(store, tenant_id), await store.now()

    tree, used, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {**service.tree_as_json(tree), "quotas": service.quotas_as_json(used)}
    screen.emit(shown, lambda: _story(tree, used, now), as_json)


@app.command()
def cancel(
    id: Id,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the event log.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Cancel a crew with its inner crews and all their jobs, in one transaction. Running jobs are stopped."""

    async def write(store: Store, tenant_id: int) -> list[int]:
        return await service.cancel(store, tenant_id, id, reason=reason, actor=operator())

    ended = [public_id(CREW.name, key) for key in asyncio.run(with_tenant(db, tenant, write))]
    inside = f", and {len(ended) - 1} inside it" if len(ended) > 1 else ""
    screen.emit({"cancelled": ended}, lambda: f"{ended[0]} is cancelled{inside}.", as_json)


@app.command()
def submit(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Application, such as shop.jobs:app.")],
    job: Annotated[str, typer.Argument(metavar="JOB", help="Declared job that each share runs.")],
    task: Annotated[str, typer.Option(metavar="TEXT", help="Task of the crew.")],
    workers: Annotated[int, typer.Option(metavar="N", help="Number of workers, from 1 to 10.")] = 1,
    payload: Annotated[str, typer.Option(metavar="JSON", help="Arguments of every share, as a JSON object.")] = "{}",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key. A repeated key returns the existing crew.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Time after which the crew is cancelled, such as 2h.")
    ] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Give a task to a crew. Each worker gets one share, a job of the application."""
    from keptwork.cli.work import application
    from keptwork.job import DeclaredJob

    loaded = application(target, db)
    if job not in loaded.kinds:
        raise BadInput(what=f"{target} has no job {job!r}; it has: {', '.join(sorted(loaded.kinds)) or 'none'}")
    arguments = json.loads(queries.arguments(payload))

    async def write() -> dict[str, Any]:
        async with loaded:
            declared = DeclaredJob(loaded, loaded.kinds[job])
            made = await loaded.crew(declared, task=task, workers=workers, _key=key, _timeout=timeout, **arguments)
            return await service.find(await loaded.open(), loaded.tenant_id, made.id)

    row = asyncio.run(write())
    why = f": {row['error'] or row['reason']}" if row["state"] == FAILED.name else ""
    screen.emit(service.as_json(row), lambda: f"{public_id(CREW.name, row['id'])} is {row['state']}{why}.", as_json)
    if why:
        raise typer.Exit(1)


@app.command()
def quotas(
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="DEPTH=N", help="Set the quota of a depth. Repeatable.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show the quota of workers at each crew depth, and how many are in use."""
    wanted = dict(_setting(text) for text in set or [])

    async def change(store: Store, tenant_id: int) -> Quotas:
        if wanted:
            await service.set_quotas(store, tenant_id, wanted)
        return await quotas_of(store, tenant_id)

    found = asyncio.run(with_tenant(db, tenant, change))
    screen.emit({"quotas": service.quotas_as_json(found)}, lambda: _quotas_table(found), as_json)


def _setting(text: str) -> tuple[int, int]:
    depth, _, most = text.partition("=")
    if not (depth.strip().isdecimal() and most.strip().isdecimal()):
        raise BadInput(what=f"{text!r} sets no quota; say a depth and how many workers, such as 1=8")
    return int(depth), int(most)


def _quotas_table(found: Quotas) -> RenderableType:
    table = screen.table("depth", "quota", "in use")
    for depth, most, used in found:
        table.add_row(str(depth), str(most), str(used))
    return table


def _table(found: list[dict[str, Any]], now: int) -> RenderableType:
    table = screen.table("crew", "task", "job", "workers", "depth", "state", "", "error")
    table.columns[0].no_wrap = True
    for row in found:
        figures = (str(row["worker_count"]), str(row["depth"]))
        state = (row["state"], _lately(row, now), row["error"] or "")
        table.add_row(_id(row), row["task_description"], row["kind"] or "–", *figures, *state)
    return table


def _story(tree: service.Tree, used: Quotas, now: int) -> RenderableType:
    from rich.console import Group

    facts = "\n".join(lines(_facts(tree, used, now)))
    return Group(facts, "", _drawn(tree, now))


def _facts(tree: service.Tree, used: Quotas, now: int) -> Iterator[tuple[str, Any]]:
    row = tree.crew
    yield "crew", _id(row)
    yield "task", row["task_description"]
    yield "state", f"{row['state']}, {_lately(row, now)}"
    yield "reason", row["reason"]
    yield "error", None if row["error"] == row["reason"] else row["error"]
    yield "job", row["kind"]
    yield "inside of", None if row["parent_id"] is None else public_id(CREW.name, row["parent_id"])
    yield "asked for by", None if row["asker_id"] is None else public_id(JOB.name, row["asker_id"])
    yield "times out", None if row["deadline_at"] is None else screen.ago(row["deadline_at"], now)
    yield "result", row["result"]
    yield "workers in use", ", ".join(f"depth {depth}: {used} of {most}" for depth, most, used in used)


def _drawn(tree: service.Tree, now: int, under: Drawing | None = None) -> Drawing:
    """Draw inner crews below the share that waits for them. Draw those without a share below the crew."""
    from rich.tree import Tree as Drawing

    row = tree.crew
    label = f"{_id(row)}  {row['state']}  {row['task_description']}"
    here = Drawing(label) if under is None else under.add(label)
    for number, job in enumerate(tree.shares):
        share = here.add(f"share {number}  {public_id(JOB.name, job['id'])}  {_standing(job, now)}")
        for one in tree.inside:
            if one.crew["asker_id"] == job["id"]:
                _drawn(one, now, share)
    asked = {job["id"] for job in tree.shares}
    for one in tree.inside:
        if one.crew["asker_id"] not in asked:
            _drawn(one, now, here)
    return here


def _standing(job: dict[str, Any], now: int) -> str:
    if JOB.state(job["state"]).final or job["held_by"] != HELD_BY_QUOTA:
        return f"{job['state']}, {queries.lately(job, now)}"
    return f"waits for {job['waits_for']}" if job["waits_for"] else "waits for a worker of its depth"


def _lately(row: dict[str, Any], now: int) -> str:
    """Return how long a crew has been in its state, or how long ago it finished."""
    if row["completed_at"] is not None:
        return screen.ago(row["updated_at"], now)
    return f"for {screen.span(now - row['updated_at'])}"


def _id(row: dict[str, Any]) -> str:
    return public_id(CREW.name, row["id"])
