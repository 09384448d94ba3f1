"""The command `keptwork`: the list of commands, and what becomes of their errors.

A new command is one file beside this one and one line in `COMMANDS`. Its modules are imported when it is
called; it prints through `screen.emit`, takes `as_json: screen.Json = False`, and raises a `KeptworkError`
when it cannot go on.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer

from keptwork import __version__
from keptwork.cli import screen
from keptwork.cli.lazy import Entry, LazyGroup
from keptwork.errors import BadInput, KeptworkError, WorkerExhausted

COMMANDS = {
    "run": Entry("keptwork.cli.run:run", "Carry out a flow file here and now, and tell what became of it."),
    "agent": Entry("keptwork.cli.agent:agent", "Ask an agent here and now, and see what it says and costs."),
    "demo": Entry("keptwork.cli.demo:demo", "Take real jobs through their lifecycle and show the event log."),
    "work": Entry("keptwork.cli.work:work", "Run the jobs of an application in this process."),
    "serve": Entry("keptwork.cli.serve:serve", "Serve the HTTP API over a database."),
    "dev": Entry("keptwork.cli.dev:dev", "Serve the HTTP API and run jobs here, for development."),
    "supervise": Entry(
        "keptwork.cli.supervise:supervise", "Run several workers of an application and replace the dead."
    ),
    "workers": Entry("keptwork.cli.workers:app", "See the workers; pause, resume, drain and terminate them."),
    "jobs": Entry("keptwork.cli.jobs:app", "Put jobs into queues; find, stop, retry and await them."),
    "crews": Entry("keptwork.cli.crews:app", "Give a task to several workers; see, cancel and limit such crews."),
    "approvals": Entry("keptwork.cli.approvals:app", "See what jobs ask people; approve or reject it."),
    "webhooks": Entry("keptwork.cli.webhooks:app", "See what flows tell to the outside when they end; send it again."),
    "why": Entry(
        "keptwork.cli.why:why", "Tell why a job, a crew, a step or a flow is not moving, and when that clears."
    ),
    "runs": Entry("keptwork.cli.runs:app", "See the runs; approve, reject, cancel, hold and release them."),
    "workstreams": Entry("keptwork.cli.workstreams:app", "See the workstreams; retry, resume, fork and abandon them."),
    "steps": Entry("keptwork.cli.steps:app", "See the steps of flows and what came of them; skip and reset them."),
    "templates": Entry("keptwork.cli.templates:app", "Keep definitions of flows by version, and start them by name."),
    "doctor": Entry("keptwork.cli.doctor:doctor", "Find what is stuck or contradicts itself, and mend it."),
    "override": Entry(
        "keptwork.cli.override:override", "Put something into a state past its lifecycle, with a reason."
    ),
    "dead-letters": Entry("keptwork.cli.dead_letters:app", "See the jobs that were given up, and run them again."),
    "schedules": Entry(
        "keptwork.cli.schedules:app", "See what is done again and again; add, pause, resume, run it now."
    ),
    "queues": Entry("keptwork.cli.queues:app", "See what waits in the queues; pause, resume and limit them."),
    "limits": Entry("keptwork.cli.limits:app", "See the limits of jobs and queues, and what waits behind them."),
    "breakers": Entry("keptwork.cli.breakers:app", "See what is held back because something fails; reset it."),
    "budgets": Entry("keptwork.cli.budgets:app", "See what may be spent on models and what is; give more."),
    "cost": Entry("keptwork.cli.cost:cost", "Show what was spent on models, by model, tenant, flow or day."),
    "keys": Entry("keptwork.cli.keys:app", "See who may use the HTTP API; make, rotate and revoke keys."),
    "tenants": Entry("keptwork.cli.tenants:app", "See whose work the database holds; add a tenant."),
    "top": Entry("keptwork.cli.top:top", "Watch flows, jobs, queues and workers, and what needs somebody; like top."),
    "stats": Entry(
        "keptwork.cli.stats:stats", "Show what was counted: jobs, times, moves, leases; also for Prometheus."
    ),
    "prune": Entry("keptwork.cli.prune:prune", "Delete jobs, flows and others that have been over for long enough."),
    "migrate": Entry("keptwork.cli.migrate:migrate", "Make a database, or bring it up to date."),
    "backup": Entry("keptwork.cli.backup:backup", "Write the database into a backup file and compare both."),
    "restore": Entry("keptwork.cli.restore:restore", "Put a backup in place of the database and compare both."),
    "events": Entry("keptwork.cli.events:app", "Read the event log: one event for every move of every entity."),
    "audit": Entry("keptwork.cli.audit:app", "Check the event log against the database; export it."),
    "flows": Entry("keptwork.cli.flows:app", "Check and draw flow files; their JSON Schema."),
    "agents": Entry("keptwork.cli.agents:app", "See the agent jobs, what was chosen for them, and the record of each."),
    "skills": Entry("keptwork.cli.skills:app", "See what agents are good at, and which skill a task goes to."),
    "tools": Entry("keptwork.cli.tools:app", "See the tools of keptwork.toml, and check that they could run here."),
    "lifecycles": Entry("keptwork.cli.lifecycles:app", "Show the declared lifecycles: their states and moves."),
}

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
FAILED = 1


class Commands(LazyGroup):
    """The commands of `keptwork`."""

    entries = COMMANDS


app = typer.Typer(
    name="keptwork",
    cls=Commands,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def keptwork(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    as_json: screen.Json = False,
) -> None:
    """Run agent work durably: declared lifecycles, kept and enforced by a database."""
    if version:
        screen.emit({"version": __version__}, lambda: f"keptwork {__version__}", as_json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        screen.emit({"commands": list(COMMANDS)}, context.get_help, as_json)
    elif as_json:
        raise BadInput(what="--json goes after the command, as in: keptwork lifecycles list --json")


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console entry: run the command, and leave with the exit code of what happened."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    screen.survive_closed_streams()
    screen.survive_any_encoding()
    sys.exit(_outcome(given))


def _outcome(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="keptwork", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # Without room for a thread, asyncio cannot end its own threads either: what ended the worker comes first.
        return _failed(
            error.__context__ if isinstance(error.__context__, WorkerExhausted) else error, wants_json(arguments)
        )
    return code if isinstance(code, int) else 0


def wants_json(arguments: list[str]) -> bool:
    """Whether an error should be JSON, like the result or the log: asked of the bare arguments, for parsing them may be
    what fails."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    logs_json = "--log=json" in options or ("--log", "json") in pairwise(options)
    return "--json" in options or logs_json or os.environ.get("KEPTWORK_LOG") == "json"


def _failed(error: Exception, as_json: bool) -> int:
    if os.environ.get("KEPTWORK_DEBUG") == "1":
        traceback.print_exception(error)
    if as_json:
        screen.complain({"error": {"type": type(error).__name__, "message": _message(error)}})
    else:
        screen.complain(f"keptwork: {_message(error)}{_hint(error)}")
    return int(getattr(error, "exit_code", FAILED))


def _message(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, typer.Abort):
        return "stopped: there was no answer to the question"
    if isinstance(error, KeptworkError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}; KEPTWORK_DEBUG=1 shows where"


def _hint(error: Any) -> str:
    """A usage error carries the context of its command: say where its help is."""
    context = getattr(error, "ctx", None)
    return f"\nTry: {context.command_path} --help" if context else ""


def _reader_left() -> int:
    # What is still buffered has no reader; Python would complain about it on the way out.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
