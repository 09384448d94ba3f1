"""Report the outcome of a flow, step by step, for users and programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from keptwork.agents import budget_caps
from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import Verb
from keptwork.flows.live_view import FlowView
from keptwork.flows.plan import Phase
from keptwork.flows.program_output import TRUNCATED
from keptwork.flows.queries import took_us
from keptwork.flows.transaction import Row, content, inputs_of
from keptwork.jobs import results_artifacts
from keptwork.store import Store
from keptwork.store.contract.budgets import NO_COST, Cost
from keptwork.store.contract.waits import APPROVAL
from keptwork.store.contract.waits_approvals import Approval

LAST_LINES = 10
MOST_OUTPUT_READ = 1 << 20
FOR_EVER = 4_102_444_800_000_000  # 2100: a job that waits for something else than a time is due long after

_OUR_ERRORS = re.compile(r"\b(Transient|Permanent|Validation)Error: ")

WORDS = {
    Phase.WAITING: "waiting",
    Phase.SATISFIED: "succeeded",
    Phase.FAILED: "failed",
    Phase.GONE: "cancelled",
}


@dataclass(frozen=True)
class StepReport:
    """The outcome of a step. Times are in µs; the cost is that of the ledger."""

    id: str
    name: str
    kind: str
    state: str
    word: str
    took: int | None
    attempts: int
    spent: Cost
    error: str | None
    cut: str | None = None

    @property
    def cost(self) -> int:
        """Cost in micro-USD, including lost calls."""
        return self.spent.micros


@dataclass(frozen=True)
class FlowReport:
    """The outcome of a flow and its steps."""

    id: str
    kind: str
    name: str
    state: str
    word: str
    inputs: dict[str, Any]
    error: str | None
    started_at: int
    took: int
    spent: Cost
    events: int
    steps: list[StepReport]
    questions: list[Approval]
    waits: list[str]

    @property
    def cost(self) -> int:
        """Cost in micro-USD, including lost calls."""
        return self.spent.micros


def word_of(view: FlowView, row: Row) -> str:
    """Return the outcome of a step as one word, the same for all lifecycles."""
    kind, state = view.kind, row["state"]
    if state in {move.target.name for move in kind.step.moves if move.verb is Verb.SKIP}:
        return "skipped"
    if view.phase(row) is Phase.ACTIVE:
        if kind.step.leading_out_of(state, Verb.RESUME):
            return "retrying"
        return "asking" if view.kind_of(row) == "approval" else "running"
    return WORDS[view.phase(row)]


def cut_of(row: Row) -> str | None:
    """Return which output of a step was truncated, as text, or None."""
    reason = (row["reason"] or "").partition(";")[0]
    return f"{reason.removeprefix(TRUNCATED)} truncated" if reason.startswith(TRUNCATED) else None


def plain_error(error: str | None) -> str:
    """Return an error as one line, without the names of our exceptions.

    >>> plain_error("test: TransientError: test ended with exit code 1, not 0")
    'test ended with exit code 1, not 0'
    >>> plain_error("test: PermanentError: test: killed by SIGSEGV")
    'test: killed by SIGSEGV'
    """
    line = _OUR_ERRORS.sub("", " ".join((error or "").split()))
    name, _, rest = line.partition(": ")
    return rest if rest.startswith((f"{name} ", f"{name}: ")) else line


async def report(store: Store, view: FlowView) -> FlowReport:
    """Return the current report of a flow."""
    await view.look()
    await view.look_at_all()
    paid = await budget_caps.of_steps(store, view.flow)
    at_rest = view.failed and not await view.jobs()
    steps = [_step(view, row, paid, at_rest) for row in view.steps.values()]
    flow, asked = view.flow, [] if view.over else await view.questions()
    return FlowReport(
        view.ref.public_id,
        view.kind.name,
        flow["name"],
        flow["state"],
        _word(view, asked),
        inputs_of(flow),
        flow["error"] or (flow["reason"] if view.over and not view.succeeded else None),
        flow["created_at"],
        (flow["completed_at"] or view.now) - flow["created_at"],
        await budget_caps.of_flow(store, flow, paid, view.steps),
        view.events,
        steps,
        asked,
        [] if view.over else await _waits(view),
    )


async def _waits(view: FlowView) -> list[str]:
    """Return the waits of jobs, except for approvals, and the causes of held jobs."""
    jobs = await view.jobs()
    waiting = [job for job in jobs if job["waits_for"] and not job["waits_for"].startswith(APPROVAL)]
    held = [f"{name} is held: {why}" for name, why in (await view.held(jobs)).items()]
    return [f"{view.name_of(job)} waits for {job['waits_for']}{_until(job['run_at'])}" for job in waiting] + held


def _until(at: int) -> str:
    return f", until {rfc3339(at)} at the latest" if at < FOR_EVER else ""


def _word(view: FlowView, asked: list[Approval]) -> str:
    if view.succeeded:
        return "succeeded"
    if view.failed:
        return "failed"
    if view.over:
        return "cancelled"
    if view.flow["held_at"] is not None:
        return "held"
    return "waiting" if asked else "unfinished"


def _step(view: FlowView, row: Row, paid: dict[int, Cost], at_rest: bool) -> StepReport:
    """Return the report of a step.

    In a flow at rest nothing runs: a `for_each` step or nested flow that had started continues when the flow is
    retried.
    """
    word = word_of(view, row)
    inner = view.within.get(row["id"], {})
    return StepReport(
        ids.public(view.kind.step.prefix, row["id"]),
        row["name"],
        view.kind_of(row),
        row["state"],
        "unfinished" if at_rest and word == "running" else word,
        took_us(row, view.now),
        max([row["attempts"], *(one["attempts"] for one in inner.values() if one["parent_id"] == row["id"])]),
        paid.get(row["id"], NO_COST),
        row["error"],
        cut_of(row) if word == "succeeded" else None,
    )


async def last_output(store: Store, view: FlowView) -> list[tuple[str, list[str]]]:
    """Return the last output lines of the programs that failed, with the names of their steps."""
    found = []
    for row in view.in_phase(Phase.FAILED):
        failed = [one for one in view.within.get(row["id"], {}).values() if one["job_id"] and one["error"]] or [row]
        for one in failed[:3]:
            if one["job_id"] is not None and (lines := await _tail(store, view.tenant_id, one["job_id"])):
                found.append((str(one["name"]), lines))
    return found


async def _tail(store: Store, tenant_id: int, job: int) -> list[str]:
    """Return the last lines of a job's output. If retention has deleted the job, there are none."""
    id = public_id("job", job)
    kept = {one.name for one in await store.artifacts(tenant_id, job) if one.size <= MOST_OUTPUT_READ}
    for name in ("stderr", "stdout"):
        if name in kept:
            _, said = await results_artifacts.content(store, tenant_id, id, name)
            if lines := said.decode("utf-8", "replace").rstrip().splitlines()[-LAST_LINES:]:
                return lines
    return []


