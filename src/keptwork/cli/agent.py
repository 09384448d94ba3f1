"""`keptwork agent`: run one agent task in this process, with a worker for that task only."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator
from keptwork.cli.tools import File as Config
from keptwork.errors import BadInput
from keptwork.observability import otel

if TYPE_CHECKING:
    from keptwork.handles_agent import Ask

LARGEST_SCHEMA = 256 << 10

Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="Task for the agent. Use - to read stdin.")]
Tier = Annotated[
    str | None,
    typer.Option(metavar="TIER", help="Model tier: haiku, sonnet, or opus. Default: chosen by task difficulty."),
]
Skill = Annotated[str | None, typer.Option(metavar="NAME", help="Skill. Default: chosen from the task text.")]
SchemaFile = Annotated[
    Path | None, typer.Option("--schema", metavar="FILE", help="JSON Schema that the answer must match.")
]
Retries = Annotated[int, typer.Option(metavar="N", help="Maximum retries of a failed model call.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="ID", help="ID of the unfinished agent job to resume.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="USD", help="Maximum cost in US dollars.")]


def agent(
    text: Text = None,
    tier: Tier = None,
    skill: Skill = None,
    schema: SchemaFile = None,
    max_retries: Retries = 3,
    budget: Budget = None,
    resume: Resume = None,
    config: Config = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Run an agent task. Streams the answer, then shows the model, duration, and cost.

    Exit code 0 if there is an answer, 1 if there is none, 2 for invalid input, 130 if it was interrupted. Ctrl-C
    cancels the task. The answer goes to stdout, everything else to stderr. With --json, one document goes to stdout at
    the end.
    """
    from keptwork.cli.agent_session import Session

    session = Session(db, tenant, config, as_json)
    if resume is not None:
        if text is not None:
            raise BadInput(what="--resume goes on with what was asked before; leave out the text")
        with otel.traced("keptwork-agent"):
            raise typer.Exit(asyncio.run(session.resumed(resume)))
    asked = _text(text)
    ask: Ask = {"tier": tier, "skill": skill, "schema": _schema(schema), "max_retries": max_retries}
    ask |= {"budget_usd": budget, "queue": f"agent-{secrets.token_hex(8)}", "actor": operator()}
    with otel.traced("keptwork-agent"):
        raise typer.Exit(asyncio.run(session.started(asked, ask)))


def _text(given: str | None) -> str:
    """Return the task text. Reject an invalid text before anything is stored."""
    from keptwork.agents.commands import LONGEST_DESCRIPTION, insist_fit

    if given is None:
        raise BadInput(what='say what the agent is to do, as in: keptwork agent "Summarise the changelog"')
    said = sys.stdin.read(LONGEST_DESCRIPTION + 1) if given == "-" else given
    insist_fit(said)
    return said


def _schema(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        if file.stat().st_size > LARGEST_SCHEMA:
            raise BadInput(what=f"{file} is larger than {LARGEST_SCHEMA >> 10} KiB")
        found = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(what=f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(what=f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(what=f"{file} is no JSON Schema: it must be an object")
    return found
