"""`keptwork agents`: list agent jobs, and show the choices, transcript, and record of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import commands as service
from keptwork.agents import transcripts
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.cli.jobs import lines
from keptwork.core.ids import public_id, states_named
from keptwork.core.lifecycles import AGENT
from keptwork.core.money import dollars
from keptwork.process.output import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.agents import AgentAudit
    from keptwork.store.contract.store import Store

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the agent job, or of its job.")]
LONGEST = 60


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="Only agent jobs in this state. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List agent jobs, newest first."""
    states = states_named(AGENT, state or [])

    async def read(store: Store, tenant_id: int) -> tuple[list[dict[str, Any]], int]:
        return await service.listed(store, tenant_id, states=states, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {"agents": [service.as_json(row) for row in found]}
    screen.emit(shown, lambda: _table(found, now) if found else "No agent jobs.", as_json)


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show an agent job: its skill and model with the reasons, its use of tokens, and its moves."""

    async def read(store: Store, tenant_id: int) -> service.Story:
        return await service.story(store, tenant_id, id)

    story = asyncio.run(with_tenant(db, tenant, read))
    moves = [
        {"at": screen.moment(one.ts), "move": one.trigger, "to": one.to_state, "reason": one.reason}
        for one in story.events
    ]
    screen.emit({**service.as_json(story.agent), "moves": moves}, lambda: "\n".join(_story(story)), as_json)


@app.command()
def audit(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show the record of a finished agent job: its states, agent, cost, and answer."""

    async def read(store: Store, tenant_id: int) -> AgentAudit:
        return await service.audit(store, tenant_id, id)

    record = service.audit_as_json(asyncio.run(with_tenant(db, tenant, read)))
    screen.emit(record, lambda: "\n".join(_record(record)), as_json)


@app.command()
def transcript(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show the conversation of an agent job: its instructions, prompts, answers, and tool calls."""

    async def read(store: Store, tenant_id: int) -> tuple[str, list[dict[str, Any]]]:
        row = await service.find(store, tenant_id, id)
        said = await transcripts.transcript(store, tenant_id, row["job_id"] or 0)
        return public_id(AGENT.name, row["id"]), [transcripts.as_json(one) for one in said]

    agent, said = asyncio.run(with_tenant(db, tenant, read))
    nothing = f"{agent} has no transcript: nothing was sent to a model yet, or it was pruned with its job."
    screen.emit({"id": agent, "transcript": said}, lambda: "\n".join(_talk(said)) or nothing, as_json)


def _talk(said: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a conversation, message by message."""
    tools = {use["id"]: use["name"] for one in said for use in one.get("uses", ())}
    for one in said:
        of = f" {harmless(tools.get(one.get('answers'), ''))}".rstrip()
        again = f", try {one['round'] + 1}" if one["round"] else ""
        yield f"{one['role']}{of}{' failed' if one.get('failed') else ''} ({one['at']}{again})"
        yield from (f"  {harmless(line)}".rstrip() for line in one["text"].splitlines())
        for use in one.get("uses", ()):
            yield harmless(f"  → {use['name']} {json.dumps(use['arguments'], ensure_ascii=False)}")


def _table(found: list[dict[str, Any]], now: int) -> RenderableType:
    table = screen.table("agent job", "state", "skill", "model", "tries", "cost", "made", "description")
    for row in found:
        table.add_row(
            public_id(AGENT.name, row["id"]),
            row["state"],
            row["skill"] or "–",
            row["model"] or "–",
            str(row["retry_count"] + 1),
            dollars(row["cost_micros"]),
            screen.ago(row["created_at"], now),
            _short(row["description"]),
        )
    return table


def _story(story: service.Story) -> Iterator[str]:
    row = story.agent
    yield f"{public_id(AGENT.name, row['id'])} is {row['state']}"
    reasons = {} if row["reasons"] is None else json.loads(row["reasons"])
    skill, model = f"{row['skill']}: {reasons.get('skill')}", f"{row['model']} of {row['provider']}"
    facts = {
        **_asked(row["description"], public_id(AGENT.name, row["id"])),
        "skill": None if row["skill"] is None else skill,
        "tier": None if row["tier"] is None else f"{row['tier']}: {reasons.get('tier')}",
        "model": None if row["model"] is None else model,
        "retries": f"{row['retry_count']} of {row['max_retries']}",
        "calls": f"{row['calls']}, {row['input_tokens']:,} + {row['output_tokens']:,} tokens",
        "cost": dollars(row["cost_micros"]),
        "reason": row["reason"],
    }
    yield from lines(iter(facts.items()))
    for event in story.events:
        why = f"  {_short(event.reason, 120)}" if event.reason else ""
        yield f"  {screen.moment(event.ts)}  {event.trigger:<8} {event.to_state}{why}"
    if row["llm_response"]:
        yield f"\n{row['llm_response']}"


def _record(record: dict[str, Any]) -> Iterator[str]:
    yield f"{record['job_id']}: {record['status']}"
    agent = record["agent"] or {}
    facts = {
        **_asked(record["description"], record["job_id"]),
        "states": " → ".join(record["state_transitions"]),
        "agent": ", ".join(f"{name} {agent[name]}" for name in ("skill", "tier", "model") if name in agent) or None,
        "retries": f"{record['retry_count']} of {record['max_retries']}",
        "calls": f"{record['calls']}, {record['input_tokens']:,} + {record['output_tokens']:,} tokens",
        "cost": dollars(record["cost_micros"]),
        "started": record["started_at"],
        "completed": f"{record['completed_at']}, after {screen.took(record['duration_ms'] * 1_000)}",
        "reason": record["reason"],
    }
    yield from lines(iter(facts.items()))
    if record["llm_response"]:
        yield f"\n{record['llm_response']}"


def _asked(description: str, agent: str) -> dict[str, str | None]:
    """Return the facts about a prompt. Only the start of a long prompt is on record."""
    text, sent = service.shortened(description)
    whole = None if sent is None else f"{sent}; all of it: keptwork agents transcript {agent}"
    return {"asked": _short(text, 200), "sent": whole}


def _short(text: str, longest: int = LONGEST) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
