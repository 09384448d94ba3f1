"""The command `keptwork`: its list of commands, and how their errors are shown.

To add a command, add a file to this package and a line to `COMMANDS`. The file is imported when the command is called.
A command prints through `screen.emit`, takes `as_json: screen.Json = False`, and raises a `KeptworkError` if it fails.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from keptwork import __version__
from keptwork.cli import screen
from keptwork.errors import BadInput, KeptworkError, WorkerExhausted

# Import a command only when it is called, so that `keptwork --help` stays fast with many commands.


class Entry(NamedTuple):
    """The `module:name` of a Typer app or a function, and the summary of its command."""

    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group that lists its entries without importing them, and imports the entry that is called."""

    entries: ClassVar[dict[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Placeholders are enough for help, completion, and "did you mean".
        for name, entry in self.entries.items():
            self.add_command(TyperCommand(name, help=entry.summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the requested command and import it in place of its placeholder."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in and load(str(name), self.entries[str(name)]), rest


def load(name: str, entry: Entry) -> Any:
    """Import a command. A group always gets the name, summary, and look of the other groups."""
    module, _, attribute = entry.target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return _group(name, entry, found)
    verb = typer.Typer(add_completion=False, rich_markup_mode=None)
    verb.command(name)(found)
    return get_command(verb)


def _group(name: str, entry: Entry, noun: typer.Typer) -> TyperGroup:
    noun.rich_markup_mode = None
    group = get_group(noun)
    group.name, group.help = name, entry.summary
    return group


COMMANDS = {
    "run": Entry("keptwork.cli.run:run", "Run a flow file and show the result."),
    "agent": Entry("keptwork.cli.agent:agent", "Run an agent task and show its answer and cost."),
    "demo": Entry("keptwork.cli.demo:demo", "Run example jobs and show the event log."),
    "work": Entry("keptwork.cli.work:work", "Run the jobs of an application in this process."),
    "serve": Entry("keptwork.cli.serve:serve", "Serve the HTTP API over a database."),
    "dev": Entry("keptwork.cli.serve:dev", "Serve the API and run jobs in one process, for development."),
    "supervise": Entry("keptwork.cli.workers:supervise", "Run several workers and replace those that die."),
    "workers": Entry("keptwork.cli.workers:app", "List, show, pause, resume, drain, and terminate workers."),
    "jobs": Entry("keptwork.cli.jobs:app", "Enqueue, list, show, cancel, rerun, and wait for jobs."),
    "crews": Entry("keptwork.cli.crews:app", "Submit, list, show, and cancel crews, and set quotas."),
    "approvals": Entry("keptwork.cli.approvals:app", "List, show, approve, and reject approval requests."),
    "webhooks": Entry("keptwork.cli.webhooks:app", "List, show, and resend webhook deliveries."),
    "why": Entry("keptwork.cli.doctor:why", "Show why something is waiting, and when it can continue."),
    "runs": Entry("keptwork.cli.flows:app", "List, show, approve, reject, cancel, hold, and release runs."),
    "workstreams": Entry(
        "keptwork.cli.flows:workstreams_app",
        "List, show, retry, resume, fork, and abandon workstreams.",
    ),
    "steps": Entry("keptwork.cli.flows:steps_app", "List, show, skip, and reset the steps of flows."),
    "templates": Entry("keptwork.cli.templates:app", "Store flow definitions by version, and start them by name."),
    "doctor": Entry("keptwork.cli.doctor:doctor", "Find stuck or inconsistent entities, and repair them."),
    "override": Entry("keptwork.cli.doctor:override", "Force an entity into a state, with a reason."),
    "dead-letters": Entry("keptwork.cli.dead_letters:app", "List, show, and redrive dead letters."),
    "schedules": Entry("keptwork.cli.schedules:app", "List, add, pause, resume, and run schedules."),
    "queues": Entry("keptwork.cli.queues:app", "List, pause, resume, and limit queues."),
    "limits": Entry("keptwork.cli.queues:limits_app", "Show limits and the jobs that wait for them."),
    "breakers": Entry("keptwork.cli.breakers:app", "List, show, and reset circuit breakers."),
    "budgets": Entry("keptwork.cli.budgets:app", "List, show, set, and raise budgets for model calls."),
    "cost": Entry("keptwork.cli.budgets:cost", "Show the cost of model calls by model, tenant, flow, or day."),
    "keys": Entry("keptwork.cli.keys:app", "Create, list, rotate, and revoke API keys."),
    "tenants": Entry("keptwork.cli.keys:tenants_app", "List, add, and limit tenants."),
    "top": Entry("keptwork.cli.top:top", "Watch flows, jobs, queues, workers, and problems live."),
    "stats": Entry("keptwork.cli.stats:stats", "Show metrics of jobs, moves, and leases."),
    "prune": Entry("keptwork.cli.migrate:prune", "Delete jobs and flows that finished long enough ago."),
    "migrate": Entry("keptwork.cli.migrate:migrate", "Create a database, or bring it up to date."),
    "backup": Entry("keptwork.cli.backup:backup", "Write the database to a backup file, and compare both."),
    "restore": Entry("keptwork.cli.backup:restore", "Put a backup in place of the database, and compare both."),
    "events": Entry("keptwork.cli.events:app", "Read the event log."),
    "audit": Entry("keptwork.cli.events:audit_app", "Verify, seal, and export the event log."),
    "flows": Entry("keptwork.cli.templates:flows_app", "Check and draw flow files, and print their JSON Schema."),
    "agents": Entry("keptwork.cli.agents:app", "List agent jobs, their transcripts, and their records."),
    "skills": Entry("keptwork.cli.tools:skills_app", "List skills, and show which skill a task would use."),
    "tools": Entry("keptwork.cli.tools:app", "List the tools of keptwork.toml and check them."),
    "lifecycles": Entry("keptwork.cli.lifecycles:app", "Show the declared lifecycles: their states and moves."),
}

INTERRUPTED = 130  # 128 + SIGINT, as in shells
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
    """Run agent work durably: declared lifecycles, stored and enforced by a database."""
    if version:
        screen.emit({"version": __version__}, lambda: f"keptwork {__version__}", as_json)
        raise typer.Exit
    if context.invoked_subcommand is None:
        screen.emit({"commands": list(COMMANDS)}, context.get_help, as_json)
    elif as_json:
        raise BadInput(what="--json goes after the command, as in: keptwork lifecycles list --json")


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its exit code. The console script calls this function."""
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
    """Return whether an error should be JSON, like the result or the log.

    This function reads the raw arguments, because parsing them can be what failed.
    """
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
    """Return a pointer to the command's help, for a usage error."""
    context = getattr(error, "ctx", None)
    return f"\nTry: {context.command_path} --help" if context else ""


def _reader_left() -> int:
    # The buffered output has no reader. Without this, Python would report an error when it flushes the buffer at
    # exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
