"""Start, list, and show agent jobs, and read their audit records, for users and code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple

from keptwork.agents.engine import AGENT_KIND, CRASHES, chosen
from keptwork.agents.json_schema import Schema
from keptwork.agents.skills import Tier
from keptwork.core import ids
from keptwork.core.durations import Span, rfc3339, span_us
from keptwork.core.ids import actor_name, public_id
from keptwork.core.lifecycles import AGENT, JOB
from keptwork.core.money import MICROS, micros
from keptwork.core.secrets import current
from keptwork.core.validation import LARGEST_PAYLOAD, check_name, check_priority, plain_json
from keptwork.errors import BadInput, NotFound
from keptwork.jobs import queries
from keptwork.observability import spans
from keptwork.store import Event, EventFilter, Job, NewJob, Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.agents import AgentAudit
from keptwork.store.contract.checkpoints_blob_service import whole

LONGEST_DESCRIPTION = 10_000
BEGINNING = 2_000
_SHORTENED = re.compile(r"(.*)… \[([\d,]+ bytes, sha256 [0-9a-f]{64})\]", re.DOTALL)
USUAL_RETRIES, MOST_RETRIES = 3, 100
USUAL_BASE_MS, LONGEST_BASE_MS = 1_000, 300_000
Row = dict[str, Any]


class NewAgent(NamedTuple):
    """An agent job to start. Missing values are chosen when it is defined."""

    description: str
    tenant_id: int = 1
    skill: str | None = None
    tier: str | None = None
    schema: Mapping[str, Any] | None = None
    budget_micros: int | None = None
    max_retries: int = USUAL_RETRIES
    retry_base_ms: int = USUAL_BASE_MS
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    actor: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None


class Started(NamedTuple):
    """The keys of a started agent job and of the job that runs it."""

    key: int
    job_key: int

    @property
    def id(self) -> str:
        return ids.public(AGENT.prefix, self.key)

    @property
    def job_id(self) -> str:
        return ids.public(JOB.prefix, self.job_key)


class Story(NamedTuple):
    """An agent job, its events, its audit record if it has finished, and its result, if any."""

    agent: Row
    events: list[Event]
    audit: AgentAudit | None
    result: Any = None


# --- starting


def new_agent(
    description: str,
    *,
    max_retries: int = USUAL_RETRIES,
    retry_base: Span = "1s",
    schema: Mapping[str, Any] | None = None,
    budget_usd: Decimal | float | str | None = None,
    **rest: Any,
) -> NewAgent:
    """Return an agent job, or raise `BadInput` if a value is invalid.

    The description is checked when the job runs.
    """
    base_ms = span_us(retry_base) // 1_000
    if not isinstance(description, str):
        raise BadInput(what=f"{description!r} describes nothing; say in words what the agent is to do")
    if type(max_retries) is not int or not 0 <= max_retries <= MOST_RETRIES:
        raise BadInput(what=f"max_retries is {max_retries!r}; it is a whole number from 0 to {MOST_RETRIES}")
    if not 1 <= base_ms <= LONGEST_BASE_MS:
        raise BadInput(what=f"a wait of {retry_base} before a retry cannot be; it is from 1ms to 5m")
    if schema is not None and not isinstance(schema, Mapping):
        raise BadInput(what=f"an output schema is a JSON Schema, an object; this is {type(schema).__name__}")
    if schema is not None:
        Schema(schema)  # reject an invalid schema now, not when the model has answered
    most: Row = {"max_retries": max_retries, "retry_base_ms": base_ms}
    spends = None if budget_usd is None else micros(budget_usd)
    new = NewAgent(description, schema=schema, budget_micros=spends, **most, **rest)
    _check_names(new)
    return new


def asked(description: str, **how: Any) -> NewAgent:
    """Return an agent job for a direct request.

    Raise `BadInput`, before anything is stored, if its description is unfit.
    """
    insist_fit(description)
    return new_agent(description, **how)


def _check_names(new: NewAgent) -> None:
    if new.tier is not None and new.tier not in list(Tier):
        raise BadInput(what=f"there is no tier {new.tier!r}; there are: {', '.join(Tier)}")
    given = {"skill": new.skill, "queue": new.queue, "key": new.key, "correlation": new.correlation_id}
    for what, text in given.items():
        if text is not None:
            check_name(what, text)
    check_priority(new.priority)


def unfit(description: str) -> str | None:
    """Return why no agent can start with this description, or None if one can."""
    if not description.strip():
        return "it does not say what to do: the description is empty"
    size = len(description.encode("utf-8", "surrogatepass"))
    if size > LONGEST_DESCRIPTION:
        return f"a description of {size:,} bytes is over the limit of {LONGEST_DESCRIPTION:,}"
    return None


def described(prompt: str) -> str:
    """Return a prompt as the record of its agent job stores it.

    A long prompt is replaced by its beginning, its length, and its digest; the transcript has all of it.

    >>> described("Summarise this")
    'Summarise this'
    """
    sent = current().text(prompt).encode("utf-8", "replace")
    if len(sent) <= LONGEST_DESCRIPTION:
        return prompt
    return f"{sent.decode()[:BEGINNING]}… [{len(sent):,} bytes, sha256 {sha256(sent).hexdigest()}]"


def shortened(description: str) -> tuple[str, str | None]:
    """Return the text of a description, and the prompt's length and digest if it is shortened."""
    found = _SHORTENED.fullmatch(description)
    return (description, None) if found is None else (found[1], found[2])