async def outputs(store: Store, view: FlowView) -> dict[str, Any]:
    """Return the outputs of the steps that have one, by name."""
    names = [row["name"] for row in view.steps.values()]
    found = await store.outputs(view.ref.id, names)
    return {one.name: value for one in found if (value := await content(store, view.tenant_id, one)) is not None}


def as_json(found: FlowReport) -> dict[str, Any]:
    """Return a report in its public form."""
    from keptwork.flows import approvals

    return {
        "id": found.id,
        "kind": found.kind,
        "name": found.name,
        "state": found.state,
        "status": found.state,
        "outcome": found.word,
        "inputs": found.inputs,
        "error": found.error,
        "started_at": rfc3339(found.started_at),
        "seconds": found.took / 1_000_000,
        **_money(found.spent),
        "events": found.events,
        "steps": [_step_as_json(step) for step in found.steps],
        "approvals": [approvals.as_json(one) for one in found.questions],
        "waits": found.waits,
    }


def _step_as_json(step: StepReport) -> dict[str, Any]:
    return {
        "id": step.id,
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "status": step.state,
        "outcome": step.word,
        "seconds": None if step.took is None else step.took / 1_000_000,
        "attempts": step.attempts,
        **_money(step.spent),
        "error": step.error,
        "truncated": step.cut,
    }


def _money(cost: Cost) -> dict[str, Any]:
    micros = {"cost_micros": cost.micros, "lost_micros": cost.lost_micros, "reserved_micros": cost.open_micros}
    return {"cost_usd": cost.micros / 1_000_000, **micros, "lost_calls": cost.lost}
