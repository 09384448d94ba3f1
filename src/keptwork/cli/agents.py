"""`keptwork agents`: the agent jobs, what was chosen for them, and the record of each that has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.budget import dollars
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.cli.jobs import lines
from keptwork.lifecycle import AGENT
from keptwork.service import agents as service
from keptwork.service.entities import public_id, states_named

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.agents import AgentAudit
    from keptwork.store.protocol import Store

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="The agent job, by its public id or that of its job.")]
LONGEST = 60


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="Only in these states; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List agent jobs, the newest first."""
    states = states_named(AGENT, state or [])

    async def read(store: Store, tenant_id: int) -> tuple[list[dict[str, Any]], int]:
        return await service.listed(store, tenant_id, states=states, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    shown = {"agents": [service.as_json(row) for row in found]}
    screen.emit(shown, lambda: _table(found, now) if found else "No agent jobs.", as_json)


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show an agent job: what was chosen for it and why, what it took, and every move it made."""

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
    """Show the record of an agent job that has ended: its states, its agent, its cost, its answer."""

    async def read(store: Store, tenant_id: int) -> AgentAudit:
        return await service.audit(store, tenant_id, id)

    record = service.audit_as_json(asyncio.run(with_tenant(db, tenant, read)))
    screen.emit(record, lambda: "\n".join(_record(record)), as_json)


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
        "asked": _short(row["description"], 200),
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
        "asked": _short(record["description"], 200),
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


def _short(text: str, longest: int = LONGEST) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