def insist_fit(description: str) -> None:
    """Raise `BadInput` if no agent can start with this description."""
    if wrong := unfit(description):
        raise BadInput(what=wrong)


async def start(store: Store, new: NewAgent) -> Started:
    """Create an agent job and its job in one transaction. A repeated key returns the existing agent job."""
    with spans.producing("start", AGENT.name, new.trace_id):
        traced = new._replace(trace_id=spans.carried(new.trace_id))
        return await store.atomically(lambda tx: _started(tx, traced), 2)


async def _started(tx: Transaction, new: NewAgent) -> Started:
    (job,) = await tx.enqueue([_job(new)])
    found = await tx.agents_of_jobs([job])
    if found:
        return Started(found[0]["id"], job)
    born: Row = {"actor": new.actor, "correlation_id": new.correlation_id or ids.public(JOB.prefix, job)}
    told: Row = {"max_retries": new.max_retries, "retry_base_ms": new.retry_base_ms, "trace_id": new.trace_id}
    description = _storable(new.description)
    return Started(
        await tx.create(AGENT, tenant_id=new.tenant_id, description=description, job_id=job, **born, **told), job
    )


def _job(new: NewAgent) -> NewJob:
    """Return the job of an agent job. Its payload has all values, so that the job can be rerun alone."""
    said = {"description": _storable(new.description), "skill": new.skill, "tier": new.tier, "schema": new.schema}
    rest = {"max_retries": new.max_retries, "retry_base_ms": new.retry_base_ms, "budget_micros": new.budget_micros}
    payload = plain_json("an agent job", {name: one for name, one in {**said, **rest}.items() if one is not None})
    if len(payload) > LARGEST_PAYLOAD:
        raise BadInput(what=f"an agent job of {len(payload):,} bytes is over the limit of 1 MiB")
    return NewJob(
        AGENT_KIND,
        payload,
        new.queue,
        new.tenant_id,
        new.priority,
        max_attempts=new.max_retries + 1 + CRASHES,
        on_exhausted="fail",
        key=new.key,
        actor=new.actor,
        correlation_id=new.correlation_id,
        trace_id=new.trace_id,
    )


def _storable(text: str) -> str:
    """Return text that any database can store: no NUL, no unpaired surrogate, and no secrets."""
    return current().text(text.encode("utf-8", "replace").decode().replace("\0", "\ufffd"))


async def of_job(store: Store, job: Job, new: NewAgent) -> Row:
    """Return the agent job of a job. Create it if there is none yet, as for a step of a flow."""

    async def work(tx: Transaction) -> Row:
        found = await tx.agents_of_jobs([job.id])
        if found:
            return found[0]
        key = await tx.create(
            AGENT,
            tenant_id=job.tenant_id,
            actor=f"w:{job.owner}",
            correlation_id=job.correlation_id or job.public_id,
            trace_id=job.trace_id,
            description=_storable(new.description),
            job_id=job.id,
            max_retries=new.max_retries,
            retry_base_ms=new.retry_base_ms,
        )
        return (await tx.rows(AGENT, [key]))[0]

    found = await store.agents_of_jobs([job.id])
    return found[0] if found else await store.atomically(work, 2)


# --- finding


async def find(store: Store, tenant_id: int, id: str) -> Row:
    """Return an agent job by its own ID or that of its job.

    Raise `NotFound` for an unknown ID and for another tenant's ID.
    """
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix == AGENT.prefix:
        row = await store.get(AGENT, key, tenant_id)
    else:
        rows = await store.agents_of_jobs([key]) if prefix == JOB.prefix else []
        row = next((row for row in rows if row["tenant_id"] == tenant_id), None)
    if row is None:
        raise NotFound(what="agent job", id=repr(id), listing="keptwork agents list")
    return row


