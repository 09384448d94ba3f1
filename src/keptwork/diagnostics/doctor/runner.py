"""Check all flows in snapshots, and repair each finding under the flow's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from keptwork.diagnostics.doctor import FIRST_CHECKS, FLOW_CHECKS, LAST_CHECKS, STORE_CHECKS
from keptwork.diagnostics.doctor.finding import DOCTOR, Finding, FlowCheck, StoreCheck
from keptwork.diagnostics.doctor.finding import as_json as finding_json
from keptwork.diagnostics.doctor.flow_facts import USUAL, Chart, Limits, success
from keptwork.errors import KeptworkError, NotFound, StoreError
from keptwork.flows import commands as flows
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import KINDS, Kind
from keptwork.flows.plan import Phase, phases
from keptwork.flows.transaction import Actor, Row, Scene
from keptwork.store import Store
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.store import Reader

AT_ONCE = 100
ROUNDS = 20
TWICE = 2
"""A finding that exists after this many repairs is not repaired again."""


Place = tuple[str, str, int, str]
Places = Counter[Place]


class Repair(NamedTuple):
    """A finding and the result of its repair. `error` is None if the repair succeeded."""

    finding: Finding
    error: str | None = None


class Outcome(NamedTuple):
    """The first findings, the repairs, and the remaining findings."""

    found: list[Finding]
    repairs: list[Repair]
    left: list[Finding]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome in the form that commands print."""
    return {
        "found": [finding_json(one) for one in outcome.found],
        "repairs": [{**finding_json(one.finding), "error": one.error} for one in outcome.repairs],
        "left": [finding_json(one) for one in outcome.left],
    }


class _Seen(NamedTuple):
    """The findings of one flow."""

    ref: FlowRef
    findings: list[Finding]


async def examine(store: Store, limits: Limits = USUAL, tenant_id: int | None = None) -> list[Finding]:
    """Return all findings, without changes."""
    found = [finding for seen in await _flows(store, limits, tenant_id) for finding in seen.findings]
    return found + [finding for _, finding in await _others(store, limits, tenant_id)]


async def examine_flow(reader: Reader, ref: FlowRef, limits: Limits = USUAL) -> list[Finding]:
    """Return the findings of one flow, in the reader's snapshot or transaction."""
    return (await _examined(reader, ref.kind, ref.id, limits)).findings


@acknowledged
async def treat(store: Store, limits: Limits = USUAL, tenant_id: int | None = None) -> Outcome:
    """Repair what declared moves can repair, including findings that a repair uncovers.

    Findings that another process has repaired meanwhile are left unchanged.
    """
    found = await examine(store, limits, tenant_id)
    repairs: list[Repair] = []
    done: Places = Counter()
    for _ in range(ROUNDS):
        made = await _one_round(store, limits, tenant_id, done)
        repairs += made
        done.update(repair.finding.place for repair in made if repair.error is None)
        if all(repair.error for repair in made):
            break
    return Outcome(found, _lasting(repairs), await examine(store, limits, tenant_id) if repairs else found)


async def _one_round(store: Store, limits: Limits, tenant_id: int | None, done: Places) -> list[Repair]:
    """Repair each finding once. A failed repair can succeed in the next round, after other repairs."""
    repairs: list[Repair] = []
    for seen in await _flows(store, limits, tenant_id):
        if any(finding.fix for finding in seen.findings):
            repairs += await _treated(store, seen.ref, limits, done)
    for check, finding in await _others(store, limits, tenant_id):
        if finding.fix and done[finding.place] < TWICE:
            repairs.append(await _mended(store, check, finding))
    return repairs


def _lasting(repairs: list[Repair]) -> list[Repair]:
    """Return the repairs without failures that a later repair of the same finding replaces."""
    last = {repair.finding.place: repair for repair in repairs}
    return [repair for repair in repairs if repair.error is None or repair is last[repair.finding.place]]


# --- flows


async def _flows(store: Store, limits: Limits, tenant_id: int | None) -> list[_Seen]:
    """Return the flows that have findings."""
    found = []
    for kind in KINDS.values():
        async for keys in _suspects(store, kind, tenant_id):
            async with store.snapshot() as reader:
                seen = [await _examined(reader, kind, key, limits) for key in keys]
            found += [one for one in seen if one.findings]
    return sorted(found, key=lambda one: one.ref.id)  # parent flows before nested flows


