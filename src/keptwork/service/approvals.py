"""Questions that jobs ask people: finding them, and deciding them. There is one decision, whoever else decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from keptwork import ids
from keptwork.bounds import check_name
from keptwork.errors import AlreadyDecided, BadInput, NotFound
from keptwork.lifecycle import JOB, RUN_STEP
from keptwork.moments import rfc3339
from keptwork.service import flows
from keptwork.service.acknowledged import acknowledged
from keptwork.service.entities import public_id
from keptwork.service.flows import FlowRef
from keptwork.service.jobs import document
from keptwork.service.jobs import key_of as job_key
from keptwork.store import Store
from keptwork.store.approvals import PREFIX, Approval
from keptwork.store.protocol import Reader

APPROVED, REJECTED, EXPIRED, WITHDRAWN = "approved", "rejected", "expired", "withdrawn"
LONGEST_COMMENT = 4000
MOST_AT_ONCE = 10_000
MOST_OF_ONE = 10
_TIMES = ("created_at", "expires_at", "decided_at")


def key_of(id: str) -> int:
    """The key in the public id of a question; whatever else it is, there is none."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != PREFIX:
        raise _unknown(id)
    return key


async def find(store: Store, tenant_id: int, id: str) -> Approval:
    """A question; a foreign or unknown id is `NotFound`."""
    found = await store.approval(tenant_id, key_of(id))
    if found is None:
        raise _unknown(id)
    return found


async def listed(
    store: Store, tenant_id: int, *, job: int | None = None, open_only: bool = True, limit: int = 100
) -> list[Approval]:
    """The questions of a tenant, or of one of its jobs, the newest first."""
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a list holds 1 to {MOST_AT_ONCE} approvals, not {limit}")
    return await store.approvals(tenant_id, job=job, open_only=open_only, limit=limit)


class Page(NamedTuple):
    """Some questions, and the id to go on after if there are more."""

    approvals: list[Approval]
    next: str | None


async def page(
    store: Store,
    tenant_id: int,
    *,
    job: str | None = None,
    open_only: bool = True,
    after: str | None = None,
    limit: int = 50,
) -> Page:
    """One page of the questions of a tenant, or of one of its jobs, the newest first."""
    of = None if job is None else job_key(job)
    start = None if after is None else key_of(after)
    found = await store.approvals(tenant_id, job=of, open_only=open_only, after=start, limit=limit + 1)
    return Page(found[:limit], found[limit - 1].public_id if len(found) > limit else None)


async def asked_by(store: Reader, tenant_id: int, jobs: Mapping[int, str]) -> list[Approval]:
    """What these jobs ask now, each under the name that is given here for its job."""
    found = []
    for job, name in jobs.items():
        asked = await store.approvals(tenant_id, job=job, open_only=True, limit=MOST_OF_ONE)
        found += [one._replace(step=name) for one in asked]
    return found


class Asker(NamedTuple):
    """Who asks: a flow, at a step of its own or in a job that carries one out, or a job alone; and its name."""

    flow: FlowRef | None
    name: str


async def askers(store: Reader, found: Iterable[Approval]) -> dict[int, Asker]:
    """By the key of each question, who asks it; without those that retention has deleted."""
    asked = list(found)
    keys = sorted({one.job_id for one in asked if one.job_id is not None})
    jobs = {row["id"]: row for row in await store.rows(JOB, keys, ("id", "kind", "step_id"))} if keys else {}
    steps = {one.id: one.step_id or jobs.get(one.job_id or 0, {}).get("step_id") for one in asked}
    known = await _flows_of(store, {step for step in steps.values() if step is not None})
    alone = {one.id: Asker(None, jobs[one.job_id]["kind"]) for one in asked if one.job_id in jobs}
    return alone | {id: known[step] for id, step in steps.items() if step in known}


async def _flows_of(store: Reader, steps: set[int]) -> dict[int, Asker]:
    """By the keys of steps, the flows they are of."""
    rows = await store.steps_by_key(sorted(steps)) if steps else []
    refs = {row["id"]: FlowRef(flows.kind_of(row), row["flow_id"]) for row in rows}
    names: dict[int, str] = {}
    for kind in {ref.kind for ref in refs.values()}:
        keys = sorted({ref.id for ref in refs.values() if ref.kind is kind})
        names |= {row["id"]: row["name"] for row in await store.rows(kind.flow, keys, ("id", "name"))}
    return {step: Asker(ref, names[ref.id]) for step, ref in refs.items() if ref.id in names}


Insist = Callable[[str | None], None]
"""Refuses whoever may not answer what is asked of somebody, or, if of none, of anyone."""


def anybody(who: str | None) -> None:
    """Refuses nobody: whoever has the database may answer everything."""


@acknowledged
async def decide(
    store: Store,
    tenant_id: int,
    id: str,
    decision: str,
    *,
    by: str,
    comment: str | None = None,
    insist: Insist = anybody,
) -> Approval:
    """Decides a question; what was decided the same way before is answered the same, another way is refused."""
    check_name("name", by)
    if comment is not None and len(comment) > LONGEST_COMMENT:
        raise BadInput(what=f"a comment of {len(comment):,} characters is over the limit of {LONGEST_COMMENT}")
    asked = await store.approval(tenant_id, key_of(id))
    if asked is not None:
        insist(asked.scope)
    if asked is not None and asked.step_id is not None:
        return await flows.decide_gate(store, await flows.step_of(store, asked), decision, by, comment, asked.id)
    found = await store.decide_approval(tenant_id, key_of(id), decision, by, comment)
    if found is None:
        raise _unknown(id)
    if found.decision != decision:
        raise AlreadyDecided(id=found.public_id, **await _told(store, found))
    return found


async def _told(store: Store, found: Approval) -> dict[str, str]:
    """What it is, also where nobody has written it down yet: late, or of a job that has ended."""
    late = found.expires_at is not None and found.expires_at <= await store.now()
    decision = found.decision or (EXPIRED if late else WITHDRAWN)
    return {"decision": decision, "by": f" by {found.decided_by}" if found.decided_by else ""}


def as_json(approval: Approval) -> dict[str, Any]:
    """As it is read outside."""
    shown = {**approval._asdict(), "id": approval.public_id, "state": approval.decision or "open"}
    shown["job_id"] = None if approval.job_id is None else public_id(JOB.name, approval.job_id)
    shown["step_id"] = None if approval.step_id is None else public_id(RUN_STEP.name, approval.step_id)
    shown["details"] = None if approval.details is None else document(approval.details)
    return shown | {name: None if shown[name] is None else rfc3339(shown[name]) for name in _TIMES}


def _unknown(id: str) -> NotFound:
    return NotFound(what="approval", id=repr(id), listing="keptwork approvals list")