async def listed(store: Store, tenant_id: int, *, states: Sequence[str] | None = None, limit: int = 50) -> list[Row]:
    """List a tenant's agent jobs, newest first."""
    if not 1 <= limit <= 10_000:
        raise BadInput(what=f"a list holds 1 to 10000 agent jobs, not {limit}")
    return await store.agents(tenant_id, states=states, limit=limit)


class Page(NamedTuple):
    """A page of agent jobs, and the ID of its last agent job if there are more."""

    agents: list[Row]
    next: str | None


async def page(
    store: Store, tenant_id: int, *, states: Sequence[str] | None = None, after: str | None = None, limit: int = 50
) -> Page:
    """Return one page of a tenant's agent jobs, newest first."""
    start = None if after is None else (ids.key_of(after) or ("", 0))[1]
    found = await store.agents(tenant_id, states=states, after=start, limit=limit + 1)
    return Page(found[:limit], public_id(AGENT.name, found[limit - 1]["id"]) if len(found) > limit else None)


async def story(store: Store, tenant_id: int, id: str) -> Story:
    """Return an agent job with its events, audit record, and result."""
    row = await find(store, tenant_id, id)
    events = await store.events(EventFilter(tenant_id, AGENT.name, row["id"]), limit=1_000)
    records = await store.agent_audits(tenant_id, agent=row["id"])
    return Story(row, events, records[0] if records else None, await _result(store, row))


async def _result(store: Store, row: Row) -> Any:
    """Return the result of the agent job's job, or None if that job was deleted."""
    job = None if row["job_id"] is None else await store.get(JOB, row["job_id"], row["tenant_id"])
    return None if job is None else queries.as_json(await whole(store, job))["result"]


@acknowledged
async def cancel(
    store: Store, tenant_id: int, id: str, *, hard: bool = False, reason: str | None = None, actor: str | None = None
) -> str:
    """Cancel an agent job by cancelling its job, and return the outcome for the job."""
    row = await find(store, tenant_id, id)
    job = public_id(JOB.name, row["job_id"] or 0)
    return await queries.cancel(store, tenant_id, job, hard=hard, reason=reason, actor=actor)


async def audit(store: Store, tenant_id: int, id: str) -> AgentAudit:
    """Return the audit record of an agent job that has finished, even if that was deleted.

    Raise `NotFound` if it has not finished.
    """
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix == AGENT.prefix and (kept := await store.agent_audits(tenant_id, agent=key)):
        return kept[0]
    row = await find(store, tenant_id, id)
    records = await store.agent_audits(tenant_id, agent=row["id"])
    if not records:
        what = f"record of an agent job (it is {row['state']}; its record is written when it ends)"
        raise NotFound(what=what, id=repr(id), listing="keptwork agents list")
    return records[0]


# --- showing


def as_json(row: Row) -> Row:
    """Return an agent job with its values in their public form."""
    times = ("created_at", "updated_at", "started_at", "completed_at")
    numbers = ("retry_count", "max_retries", "calls", "input_tokens", "output_tokens", "cost_micros")
    return {
        "id": public_id(AGENT.name, row["id"]),
        "state": row["state"],
        "status": row["state"],
        "job_id": None if row["job_id"] is None else public_id(JOB.name, row["job_id"]),
        "description": row["description"],
        **chosen(row),
        **{name: row[name] for name in numbers},
        "cost_usd": row["cost_micros"] / MICROS,
        "state_history": json.loads(row["state_history"]),
        "reason": row["reason"],
        "actor": actor_name(row["actor"]),
        "llm_response": row["llm_response"],
        "correlation_id": row["correlation_id"],
        **{name: None if row[name] is None else rfc3339(row[name]) for name in times},
    }


def audit_as_json(record: AgentAudit) -> dict[str, Any]:
    """Return an audit record under its public names."""
    return {
        "job_id": public_id(AGENT.name, record.agent_id),
        "carried_out_by": None if record.job_id is None else public_id(JOB.name, record.job_id),
        "description": record.description,
        "status": record.status,
        "reason": record.reason,
        "state_transitions": json.loads(record.state_transitions),
        "agent": None if record.agent is None else json.loads(record.agent),
        "retry_count": record.retry_count,
        "max_retries": record.max_retries,
        "calls": record.calls,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "cost_micros": record.cost_micros,
        "cost_usd": record.cost_micros / MICROS,
        "llm_response": record.llm_response,
        "started_at": rfc3339(record.started_at),
        "completed_at": rfc3339(record.completed_at),
        "duration_ms": record.duration_ms,
    }
