"""Approval requests of jobs and steps: find them and decide them. The first decision wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, RUN_STEP
from keptwork.core.validation import check_name
from keptwork.errors import AlreadyDecided, BadInput, NotFound, NothingAsked
from keptwork.flows import commands as flows
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import shape
from keptwork.flows.definition import Step
from keptwork.flows.steps.approval import APPROVED as STEP_APPROVED
from keptwork.flows.transaction import Row
from keptwork.jobs.queries import document
from keptwork.jobs.queries import key_of as job_key
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits_approvals import PREFIX, Approval

APPROVED, REJECTED, EXPIRED, WITHDRAWN = "approved", "rejected", "expired", "withdrawn"
LONGEST_COMMENT = 4000
MOST_AT_ONCE = 10_000
MOST_OF_ONE = 10
_TIMES = ("created_at", "expires_at", "decided_at")


def key_of(id: str) -> int:
    """Return the key in an approval's public ID, or raise `NotFound` if the text is not one."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != PREFIX:
        raise _unknown(id)
    return key


async def find(store: Store, tenant_id: int, id: str) -> Approval:
    """Return an approval request. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    found = await store.approval(tenant_id, key_of(id))
    if found is None:
        raise _unknown(id)
    return found


async def listed(
    store: Store, tenant_id: int, *, job: int | None = None, open_only: bool = True, limit: int = 100
) -> list[Approval]:
    """List the approval requests of a tenant, or of one of its jobs, newest first."""
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a list holds 1 to {MOST_AT_ONCE} approvals, not {limit}")
    return await store.approvals(tenant_id, job=job, open_only=open_only, limit=limit)


class Page(NamedTuple):
    """A page of approval requests, and the ID of its last request if there are more."""

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
    """Return one page of the approval requests of a tenant, or of one of its jobs, newest first."""
    of = None if job is None else job_key(job)
    start = None if after is None else key_of(after)
    found = await store.approvals(tenant_id, job=of, open_only=open_only, after=start, limit=limit + 1)
    return Page(found[:limit], found[limit - 1].public_id if len(found) > limit else None)


async def asked_by(store: Reader, tenant_id: int, jobs: Mapping[int, str]) -> list[Approval]:
    """Return the open approval requests of these jobs, each with the name given for its job."""
    found = []
    for job, name in jobs.items():
        asked = await store.approvals(tenant_id, job=job, open_only=True, limit=MOST_OF_ONE)
        found += [one._replace(step=name) for one in asked]
    return found


class Asker(NamedTuple):
    """The flow that requests an approval, and its name.

    If a job outside flows requests it, `flow` is None and the name is the job's kind.
    """

    flow: FlowRef | None
    name: str


async def askers(store: Reader, found: Iterable[Approval]) -> dict[int, Asker]:
    """Return the requester of each approval request, by key. Requesters that retention has deleted are missing."""
    asked = list(found)
    keys = sorted({one.job_id for one in asked if one.job_id is not None})
    jobs = {row["id"]: row for row in await store.rows(JOB, keys, ("id", "kind", "step_id"))} if keys else {}
    steps = {one.id: one.step_id or jobs.get(one.job_id or 0, {}).get("step_id") for one in asked}
    known = await _flows_of(store, {step for step in steps.values() if step is not None})
    alone = {one.id: Asker(None, jobs[one.job_id]["kind"]) for one in asked if one.job_id in jobs}
    return alone | {id: known[step] for id, step in steps.items() if step in known}


async def _flows_of(store: Reader, steps: set[int]) -> dict[int, Asker]:
    """Return the flows of these steps, by the key of the step."""
    rows = await store.steps_by_key(sorted(steps)) if steps else []
    refs = {row["id"]: FlowRef(flows.kind_of(row), row["flow_id"]) for row in rows}
    names: dict[int, str] = {}
    for kind in {ref.kind for ref in refs.values()}:
        keys = sorted({ref.id for ref in refs.values() if ref.kind is kind})
        names |= {row["id"]: row["name"] for row in await store.rows(kind.flow, keys, ("id", "name"))}
    return {step: Asker(ref, names[ref.id]) for step, ref in refs.items() if ref.id in names}


Insist = Callable[[str | None], None]
"""Raises if the caller must not decide a request for the reviewers of this scope.

