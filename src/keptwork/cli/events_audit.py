"""`keptwork audit`: check the event log against the rows, seal it, and export it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.audit import seals
from keptwork.audit import verify as service
from keptwork.cli import screen
from keptwork.cli.database import Db, opened
from keptwork.cli.screen_outfile import written_whole
from keptwork.store.contract.events_seals import Seal

if TYPE_CHECKING:
    from rich.console import RenderableType

audit_app = typer.Typer()

PROBLEMS = 1


@audit_app.command()
def verify(
    against: Annotated[
        str | None, typer.Option(metavar="HASH", help="Hash of a seal that you stored elsewhere.")
    ] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Replay all events, compare them with the rows, and check every seal.

    Exit code 1 if anything does not match.
    """

    async def check() -> service.Verdict:
        async with opened(db) as store:
            with screen.progress("Verifying", "events") as told:
                return await service.verify(store, told, against=against)

    began = time.perf_counter()
    verdict = asyncio.run(check())
    seconds = time.perf_counter() - began
    screen.emit(as_dict(verdict), lambda: drawn(verdict, seconds), as_json)
    if not verdict.clean:
        raise typer.Exit(PROBLEMS)


@audit_app.command()
def seal(db: Db = None, as_json: screen.Json = False) -> None:
    """Seal the unsealed events and print the newest seal, a line to store elsewhere."""

    async def make() -> tuple[int, Seal | None]:
        async with opened(db) as store, store.acknowledging():
            return await seals.seal(store), await store.last_seal()

    events, last = asyncio.run(make())
    result = {"events": events, "seal": None if last is None else last._asdict()}
    screen.emit(result, lambda: _sealed(events, last), as_json)


@audit_app.command()
def export(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Output file. Default: stdout.")] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Cursor that an earlier export printed. Writes only later events."),
    ] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Write every event as a line of JSON, in commit order. The file appears when it is complete."""

    async def write() -> service.Exported:
        async with opened(db) as store:
            with screen.progress("Exporting", "events") as told, written_whole(file) as output:
                return await service.export(store, output.write, told, after=after)

    done = asyncio.run(write())
    result = {"events": done.events, "left": done.left, "cursor": done.cursor}
    if file and str(file) != "-":
        screen.emit({"file": str(file), **result}, lambda: _exported(file, done), as_json)


def as_dict(verdict: service.Verdict) -> dict[str, Any]:
    """Return a verdict as JSON data."""
    return {
        "clean": verdict.clean,
        "events": verdict.events,
        "entities": verdict.entities,
        "rows": verdict.rows,
        "sealed": {
            "seals": verdict.sealed.seals,
            "events": verdict.sealed.events,
            "hash": verdict.sealed.last and verdict.sealed.last.hash,
        },
        "problem_count": verdict.problem_count,
        "problems": [problem._asdict() for problem in verdict.problems],
    }


def drawn(verdict: service.Verdict, seconds: float) -> RenderableType:
    """Return a verdict as text: its problems, if any, and a summary."""
    from rich.console import Group

    rows = ", ".join(f"{count:,} {name}" for name, count in verdict.rows.items() if count) or "none"
    read = f"{verdict.events:,} events of {verdict.entities:,} entities replayed in {seconds:.1f} s; rows: {rows}."
    covered, number = verdict.sealed.events, verdict.sealed.seals
    sealed = f"{covered:,} of the events are sealed, by {number:,} seal{'' if number == 1 else 's'}."
    if verdict.clean:
        return Group(read, sealed, "Clean: no gap, no broken seal, and the state of every row matches its events.")
    count = "1 problem" if verdict.problem_count == 1 else f"{verdict.problem_count:,} problems"
    more = verdict.problem_count - len(verdict.problems)
    last = f"NOT clean: {count}" + (f", of which the first {len(verdict.problems):,} are shown." if more else ".")
    hint = ["Guards are put back with: keptwork migrate --guards"] if _lacks_guards(verdict) else []
    return Group(_problems(verdict.problems), "", read, sealed, last, *hint)


def _lacks_guards(verdict: service.Verdict) -> bool:
    return any(problem.what.startswith("the guard ") for problem in verdict.problems)


def _problems(problems: list[service.Problem]) -> RenderableType:
    table = screen.table("entity", "where", "problem")
    table.columns[0].no_wrap = True
    for problem in problems:
        table.add_row(problem.entity, problem.where, problem.what)
    return table


def _sealed(events: int, last: Seal | None) -> str:
    if last is None:
        return "There are no events to seal."
    new = f"{events:,} events are sealed now, " if events else "Nothing was left to seal: "
    return (
        f"{new}{last.total:,} in all.\nSeal {last.number}: {last.hash}\n"
        "Kept elsewhere, it tells later whether anything before it was changed:\n"
        f"  keptwork audit verify --against {last.hash}"
    )


def _exported(file: Path, done: service.Exported) -> str:
    line = f"{done.events:,} events are in {file}."
    if done.left:
        line += f" {done.left:,} more were committed beside a transaction that is still open; export again later."
    return line + (f" Later ones: --after {done.cursor}" if done.cursor else "")