async def _suspects(store: Store, kind: Kind, tenant_id: int | None) -> AsyncIterator[list[int]]:
    """Yield every unfinished flow, and every finished flow that has unfinished parts."""
    going = tuple(state.name for state in kind.flow.states if not state.final)
    wanted, after = FlowFilter(tenant_id, going, inside=True), None
    while page := await store.flows(kind.flow, wanted, after=after, limit=AT_ONCE):
        yield [flow["id"] for flow in page]
        after = page[-1]["id"]
    amiss, last = _unsatisfied(kind), 0
    while keys := await store.ended_amiss(kind.flow, success(kind), amiss, after=last, limit=AT_ONCE):
        rows = await store.rows(kind.flow, keys, ("id", "tenant_id"))
        yield [row["id"] for row in rows if tenant_id in (None, row["tenant_id"])]
        last = keys[-1]


def _unsatisfied(kind: Kind) -> list[str]:
    return [state for state, meaning in phases(kind.step).items() if meaning is not Phase.SATISFIED]


async def _examined(reader: Reader, kind: Kind, key: int, limits: Limits) -> _Seen:
    rows = await reader.rows(kind.flow, [key])
    if not rows or rows[0]["template_id"] is None:
        return _Seen(FlowRef(kind, key), [])
    return _Seen(FlowRef(kind, key), await _findings(reader, kind, rows[0], limits))


async def _findings(reader: Reader, kind: Kind, flow: Row, limits: Limits) -> list[Finding]:
    try:
        chart = await Chart.of(reader, kind, flow, limits)
    except NotFound as error:
        return [_undefined(kind, flow, error)]
    return [finding for _, finding in looked(chart)]


def _undefined(kind: Kind, flow: Row, error: NotFound) -> Finding:
    ref = FlowRef(kind, flow["id"])
    target = kind.flow.states[-1].name
    todo = f"keptwork override {ref.public_id} --to {target} --reason TEXT"
    return Finding("definition", kind.flow.name, ref.id, f"its definition is gone: {error}", todo=todo)


def looked(chart: Chart) -> list[tuple[FlowCheck, Finding]]:
    """Return the findings of all checks on a chart, in the order of their repairs."""
    tenant_id = chart.flow["tenant_id"]
    for checks in (*FIRST_CHECKS, FLOW_CHECKS, LAST_CHECKS):
        found = [(check, one._replace(tenant_id=tenant_id)) for check in checks for one in check.look(chart)]
        if found:
            return found
    return []


async def _treated(store: Store, ref: FlowRef, limits: Limits, done: Places) -> list[Repair]:
    """Repair the findings of a flow one by one, until no repairable finding is left."""
    repairs: list[Repair] = []
    tried: set[Place] = set()
    while (repair := await _repaired(store, ref, limits, done, tried)) is not None:
        repairs.append(repair)
        tried.add(repair.finding.place)
    return repairs


async def _repaired(store: Store, ref: FlowRef, limits: Limits, done: Places, tried: set[Place]) -> Repair | None:
    mending: list[Finding] = []

    async def work(scene: Scene) -> Finding | None:
        mending.clear()
        chart = await Chart.of(scene.tx, scene.kind, scene.flow, limits)
        for check, finding in looked(chart):
            new = finding.place not in tried and done[finding.place] < TWICE
            if finding.fix and check.mend is not None and new:
                mending.append(finding)
                scene.actor, scene.steps = Actor(DOCTOR, finding.says), dict(chart.steps)
                await check.mend(scene, chart, finding)
                return finding
        return None

    try:
        finding = await flows.change(store, ref, Actor(DOCTOR), work)
    except StoreError:
        raise
    except KeptworkError as error:
        return Repair(mending[0], str(error)) if mending else None
    return None if finding is None else Repair(finding)


# --- entities that belong to no flow


async def _others(store: Store, limits: Limits, tenant_id: int | None) -> list[tuple[StoreCheck, Finding]]:
    async with store.snapshot() as reader:
        return [
            (check, finding)
            for check in STORE_CHECKS
            for finding in await check.look(reader, limits)
            if tenant_id in (None, finding.tenant_id)
        ]


async def _mended(store: Store, check: StoreCheck, finding: Finding) -> Repair:
    try:
        if check.mend is not None:
            await check.mend(store, finding)
    except StoreError:
        raise
    except KeptworkError as error:
        return Repair(finding, str(error))
    return Repair(finding)