If the scope is None, anyone can decide.
"""


def anybody(who: str | None) -> None:
    """Allow every decision: a caller with the database can decide all requests."""


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
    """Decide an approval request.

    A repeated decision returns the first, and a different one raises `AlreadyDecided`.
    """
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
    """Return the outcome of a request, even if it is not stored yet.

    It has expired if its deadline has passed, and is otherwise withdrawn because its job has finished.
    """
    late = found.expires_at is not None and found.expires_at <= await store.now()
    decision = found.decision or (EXPIRED if late else WITHDRAWN)
    return {"decision": decision, "by": f" by {found.decided_by}" if found.decided_by else ""}


def as_json(approval: Approval) -> dict[str, Any]:
    """Return an approval request in its public form."""
    shown = {**approval._asdict(), "id": approval.public_id, "state": approval.decision or "open"}
    shown["job_id"] = None if approval.job_id is None else public_id(JOB.name, approval.job_id)
    shown["step_id"] = None if approval.step_id is None else public_id(RUN_STEP.name, approval.step_id)
    shown["details"] = None if approval.details is None else document(approval.details)
    return shown | {name: None if shown[name] is None else rfc3339(shown[name]) for name in _TIMES}


def _unknown(id: str) -> NotFound:
    return NotFound(what="approval", id=repr(id), listing="keptwork approvals list")


# Decide approval requests by flow. A flow with several approval steps needs the name of one.


@acknowledged
async def answer(
    store: Store,
    ref: FlowRef,
    decision: str,
    *,
    gate: str | None = None,
    by: str,
    comment: str | None = None,
    insist: Insist = anybody,
) -> Approval:
    """Approve or reject the request of a flow.

    A repeated decision returns the first. Raise `NothingAsked` if no request is open.
    """
    step = await _gate(store, ref, gate)
    asked = await store.gate(step["tenant_id"], step["id"])
    if asked is None:
        raise await _nothing_asked(store, ref, step, decision)
    insist(asked.scope)
    return await flows.decide_gate(store, step, decision, by, comment)


async def insist_on_gate(store: Reader, step: Row, insist: Insist) -> None:
    """Raise if the caller skips an approval step whose request they must not decide."""
    (flow,) = await store.rows(flows.kind_of(step).flow, [step["flow_id"]], ("tenant_id", "template_id"))
    named = (await shape(store, flow["tenant_id"], flow["template_id"])).steps.get(step["name"])
    if named is not None:
        insist_on_step(named, insist)


def insist_on_step(step: Step, insist: Insist) -> None:
    """Raise if this is an approval step and the caller must not decide its request."""
    if step.kind == "approval":
        insist(None if step.approval is None else step.approval.by)


async def _nothing_asked(store: Store, ref: FlowRef, step: Row, decision: str) -> NothingAsked:
    flow = await flows.row_of(store, ref, ("state",))
    return NothingAsked(
        id=ref.public_id,
        state=flow["state"],
        step=step["name"],
        from_state=step["state"],
        trigger="approve" if decision == STEP_APPROVED else "reject",
        allowed=ref.kind.step.allowed_from(step["state"]),
    )


async def _gate(store: Store, ref: FlowRef, named: str | None) -> Row:
    """Return the approval step.

    A flow with several approval steps needs its name, so that a repeated decision cannot decide the next request.
    """
    flow = await flows.row_of(store, ref, ("tenant_id", "template_id"))
    steps = (await shape(store, flow["tenant_id"], flow["template_id"])).steps
    names = [name for name, step in steps.items() if step.kind == "approval"]
    if not names:
        raise BadInput(what=f"{ref.public_id} asks nobody: it has no step of kind approval")
    if named is None and len(names) > 1:
        raise BadInput(what=f"{ref.public_id} has several gates; say which with --gate: {', '.join(names)}")
    if named is not None and named not in names:
        raise BadInput(what=f"{ref.public_id} has no gate {named!r}; it has: {', '.join(names)}")
    (row,) = await store.steps(ref.id, names=[named or names[0]])
    return row
