"""`keptwork workers`: list, show, and control workers on any host."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import events as event_service
from keptwork.cli import screen, work
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.work import Grace, Lease, MaxMemory, Migrate, Queues, SupervisorTimeout, Target
from keptwork.core.durations import rfc3339, size_bytes, span_us
from keptwork.core.ids import actor_name, public_id, states_named
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.observability import logs
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers import commands as service
from keptwork.workers.supervisor import Plan, Supervisor

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


# `keptwork supervise`: run several workers of an application on this host, and replace those that die.


log = logging.getLogger("keptwork")


def supervise(
    target: Target,
    workers: Annotated[int, typer.Option("--workers", min=1, max=1000, metavar="N", help="Number of workers.")] = 2,
    db: Db = None,
    queues: Queues = "",
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum concurrent jobs of each worker.")] = 32,
    lease: Lease = None,
    grace: Grace = "30s",
    max_memory: MaxMemory = None,
    supervisor_timeout: SupervisorTimeout = "60s",
    migrate: Migrate = False,
    log_form: work.Log = None,
    as_json: screen.Json = False,
) -> None:
    """Run workers and replace those that die, with growing delays if they die at start.

    SIGTERM or Ctrl-C lets all workers finish their running jobs; a second signal kills the workers. SIGHUP restarts
    them one after another. With --json, each event is one line of JSON.

    Without --migrate, a missing or outdated database is rejected with exit code 2. If the database server is
    unreachable, the workers wait for it.
    """
    if max_memory is not None:
        size_bytes(max_memory)  # report an invalid size here, not in every worker
    options = {"--db": db, "--queues": queues, "--lease": lease, "--max-memory": max_memory}
    given = [part for name, value in options.items() if value for part in (name, value)]
    always = ["--grace", grace, "--supervisor-timeout", supervisor_timeout, "--concurrency", str(concurrency)]
    argv = [sys.executable, "-m", "keptwork", "work", target, *given, *always]
    plan = Plan(workers, [*argv, "--migrate"] if migrate else argv, span_us(grace), span_us(supervisor_timeout))
    # The workers log in the same format, which they read from the environment. The supervisor has no spans.
    with logs.to_stderr(logs.form_wanted(log_form), work.console_handler()):
        replaced = asyncio.run(_run(plan, as_json))
    if not as_json:
        log.info("all workers have ended, %d had been replaced", replaced)


async def _run(plan: Plan, as_json: bool) -> int:
    supervisor = Supervisor(plan, _tell_json if as_json else _tell, _said_json if work.shows_json(None) else _line_said)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.restart)
    shown = None
    if screen.stderr().is_terminal and not as_json and not work.shows_json(None):
        shown = asyncio.create_task(work.keep_up(supervisor.standing))
    try:
        return await supervisor.run()
    finally:
        if shown is not None:
            shown.cancel()
            await asyncio.wait([shown])


def _tell(event: str, message: str, **facts: Any) -> None:
    last = facts.get("last_words") or []
    about = {"keptwork": {"event": event, **facts}}
    log.log(logging.WARNING if last else logging.INFO, "%s", "\n  | ".join([message, *last]), extra=about)


def _tell_json(event: str, message: str, **facts: Any) -> None:
    at = rfc3339(time.time_ns() // 1000)
    print(json.dumps({"at": at, "event": event, "message": message, **facts}), flush=True)


def _line_said(place: int, line: str) -> None:
    """Print a line of a worker unchanged, after the number of the worker."""
    screen.stderr().print(f"[{place}] {line}", soft_wrap=True)


def _said_json(place: int, line: str) -> None:
    """Pass on JSON lines unchanged, and log all other output of a worker."""
    try:
        is_record = isinstance(json.loads(line), dict)
    except ValueError:
        is_record = False
    if is_record:
        print(line, file=sys.stderr, flush=True)
    else:
        log.info("%s", line, extra={"keptwork": {"place": place}})
