"""`keptwork schedules`: list, add, pause, resume, delete, and run schedules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import Inputs
from keptwork.cli.jobs import WIDE_ENOUGH, lines, state_name
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.schedule_rules import Rule
from keptwork.errors import BadInput
from keptwork.flows import start
from keptwork.flows.files import read
from keptwork.jobs import queries as job_service
from keptwork.jobs import schedules as service

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store import NewJob, Store
    from keptwork.store.contract.queues import Schedule

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
FILES = (".yaml", ".yml")
Named = tuple["Schedule", str | None]
"""A schedule, and the name of the flow that it starts or None."""


@app.command("list")
def list_(tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List schedules: their rules, next ticks, and pauses."""

    async def read(store: Store, tenant_id: int) -> tuple[list[Named], int]:
        found = await store.schedules(tenant_id)
        return [(one, await service.flow_named(store, one)) for one in found], await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"schedules": [service.as_json(schedule) for schedule, _ in found]},
        lambda: _table(found, now) if found else "No schedules: declare one with @app.schedule, or add one.",
        as_json,
    )


@app.command()
def show(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one schedule: its next five ticks in its time zone, and the jobs of its last tick."""

    async def read(store: Store, tenant_id: int) -> tuple[Named, list[dict[str, Any]], int]:
        schedule = await service.find(store, tenant_id, name)
        named = schedule, await service.flow_named(store, schedule)
        return named, await service.jobs(store, schedule), await store.now()

    (schedule, flow), rows, now = asyncio.run(with_tenant(db, tenant, read))
    upcoming = service.upcoming(schedule, now)
    jobs = [{"id": public_id(JOB.name, row["id"]), "state": row["state"]} for row in rows]
    screen.emit(
        {**service.as_json(schedule), "upcoming": upcoming, "last_jobs": jobs},
        lambda: "\n".join(lines(_facts((schedule, flow), upcoming, jobs, now))),
        as_json,
    )


@app.command()
def add(
    name: Name,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Kind of job: the name of a declared job.")] = None,
    flow: Annotated[
        str | None, typer.Option(metavar="FILE|TEMPLATE", help="Flow to start instead of a job: a file or a template.")
    ] = None,
    inputs: Inputs = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="Cron expression: minute, hour, day, month, weekday, such as '0 9 * * mon'."),
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="SPAN", help="Interval instead of --cron, such as 15m.")] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron.")] = "UTC",
    payload: Annotated[str, typer.Option(metavar="JSON", help="Arguments of each job, as a JSON object.")] = "{}",
    queue: Annotated[str, typer.Option(metavar="NAME", help="Queue of its jobs.")] = "default",
    catch_up: Annotated[
        str, typer.Option(metavar="POLICY", help="Missed ticks to fire: latest, all, or none.")
    ] = "latest",
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Add a schedule for a job or a flow.

    Pass the queue that the job declares, because this command does not know it. A flow from a file does not change with
    the file. A template name starts the newest version at each tick.
    """
    declared = service.Declaration.of(name, Rule.of(cron, every, tz), catch_up)
    if (kind is None) == (flow is None):
        raise BadInput(what="a schedule starts one of both: say --kind KIND, or --flow FILE")

    async def put(store: Store, tenant_id: int) -> tuple[Schedule, int]:
        if flow is not None:
            job = await _start(store, tenant_id, flow, inputs or [], queue)
        else:
            job = job_service.new_job(tenant_id, kind or "", payload, queue=queue)
        return await service.add(store, declared, job, operator()), await store.now()

    made, now = asyncio.run(with_tenant(db, tenant, put, creates=True))
    said = f"{name} is due {screen.ago(made.next_at, now)}, at {service.local(made, made.next_at)}."
    screen.emit(service.as_json(made), lambda: said, as_json)


@app.command()
def pause(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Pause a schedule. Ticks pass without effect until you resume it; enqueued jobs continue."""
    before = asyncio.run(_change(service.pause, name, tenant, db))
    said = f"{name} was paused already." if before.paused_at is not None else f"{name} is paused."
    screen.emit({"name": name, "paused": True, "was_paused": before.paused_at is not None}, lambda: said, as_json)


@app.command()
def resume(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Resume a schedule from its next tick."""
    before = asyncio.run(_change(service.resume, name, tenant, db))
    said = f"{name} was not paused." if before.paused_at is None else f"{name} is fired again."
    screen.emit({"name": name, "paused": False, "was_paused": before.paused_at is not None}, lambda: said, as_json)


@app.command()
def delete(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Delete a schedule. Enqueued jobs stay. The next worker of an application that declares it adds it again."""
    before = asyncio.run(_change(service.delete, name, tenant, db))
    declared = before.declared_by == service.DECLARED
    said = f"{name} is deleted."
    if declared:
        said += " It is declared in code: unless that changes, the next worker that starts brings it back."
    screen.emit({"name": name, "deleted": True, "declared_in_code": declared}, lambda: said, as_json)


@app.command("run-now")
def run_now(name: Name, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Enqueue the job of a schedule now. Its ticks do not change."""

    async def run(store: Store, tenant_id: int) -> str:
        return public_id(JOB.name, await service.run_now(store, tenant_id, name, operator()))

    id = asyncio.run(with_tenant(db, tenant, run))
    screen.emit({"name": name, "job": id}, lambda: f"{id} is queued.", as_json)


async def _start(store: Store, tenant_id: int, flow: str, pairs: list[str], queue: str) -> NewJob:
    """Return the job that starts a flow. Invalid inputs are rejected now, not at each tick."""
    if flow.endswith(FILES):
        given_file = read(flow)
        flow = (await start.put(store, tenant_id, given_file.flow, given_file.library)).public_id
    definition = start.flow_of(await start.find(store, tenant_id, flow))
    return await service.start_of_template(store, tenant_id, flow, start.given(definition, pairs), queue)


async def _change(change: Any, name: str, tenant: str, db: str | None) -> Schedule:
    async def use(store: Store, tenant_id: int) -> Schedule:
        before: Schedule = await change(store, tenant_id, name)
        return before

    found: Schedule = await with_tenant(db, tenant, use)
    return found


# --- drawing


def _table(found: list[Named], now: int) -> RenderableType:
    if screen.stdout().width < WIDE_ENOUGH:
        return _narrow_table(found, now)
    table = screen.table("schedule", "rule", "what", "queue", "next", "last", "")
    for one, flow in found:
        last = screen.ago(one.last_at, now)
        table.add_row(one.name, _rule(one), _what(one, flow), one.queue, _next(one, now), last, _paused(one, now))
    return table


def _narrow_table(found: list[Named], now: int) -> RenderableType:
    table = screen.table("schedule", "next")
    for one, flow in found:
        notes = _paused(one, now) or _next(one, now)
        table.add_row(f"{one.name}\n{_rule(one)}", f"{notes}\n{_what(one, flow)} in {one.queue}")
    return table


def _what(schedule: Schedule, flow: str | None) -> str:
    return schedule.kind if flow is None else f"flow {flow}"


def _rule(schedule: Schedule) -> str:
    if schedule.every_us is not None:
        return service.every(schedule.every_us)
    return f"{schedule.cron} ({schedule.tz})"


def _next(schedule: Schedule, now: int) -> str:
    return "–" if schedule.paused_at is not None else screen.ago(schedule.next_at, now)


def _paused(schedule: Schedule, now: int) -> str:
    return "" if schedule.paused_at is None else f"paused {screen.ago(schedule.paused_at, now)}"


def _facts(named: Named, upcoming: list[str], jobs: list[dict[str, Any]], now: int) -> Iterator[tuple[str, Any]]:
    schedule, flow = named
    yield "schedule", schedule.name
    yield "rule", _rule(schedule)
    yield "kind" if flow is None else "flow", f"{flow or schedule.kind} in {schedule.queue}"
    yield "payload", json.dumps(json.loads(schedule.payload), ensure_ascii=False)
    yield "catch up", schedule.catch_up
    yield "declared by", schedule.declared_by
    yield "paused", schedule.paused_at and screen.ago(schedule.paused_at, now)
    yield "last", schedule.last_at and f"{service.local(schedule, schedule.last_at)}"
    for job in jobs:
        yield "last job", f"{job['id']} {state_name(job['state'])}"
    for place, tick in enumerate(upcoming):
        yield "" if place else "next", tick
