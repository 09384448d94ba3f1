"""Prints the output, signals and steps of one job, once or as they come."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, JobId, Tenant, with_tenant
from keptwork.cli.screen import bytes_written_whole
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.jobs import commands_signals, results, results_artifacts
from keptwork.jobs.queries import size
from keptwork.store.contract.checkpoints import OWN

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from keptwork.jobs.queries import Said, Story
    from keptwork.store import Artifact, Store
    from keptwork.store.contract.checkpoints import Checkpoint
    from keptwork.store.contract.waits_signals import Sent


# `keptwork jobs result|artifacts|artifact`: print the result and the artifacts of a job.


HEAD = 200

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Output file or directory. Use - to write any content to stdout."),
]


def result(
    id: JobId,
    timeout: Annotated[str, typer.Option(metavar="SPAN", help="Maximum time to wait for the job.")] = "0s",
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Print the full result of a successful job as JSON.

    Exit code 1 if the job finished otherwise, 124 if it has not finished.
    """

    async def read(store: Store, tenant_id: int) -> str | None:
        return await results.result_text(store, tenant_id, id, timeout)

    print(asyncio.run(with_tenant(db, tenant, read)) or "null")


def artifacts(id: JobId, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """List a job's artifacts."""

    async def read(store: Store, tenant_id: int) -> list[Artifact]:
        return await results_artifacts.listed(store, tenant_id, id)

    kept = asyncio.run(with_tenant(db, tenant, read))
    shown = {"artifacts": [results_artifacts.as_json(artifact) for artifact in kept]}
    screen.emit(shown, lambda: _table(kept) if kept else "No artifacts.", as_json)


def artifact(
    id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Artifact name.")],
    out: Out = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Write the content of an artifact to stdout or a file, byte for byte.

    With --json and without --out, this command prints only the metadata of the artifact.
    """

    async def read(store: Store, tenant_id: int) -> tuple[Artifact, bytes]:
        return await results_artifacts.content(store, tenant_id, id, name)

    kept, content = asyncio.run(with_tenant(db, tenant, read))
    target = out and _file(out, kept.name)
    if target is None and as_json:
        return screen.emit({"artifact": results_artifacts.as_json(kept)}, str, as_json)
    if target is None and sys.stdout.isatty() and not _is_text(content):
        raise BadInput(what=f"{name!r} is {kept.media_type}, not fit for a terminal; use --out FILE, or --out - anyway")
    with bytes_written_whole(target) as file:
        file.write(content)
    if target is not None and str(target) != "-":
        told = {"artifact": results_artifacts.as_json(kept), "file": str(target)}
        screen.emit(told, lambda: f"{target} has {screen.size(kept.size)}.", as_json)
    return None


def head(row: dict[str, Any], text: str) -> str:
    """Return a result for display. A result that is stored as a separate blob is shortened."""
    if row["result_hash"] is None:
        return text
    id = public_id(JOB.name, row["id"])
    about = f"{screen.size(len(text.encode()))}, the whole of it with: keptwork jobs result {id}"
    return f"{text[:HEAD]} ...\n({about})"


def _file(out: Path, name: str) -> Path:
    """Return the output file.

    A directory gets a file with the artifact's name, which is checked because any program can store any name.
    """
    if not out.is_dir():
        return out
    results_artifacts.check_name(name)
    return out / name


def _is_text(content: bytes) -> bool:
    """Return whether content is text without control characters, which could command a terminal."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return all(sign.isprintable() or sign in "\t\n\r" for sign in text)


def _table(kept: list[Artifact]) -> Table:
    table = screen.table("name", "size", "type", "sha256")
    for artifact in kept:
        table.add_row(artifact.name, screen.size(artifact.size), artifact.media_type, artifact.hash)
    return table


# `keptwork jobs signal`: send a signal that jobs wait for.


def signal(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Signal name.")],
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="Payload of the signal. Use - to read stdin.")
    ] = "null",
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only for this job.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key. A repeated key sends nothing.")
    ] = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Send a signal to the jobs that wait for it now or within a week."""
    told = _read(sys.stdin.read() if payload == "-" else payload)

    async def send(store: Store, tenant_id: int) -> Sent:
        return await commands_signals.send(store, tenant_id, name, told, job=job, key=key)

    sent: Sent = asyncio.run(with_tenant(db, tenant, send))
    jobs = "1 job goes on" if sent.woken == 1 else f"{sent.woken:,} jobs go on"
    said = f"{name} was sent; {jobs}." if sent.new else f"{name} was sent before under that key; nothing was sent."
    screen.emit({"name": name, "sent": sent.new, "woken": sent.woken}, lambda: said, as_json)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"the payload is no JSON: {error}") from None


# The progress and steps of a job, as `keptwork jobs show` draws them.


BAR = 20
OTHER_CODE = "made by other code than the worker has now; its result stands"


def bar(said: Said | None, now: int) -> str | None:
    """Return the progress that the handler reported last, as a bar.

    >>> from keptwork.jobs.queries import Said
    >>> bar(Said(0.42, "page 2", 0), 5_000_000)
    '████████░░░░░░░░░░░░ 42 %  page 2 (5 s ago)'
    """
    if said is None:
        return None
    words = f"  {said.text}" if said.text else ""
    return f"{screen.bar(said.fraction, BAR)} {said.fraction * 100:.3g} %{words} ({screen.ago(said.at, now)})"


def waiting(waits_for: str | None, run_at: int | None, now: int) -> str | None:
    """Return what a suspended job waits for."""
    if waits_for is None:
        return None
    return f"{waits_for}, {screen.ago(run_at, now)}" if waits_for == "sleep" and run_at is not None else waits_for


def table(steps: list[Checkpoint]) -> Table:
    """Return a table of the completed steps, in the order of their completion."""
    drawn = screen.table("step", "done", "size", "epoch", "")
    drawn.columns[1].no_wrap = True
    for one in steps:
        note = OTHER_CODE if one.changed_at is not None else _wait(one)
        drawn.add_row(one.name, screen.moment(one.created_at), screen.size(size(one)), str(one.epoch), note)
    return drawn


def _wait(one: Checkpoint) -> str:
    """Return when a sleep ends. The result of a sleep step is that time."""
    if not one.name.startswith(f"{OWN}sleep "):
        return ""
    try:
        return f"until {screen.moment(int(json.loads(one.result)))}"
    except (ValueError, TypeError, OverflowError):
        return ""


# `keptwork jobs show --watch`: follow a job until it finishes.
#
# On a terminal, the job is redrawn in place. Elsewhere, each change is a line.


GLANCE_SECONDS = 0.25

Look = Callable[[], Awaitable[tuple["Story", int]]]
Draw = Callable[["Story", int], "RenderableType"]


async def watch(look: Look, draw: Draw, shown: Callable[[Story], dict[str, Any]], as_json: bool) -> None:
    """Show a job until it has finished."""
    if as_json:
        await _each_as_json(look, shown)
    elif screen.stdout().is_terminal:
        await _redrawn(look, draw)
    else:
        await _line_by_line(look)


async def _glances(look: Look) -> AsyncIterator[tuple[Story, int]]:
    while True:
        story, now = await look()
        yield story, now
        if JOB.state(story.job["state"]).final:
            return
        await asyncio.sleep(GLANCE_SECONDS)


async def _redrawn(look: Look, draw: Draw) -> None:
    from rich.live import Live

    with Live(console=screen.stdout(), auto_refresh=False, vertical_overflow="crop") as live:
        async for story, now in _glances(look):
            live.update(draw(story, now), refresh=True)


async def _each_as_json(look: Look, shown: Callable[[Story], dict[str, Any]]) -> None:
    before = ""
    async for story, _ in _glances(look):
        line = json.dumps(shown(story))
        if line != before:
            print(line, flush=True)
        before = line


async def _line_by_line(look: Look) -> None:
    told: set[str] = set()
    async for story, _ in _glances(look):
        for line in _lines(story):
            if line not in told:
                print(line, flush=True)
                told.add(line)


def _lines(story: Story) -> Iterator[str]:
    """Yield a line for every event, step, and progress report, in order of time."""
    lines = [(event.ts, 0, f"{event.type}: {event.to_state}") for event in story.events]
    lines += [(step.created_at, 1, _told(step)) for step in story.steps]
    if story.progress is not None:
        lines.append((story.progress.at, 2, str(bar(story.progress, story.progress.at)).removesuffix(" (now)")))
    for at, _, what in sorted(lines):
        yield f"{screen.moment(at)} {what}"


def _told(step: Checkpoint) -> str:
    """Return a line about a step. A wait stores its checkpoint when it starts, other steps when they are done."""
    waits = step.name.startswith(OWN)
    return f"{step.name.removeprefix(OWN)} has begun" if waits else f"step {step.name} is done"
