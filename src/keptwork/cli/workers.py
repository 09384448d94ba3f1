"""`keptwork workers`: list, show, and control workers on any host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events as event_service
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.core.ids_entities import actor_name, public_id, states_named
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers import commands as service

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.store import Store

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the worker.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, recorded in the event log.")]
RequestId = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", help="Idempotency key. A key that is repeated within an hour returns the first response."
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only this state. Repeatable.",
        autocompletion=lambda: [state.name for state in WORKER.states],
    ),
]


@app.command("list")
def list_(
    state: States = None,
    host: Annotated[str | None, typer.Option(metavar="NAME", help="Only this host.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include workers that have ended.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="ID of the last worker of the previous page.")] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List workers that have not ended, newest first: queues, jobs, and last heartbeat."""
    states = states_named(WORKER, state or []) or (None if every else ALIVE)

    async def read(store: Store, tenant_id: int) -> tuple[service.Page, int]:
        return await service.page(
            store, WorkerFilter(tenant_id, states, host), after=after, limit=limit
        ), await store.now()

    page, now = asyncio.run(with_tenant(db, tenant, read))
    rows = [{**service.as_json(row), "jobs_held": page.jobs[row["id"]]} for row in page.workers]
    nobody = "No workers." if every or state else "No workers at the moment; --all shows those that have ended."
    screen.emit({"workers": rows, "next": page.next}, lambda: _table(page, now) if page.workers else nobody, as_json)
    if page.next and not as_json:
        screen.complain(f"There are more; go on with: --after {page.next}")


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one worker: what it serves, the jobs it holds, and its history."""

    async def read(store: Store, tenant_id: int) -> tuple[service.Story, int]:
        return await service.show(store, tenant_id, id), await store.now()

    story, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {
        **service.as_json(story.worker),
        "doing": story.doing,
        "jobs": [{"id": public_id(JOB.name, job["id"]), "kind": job["kind"]} for job in story.jobs],
        "events": [event_service.as_json(event) for event in story.events],
    }
    screen.emit(shown, lambda: _story(story, shown, now), as_json)


@app.command()
def pause(
    id: Id,
    reason: Reason = None,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Pause a worker: it claims no jobs, and its running jobs continue."""
    _command(service.pause, id, (reason, request_id), tenant, db, as_json)


@app.command()
def resume(
    id: Id,
    reason: Reason = None,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Resume a paused worker."""
    _command(service.resume, id, (reason, request_id), tenant, db, as_json)


@app.command()
def drain(
    id: Id,
    reason: Reason = None,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Drain a worker: it finishes its running jobs, without a time limit, and ends."""
    _command(service.drain, id, (reason, request_id), tenant, db, as_json)


@app.command()
def terminate(
    id: Id,
    hard: Annotated[bool, typer.Option("--hard", help="Stop its jobs immediately, without the grace period.")] = False,
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Cancel interrupted jobs. Default: return them to the queue.")
    ] = False,
    reason: Reason = None,
    request_id: RequestId = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Terminate a worker on any host. It claims no jobs; its running jobs can finish within its grace period."""
    how = {"hard": hard, "cancel_jobs": cancel_jobs}
    _command(service.terminate, id, (reason, request_id), tenant, db, as_json, **how)


def _command(
    command: Any,
    id: str,
    why: tuple[str | None, str | None],
    tenant: str,
    db: str | None,
    as_json: bool,
    **how: bool,
) -> None:
    wish = service.Wish(operator(), *why)

    async def ask(store: Store, tenant_id: int) -> service.Answer:
        answer: service.Answer = await command(store, tenant_id, id, wish, **how)
        return answer

    answer = asyncio.run(with_tenant(db, tenant, ask))
    screen.emit(answer, lambda: _said(answer), as_json)


def _said(answer: service.Answer) -> str:
    id, before, now = answer["worker"]["id"], answer["from_state"], answer["to_state"]
    if answer["command"] == "drain" and before == now:
        return f"{id} is asked to drain; see it end with: keptwork workers show {id}"
    return f"{id} was {before} and is {now}." if before != now else f"{id} is {now}, and is now ended hard."


# --- text output


def _table(page: service.Page, now: int) -> RenderableType:
    table = screen.table("id", "state", "host", "pid", "queues", "doing", "seen")
    for column in table.columns[4:5]:
        column.overflow = "fold"
    for row in page.workers:
        queues = ", ".join(service.serves(row)["queues"]) or "–"
        place = row["host"] or "–", str(row["pid"] or "–")
        name = public_id(WORKER.name, row["id"])
        table.add_row(name, row["state"], *place, queues, _doing(row, page.jobs[row["id"]]), _seen(row, now))
    return table


def _doing(row: service.Row, held: int) -> str:
    most = service.serves(row)["concurrency"]
    return f"{held} of {most}" if most is not None else str(held)


def _seen(row: service.Row, now: int) -> str:
    return screen.ago(row["seen_at"], now)


def _story(story: service.Story, shown: dict[str, Any], now: int) -> RenderableType:
    from rich.console import Group

    row, table = story.worker, screen.table("", "")
    table.show_header = False
    for name, value in _facts(row, shown, now):
        table.add_row(name, value)
    jobs = [f"{job['id']}  {job['kind']}" for job in shown["jobs"]] or ["no jobs"]
    events = screen.table("when", "event", "to", "by", "why")
    for event in story.events:
        who = actor_name(event.actor) or "–"
        events.add_row(screen.moment(event.ts), event.type, event.to_state, who, event.reason or "–")
    return Group(shown["id"], "", table, "", "It holds", *(f"  {job}" for job in jobs), "", events)


def _facts(row: service.Row, shown: dict[str, Any], now: int) -> list[tuple[str, str]]:
    asked = shown["asked_to_end"]
    known = {
        "state": row["state"],
        "name": row["name"],
        "process": f"{row['pid']} on {row['host']}" if row["host"] else None,
        "supervisor": row["supervisor"],
        "version": shown["version"],
        "queues": ", ".join(shown["queues"]),
        "kinds": ", ".join(shown["kinds"]),
        "concurrency": shown["concurrency"],
        "slots replaced": (shown["doing"] or {}).get("slots_replaced") or None,
        "last seen": _seen(row, now),
        "asked to end": asked and f"{asked['how']}, by {actor_name(asked['by'])}: {asked['reason'] or '–'}",
    }
    return [(name, str(value)) for name, value in known.items() if value]
