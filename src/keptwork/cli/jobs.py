"""`keptwork jobs`: enqueue, list, show, cancel, rerun, and wait for jobs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import budget_caps
from keptwork.audit import events as event_service
from keptwork.cli import job_details, screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, JobId, Tenant, operator, with_tenant
from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import FAILED, SUCCEEDED
from keptwork.jobs import queries as service
from keptwork.jobs import queries as step_service
from keptwork.jobs import results_artifacts as artifact_service
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.records import JobFilter

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.store import Store

app = typer.Typer()
app.command()(job_details.result)
app.command()(job_details.artifacts)
app.command()(job_details.artifact)
app.command()(job_details.signal)

Payload = Annotated[str, typer.Argument(metavar="[PAYLOAD]", help="Arguments as a JSON object. Use - to read stdin.")]
Edited = Annotated[
    str | None, typer.Option("--payload", metavar="JSON", help="New arguments as a JSON object. Use - to read stdin.")
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only this state. Repeatable.",
        autocompletion=lambda: [state.name for state in JOB.states],
    ),
]
WIDE_ENOUGH = 120

Again = Annotated[bool, typer.Option("--again", help="Rerun even if it was already rerun.")]


@app.command()
def enqueue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of job: the name of a declared job.")],
    payload: Payload = "{}",
    queue: Annotated[str, typer.Option(metavar="NAME", help="Queue of the job.")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Priority. Higher runs first.")] = 0,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key. A repeated key returns the existing job.")
    ] = None,
    run_in: Annotated[str, typer.Option(metavar="SPAN", help="Delay before the job can run, such as 5m.")] = "0s",
    max_attempts: Annotated[int, typer.Option(metavar="N", help="Maximum number of attempts.")] = 4,
    correlation: Annotated[str | None, typer.Option(metavar="ID", help="Correlation ID.")] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Enqueue a job.

    Pass the queue and the limits that the job declares, because this command does not know them.
    """

    async def put(store: Store, tenant_id: int) -> tuple[dict[str, Any], int]:
        before = await store.now()
        made = await service.enqueue(
            store,
            tenant_id,
            kind,
            _given(payload),
            queue=queue,
            priority=priority,
            key=key,
            run_in=run_in,
            max_attempts=max_attempts,
            correlation_id=correlation,
            actor=operator(),
        )
        return await service.find(store, tenant_id, public_id(JOB.name, made)), before

    row, before = asyncio.run(with_tenant(db, tenant, put))
    made = row["created_at"] >= before
    screen.emit({"job": service.as_json(row), "created": made}, lambda: _enqueued(row, made, before), as_json)


