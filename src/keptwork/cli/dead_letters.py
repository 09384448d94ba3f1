"""`keptwork dead-letters`: list, show, and redrive dead letters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened, operator
from keptwork.cli.jobs import WIDE_ENOUGH, Again, Edited, lines
from keptwork.core.durations import moment_us
from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.jobs import dead_letters as service
from keptwork.jobs.queries import document

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.records import JobFilter
    from keptwork.store.contract.store import Store

app = typer.Typer()

Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Only this queue.")]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Only this kind of job.")]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="CODE",
        help="Only this reason code: " + ", ".join(DEAD_LETTER_REASONS) + ".",
        autocompletion=lambda: list(DEAD_LETTER_REASONS),
    ),
]
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only jobs dead-lettered since this time; 10m means ten minutes ago.")
]


@app.command("list")
def list_(
    queue: Queue = None,
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    text: screen.Search = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="ID of the last job of the previous page.")] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List dead letters, newest job first."""

    async def read() -> tuple[list[dict[str, Any]], list[dict[str, Any]], str | None, int]:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            wanted = await _among(store, tenant_id, queue, kind, reason, since)
            found = await service.page(store, wanted, after=after, limit=limit, text=text)
            later = await service.later_jobs(store, tenant_id, found.jobs)
            shown = [service.as_json(row, later[row["id"]]) for row in found.jobs]
            return found.jobs, shown, found.next, await store.now()

    rows, shown, next, now = asyncio.run(read())
    screen.emit(
        {"dead_letters": shown, "next": next},
        lambda: _table(rows, shown, now) if rows else "No dead letters.",
        as_json,
    )
    if next and not as_json:
        screen.complain(f"There are more; go on with: --after {next}")


@app.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="Public ID of the job.")],
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Show why one job was dead-lettered. For its full history, run: keptwork jobs show ID"""

    async def read() -> tuple[dict[str, Any], dict[str, Any], int]:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            row = await service.find(store, tenant_id, id)
            later = await service.later_jobs(store, tenant_id, [row])
            return row, service.as_json(row, later[row["id"]]), await store.now()

    row, shown, now = asyncio.run(read())
    screen.emit(
        {**shown, "payload": document(row["payload"])},
        lambda: "\n".join(lines(_facts(row, shown, now))),
        as_json,
    )


@app.command()
def redrive(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Dead letter to redrive. Omit it to choose by options.")
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Redrive every dead letter that matches the other options.")
    ] = False,
    queue: Queue = None,
    kind: Kind = None,
    reason: Reason = None,
    since: Since = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the number.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Maximum number to redrive, oldest first.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Maximum number to redrive per second.")] = None,
    payload: Edited = None,
    again: Again = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Redrive dead letters as new jobs: one by ID, or many by queue, kind, reason, and time.

    Without --again, this command skips dead letters that were already rerun.
    """
    chooses = any((all, queue, kind, reason, since))
    _check_choice(id, chooses, payload)

    async def run() -> None:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            if id:
                await _redrive_one(store, tenant_id, id, payload, again, dry_run, as_json)
                return
            wanted = await _among(store, tenant_id, queue, kind, reason, since)
            if dry_run:
                _announce(await service.count(store, wanted, again=again, limit=limit), as_json)
                return
            await _redrive_many(store, wanted, again, limit, rate, as_json)

    asyncio.run(run())


def _check_choice(id: str | None, chooses: bool, payload: str | None) -> None:
    if id and chooses:
        raise BadInput(what="name one dead letter or choose many by options, not both")
    if not id and not chooses:
        raise BadInput(what="say which: an ID, or --queue, --kind, --reason, --since, or --all")
    if payload is not None and not id:
        raise BadInput(what="--payload goes with the ID of one dead letter")


async def _redrive_one(
    store: Store, tenant_id: int, id: str, payload: str | None, again: bool, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        row = await service.find(store, tenant_id, id)
        before = (await service.later_jobs(store, tenant_id, [row]))[row["id"]]
        _announce(0 if before and not again else 1, as_json)
        return
    edited = sys.stdin.read() if payload == "-" else payload
    done = await service.redrive_one(store, tenant_id, id, payload=edited, again=again, actor=operator())
    _report([_said(done, as_json)], as_json)


async def _redrive_many(
    store: Store, wanted: JobFilter, again: bool, limit: int | None, rate: float | None, as_json: bool
) -> None:
    """Redrive jobs and print each one immediately, because a low rate can take a long time."""
    done = service.redrive(store, wanted, again=again, limit=limit, rate=rate, actor=operator())
    _report([_said(one, as_json) async for one in done], as_json)


def _said(done: service.Redriven, as_json: bool) -> dict[str, str]:
    pair = {"old": public_id(JOB.name, done.old), "new": public_id(JOB.name, done.new)}
    if not as_json:
        print(f"{pair['old']} → {pair['new']}", flush=True)
    return pair


def _report(pairs: list[dict[str, str]], as_json: bool) -> None:
    screen.emit({"redriven": pairs, "count": len(pairs)}, lambda: f"Ran {_number(len(pairs))} again.", as_json)


def _announce(count: int, as_json: bool) -> None:
    screen.emit({"would_redrive": count}, lambda: f"{_number(count)} would run again; nothing was changed.", as_json)


def _number(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


async def _among(
    store: Store, tenant_id: int, queue: str | None, kind: str | None, reason: str | None, since: str | None
) -> JobFilter:
    start = moment_us(since, await store.now()) if since else None
    return service.among(tenant_id, queue=queue, kind=kind, reason_code=reason, since=start)


def _table(rows: list[dict[str, Any]], shown: list[dict[str, Any]], now: int) -> RenderableType:
    """Return dead letters as a table.

    IDs are never cut, so that they can be copied. On a narrow terminal, the other values are below them.
    """
    cells = [_cells(row, letter, now) for row, letter in zip(rows, shown, strict=True)]
    if screen.stdout().width < WIDE_ENOUGH:
        table = screen.table("job", "given up")
        for id, kind, *rest in cells:
            table.add_row(f"{id}\n{kind}", "\n".join(filter(None, rest)))
    else:
        table = screen.table("job", "kind", "given up", "reason", "last error", "")
        for row_cells in cells:
            table.add_row(*row_cells)
    table.columns[0].no_wrap = True
    return table


def _cells(row: dict[str, Any], letter: dict[str, Any], now: int) -> tuple[str, ...]:
    error = (row["error"] or "").partition("\n")[0][:80]
    again = "run again" if letter["redriven_as"] else ""
    return letter["id"], row["kind"], screen.ago(row["completed_at"], now), letter["reason_code"] or "–", error, again


def _facts(row: dict[str, Any], shown: dict[str, Any], now: int) -> Iterator[tuple[str, Any]]:
    stage = f" in stage {shown['stage']}" if shown["stage"] else ""
    yield "job", shown["id"]
    yield "kind", row["kind"]
    yield "queue", row["queue"]
    yield "given up", f"{screen.moment(row['completed_at'])} ({screen.ago(row['completed_at'], now)})"
    yield "reason", f"{shown['reason_code'] or 'none given'}{stage}"
    yield "last error", row["error"]
    yield "attempts", f"{row['attempts']} of {row['max_attempts']}"
    yield "last worker", shown["last_owner"]
    yield "its lease until", shown["last_lease_expires_at"]
    yield "correlation", row["correlation_id"]
    yield "payload", row["payload"]
    yield "run again from", shown["redriven_from"]
    yield "run again as", ", ".join(shown["redriven_as"])