@app.command("list")
def list_(
    state: States = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only this queue.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind of job.")] = None,
    correlation: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs with this correlation ID.")] = None,
    text: screen.Search = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="ID of the last job of the previous page.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="List the oldest first.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List jobs, newest first."""
    states = service.states_named(state or [])

    async def read(store: Store, tenant_id: int) -> tuple[service.Page, int]:
        wanted = JobFilter(tenant_id, states, queue, kind, correlation)
        order = not oldest_first
        found = await service.page(store, wanted, after=after, limit=limit, newest_first=order, text=text)
        return found, await store.now()

    page, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"jobs": [service.as_json(row) for row in page.jobs], "next": page.next},
        lambda: _table(page.jobs, now) if page.jobs else "No jobs.",
        as_json,
    )
    if page.next and not as_json:
        screen.complain(f"There are more; go on with: --after {page.next}")


@app.command()
def show(
    id: JobId,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it finishes.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show one job, its steps, and its history."""

    async def read(store: Store, tenant_id: int) -> tuple[service.Story, int]:
        return await service.show(store, tenant_id, id), await store.now()

    async def keep_up(store: Store, tenant_id: int) -> None:
        await job_details.watch(partial(read, store, tenant_id), _story, _shown, as_json)

    if watch:
        asyncio.run(with_tenant(db, tenant, keep_up))
        return
    story, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(_shown(story), lambda: _story(story, now), as_json)


def _shown(story: service.Story) -> dict[str, Any]:
    return {
        **service.as_json(story.job),
        "waits_for": service.waits_for(story.job),
        "progress": step_service.said_as_json(story.progress),
        "overrun": story.overrun,
        "steps": [step_service.step_json(one) for one in story.steps],
        "artifacts": [artifact_service.as_json(kept) for kept in story.artifacts],
        "redriven_as": [public_id(JOB.name, key) for key in story.redriven_as],
        "events": [event_service.as_json(event) for event in story.events],
    }


@app.command()
def cancel(
    id: JobId,
    hard: Annotated[
        bool, typer.Option("--hard", help="Cancel a running job now, without waiting for its handler.")
    ] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, recorded in the event log.")] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Cancel a job. A running job receives a cancellation request; with --hard, it is cancelled now."""

    async def stop(store: Store, tenant_id: int) -> tuple[str, dict[str, Any], str | None]:
        done = await service.cancel(store, tenant_id, id, hard=hard, reason=reason, actor=operator())
        row = await service.find(store, tenant_id, id)
        return done, row, await budget_caps.left_counted(store, tenant_id, job=row["id"])

    done, row, lost = asyncio.run(with_tenant(db, tenant, stop))
    said = f"{public_id(JOB.name, row['id'])} is {done}."
    if done == "asked to stop":
        said = f"{said[:-1]}; see it end with: keptwork jobs wait {public_id(JOB.name, row['id'])}"
    said += f" {lost}" if lost else ""
    screen.emit({"outcome": done.replace(" ", "_"), "job": service.as_json(row)}, lambda: said, as_json)


@app.command()
def retry(
    id: JobId,
    payload: Edited = None,
    again: Again = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Rerun a failed, cancelled, or dead-lettered job as a new job."""
    edited = None if payload is None else _given(payload)

    async def run(store: Store, tenant_id: int) -> tuple[str, str]:
        new = await service.retry(store, tenant_id, id, payload=edited, again=again, actor=operator())
        return public_id(JOB.name, service.key_of(id)), public_id(JOB.name, new)

    old, new = asyncio.run(with_tenant(db, tenant, run))
    screen.emit({"old": old, "new": new}, lambda: f"{old} runs again as\n{new}", as_json)


@app.command()
def wait(
    id: JobId,
    timeout: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Maximum time to wait. On timeout, the exit code is 124.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Wait until a job finishes.

    Exit code 0 if it succeeded, 1 if it finished otherwise, 124 on timeout.
    """

    async def read(store: Store, tenant_id: int) -> dict[str, Any]:
        return await whole(store, await service.wait(store, tenant_id, id, timeout))

    row = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(service.as_json(row), lambda: _ending(row), as_json)
    if not service.succeeded(row):
        raise typer.Exit(1)


def _given(payload: str) -> str:
    return sys.stdin.read() if payload == "-" else payload


# --- drawing


def state_name(name: str) -> str:
    """Return the label of a state."""
    return name.replace("_", "-")


def _table(rows: list[dict[str, Any]], now: int) -> RenderableType:
    if screen.stdout().width < WIDE_ENOUGH:
        return _narrow_table(rows, now)
    table = screen.table("job", "kind", "state", "", "queue", "attempts")
    table.columns[0].no_wrap = True
    for row in rows:
        attempts = f"{row['attempts']} of {row['max_attempts']}"
        state = state_name(row["state"])
        table.add_row(
            public_id(JOB.name, row["id"]), row["kind"], state, service.lately(row, now), row["queue"], attempts
        )
    return table


def _narrow_table(rows: list[dict[str, Any]], now: int) -> RenderableType:
    """Return jobs as a narrow table.

    IDs are never cut, so that they can be copied. The other values are below them.
    """
    table = screen.table("job", "state")
    table.columns[0].no_wrap = True
    for row in rows:
        id = public_id(JOB.name, row["id"])
        table.add_row(
            f"{id}\n{row['kind']} in {row['queue']}", f"{state_name(row['state'])}\n{service.lately(row, now)}"
        )
    return table


def _enqueued(row: dict[str, Any], made: bool, now: int) -> str:
    id = public_id(JOB.name, row["id"])
    if not made:
        age = screen.span(now - row["created_at"])
        return f"{id} was made under this key {age} ago, and is {state_name(row['state'])}; no other was made."
    due = f", due {screen.ago(row['run_at'], now)}" if row["run_at"] > now + 1_000_000 else ""
    return f"{id} is {row['state']} in {row['queue']}{due}."


def _ending(row: dict[str, Any]) -> str:
    took = screen.span(row["completed_at"] - row["created_at"])
    said = f"{public_id(JOB.name, row['id'])} {_ended(row['state'])} {took} after it was made."
    if service.succeeded(row):
        return said if row["result"] is None else f"{said}\nresult  {job_details.head(row, row['result'])}"
    return "\n".join([said, *(f"{name:<8}{row[name]}" for name in ("reason", "error") if row[name])])


def _ended(state: str) -> str:
    return state_name(state) if state in (SUCCEEDED.name, FAILED.name) else f"was {state_name(state)}"


def _story(story: service.Story, now: int) -> RenderableType:
    from rich.console import Group

    table = screen.table("when", "event", "state", "by", "reason")
    table.columns[0].no_wrap = True
    for event in story.events:
        by = actor_name(event.actor) or "–"
        table.add_row(screen.moment(event.ts), event.type, state_name(event.to_state), by, event.reason or "")
    steps = ("", job_details.table(story.steps)) if story.steps else ()
    return Group(*lines(_facts(story, _shown(story), now)), *steps, "", table)


def lines(facts: Iterator[tuple[str, Any]]) -> list[str]:
    """Return names and values as lines. Empty values are left out."""
    return [f"{name:<16}{value}" for name, value in facts if value not in (None, "", [])]


def _facts(story: service.Story, shown: dict[str, Any], now: int) -> Iterator[tuple[str, Any]]:
    row = story.job
    yield "job", shown["id"]
    yield "kind", row["kind"]
    yield "state", f"{state_name(row['state'])}, {service.lately(row, now)}"
    yield "progress", job_details.bar(story.progress, now)
    yield "overrun", story.overrun
    for name, until in story.waits or [(shown["waits_for"], row["run_at"])]:
        yield "waits for", job_details.waiting(name, until, now)
    yield "held because", row["held_by"] and row["reason"]
    yield "queue", f"{row['queue']}, priority {row['priority']}"
    yield "attempts", f"{row['attempts']} of {row['max_attempts']}, then {row['on_exhausted'].replace('_', ' ')}"
    yield "made", f"{screen.moment(row['created_at'])} ({screen.ago(row['created_at'], now)})"
    yield "worker", shown["owner"]
    yield "lease until", row["lease_until"] and screen.moment(row["lease_until"])
    yield "key", row["key"]
    yield "correlation", row["correlation_id"]
    yield "run again from", shown["redriven_from"]
    yield "run again as", ", ".join(shown["redriven_as"])
    yield "payload", json.dumps(shown["payload"], ensure_ascii=False)
    yield "result", row["result"] and job_details.head(row, json.dumps(shown["result"], ensure_ascii=False))
    yield "artifacts", ", ".join(f"{kept.name} ({screen.size(kept.size)})" for kept in story.artifacts)
    yield "error", row["error"]
