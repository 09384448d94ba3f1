"""List flows and steps, and show everything about one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from keptwork.agents import budget_caps
from keptwork.audit.events import as_json as event_json
from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, LIFECYCLES, WORKSTREAM, Lifecycle
from keptwork.errors import BadInput, NotFound
from keptwork.flows import commands as flows
from keptwork.flows import eta
from keptwork.flows.approvals import as_json as approval_json
from keptwork.flows.approvals import asked_by, askers
from keptwork.flows.commands import FlowRef, row_of
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.plan import Phase, phases
from keptwork.flows.transaction import Row, content, inputs_of
from keptwork.observability import spans
from keptwork.store import Event, EventFilter, Store
from keptwork.store.contract.budgets import Cost
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.flows_templates import Template
from keptwork.store.contract.operations_search import search
from keptwork.store.contract.store import Reader
from keptwork.store.contract.waits import APPROVAL
from keptwork.store.contract.waits_approvals import Approval

MOST_AT_ONCE = 10_000
EVENTS_SHOWN = 15
QUESTIONS_LOOKED_AT = 500
_TIMES = ("created_at", "updated_at", "started_at", "completed_at", "held_at", "wake_at")


class Page(NamedTuple):
    """A page of flows, and the ID of its last flow if there are more."""

    flows: list[Row]
    next: str | None


class StepPage(NamedTuple):
    """A page of a flow's steps, their costs, and the ID of the last step if there are more."""

    steps: list[Row]
    costs: dict[int, Cost]
    next: str | None


class Story(NamedTuple):
    """Everything about a flow, including its approval requests, nested flows, and forks.

    `around` is the step that the flow is, and `events` are its latest events.
    """

    kind: Kind
    flow: Row
    template: Template | None
    steps: list[Row]
    costs: dict[int, Cost]
    cost: Cost
    asked: list[Approval]
    inner: dict[int, list[FlowRef]]
    forks: list[Row]
    around: Row | None
    events: list[Event]

    @property
    def public_id(self) -> str:
        return public_id(self.kind.flow.name, self.flow["id"])


# --- finding


async def page(
    store: Reader,
    kind: Kind,
    wanted: FlowFilter,
    *,
    after: str | None = None,
    limit: int = 50,
    text: str | None = None,
) -> Page:
    """Return one page of flows of a kind, newest first.

    With `text`, each call searches the next few thousand matching flows for it: in their names, keys, correlations,
    reasons, and errors.
    """
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a page holds 1 to {MOST_AT_ONCE} {kind.name}s, not {limit}")

    async def read(place: int | None, most: int) -> list[Row]:
        return await store.flows(kind.flow, wanted, after=place, limit=most)

    return await _paged(kind, read, after, limit, text)


async def asking(
    store: Reader, kind: Kind, tenant_id: int, *, after: str | None = None, limit: int = 50, text: str | None = None
) -> Page:
    """Return one page of the flows that wait for approval, newest first.

    A nested flow counts for its outermost flow. Only the latest approval requests are considered.
    """
    found = await askers(store, await store.approvals(tenant_id, open_only=True, limit=QUESTIONS_LOOKED_AT))
    refs, trees = {one.flow for one in found.values() if one.flow is not None}, set()
    for each in KINDS.values():
        keys = sorted(ref.id for ref in refs if ref.kind is each)
        rows = await store.rows(each.flow, keys, ("id", "tree_id")) if keys else []
        trees |= {row["tree_id"] or row["id"] for row in rows}
    asked = sorted(await store.rows(kind.flow, sorted(trees)) if trees else [], key=itemgetter("id"), reverse=True)

    async def read(place: int | None, most: int) -> list[Row]:
        return [row for row in asked if place is None or row["id"] < place][:most]

    return await _paged(kind, read, after, limit, text)


async def _paged(
    kind: Kind,
    read: Callable[[int | None, int], Awaitable[list[Row]]],
    after: str | None,
    limit: int,
    text: str | None,
) -> Page:
    start = None if after is None else key_of(kind, after)
    if text is not None:
        done = await search(read, itemgetter("id"), _texts, text, after=start, limit=limit)
        return Page(done.found, None if done.next is None else public_id(kind.flow.name, done.next))
    found = await read(start, limit + 1)
    shown = found[:limit]
    return Page(shown, public_id(kind.flow.name, shown[-1]["id"]) if len(found) > limit else None)


def _texts(flow: Row) -> Iterable[str | None]:
    return (flow.get(name) for name in ("name", "key", "correlation_id", "reason", "error"))


def key_of(kind: Kind, id: str) -> int:
    """Return the key in the public ID of a flow of this kind."""
    prefix, key = ids.key_of(id.strip()) or ("", 0)
    if prefix != kind.flow.prefix:
        raise NotFound(what=kind.name, id=repr(id), listing=f"keptwork {kind.name}s list")
    return key


async def find(store: Reader, kind: Kind, tenant_id: int, id: str) -> FlowRef:
    """Return a flow of this kind. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    key = key_of(kind, id)
    if await store.get(kind.flow, key, tenant_id) is None:
        raise NotFound(what=kind.name, id=repr(id), listing=f"keptwork {kind.name}s list")
    return FlowRef(kind, key)


async def history(store: Reader, ref: FlowRef, *, own: bool = False) -> EventFilter:
    """Return a filter for the events of a flow: its `own`, or those of its whole tree."""
    row = await row_of(store, ref)
    if own:
        return EventFilter(row["tenant_id"], ref.kind.flow.name, ref.id)
    return EventFilter(row["tenant_id"], correlation_id=row["correlation_id"] or ref.public_id)


async def find_step(store: Reader, tenant_id: int | None, named: str) -> Row:
    """Return a step by its public ID, or by its flow and name, as in `ws_…/lint`."""
    flow, sign, name = named.strip().partition("/")
    if not sign:
        return await flows.found_step(store, named, tenant_id)
    ref = await flows.found(store, flow, tenant_id)
    rows = await store.steps(ref.id, names=[name])
    if not rows:
        raise NotFound(what="step", id=repr(named), listing=f"keptwork steps list {flow}")
    return rows[0]


async def steps_of(store: Reader, ref: FlowRef) -> list[Row]:
    """Return the steps of a flow as they are shown, in the order of its definition."""
    return in_order(await eta.shown(store, await row_of(store, ref), await store.steps(ref.id)))


async def step_shown(store: Reader, step: Row) -> Row:
    """Return a step as it is shown."""
    flow = await row_of(store, FlowRef(flows.kind_of(step), step["flow_id"]))
    return await eta.one_shown(store, flow, step)


async def step_page(store: Reader, ref: FlowRef, *, after: str | None = None, limit: int = 100) -> StepPage:
    """Return one page of the steps of a flow, in the order of its definition."""
    flow = await row_of(store, ref)
    rows = in_order(await eta.shown(store, flow, await store.steps(ref.id)))
    keys = [row["id"] for row in rows]
    last = None if after is None else (ids.key_of(after) or ("", 0))[1]
    start = keys.index(last) + 1 if last in keys else 0
    page = rows[start : start + limit]
    more = public_id(ref.kind.step.name, page[-1]["id"]) if start + limit < len(rows) else None
    return StepPage(page, await budget_caps.of_steps(store, flow), more)


def states_named(lifecycle: Lifecycle, names: list[str]) -> tuple[str, ...] | None:
    """Return declared states from names as users write them, or None if there are none."""
    known = {state.name.casefold(): state.name for state in lifecycle.states}
    found = []
    for name in names:
        wanted = name.strip().replace("-", "_").casefold()
        if wanted not in known:
            raise BadInput(what=f"a {lifecycle.name} has no state {name!r}; it has: {', '.join(known.values())}")
        found.append(known[wanted])
    return tuple(found) or None


# --- showing


async def story(store: Reader, ref: FlowRef) -> Story:
    """Return everything about a flow."""
    flow = await row_of(store, ref)
    steps = in_order(await eta.shown(store, flow, await store.steps(ref.id)))
    spent = await budget_caps.of_steps(store, flow)
    own = [row["id"] for row in steps if row["parent_id"] is None]
    template = None
    if flow["template_id"] is not None:
        template = await store.template(flow["tenant_id"], flow["template_id"])
    around = await store.steps_by_key([flow["step_id"]]) if flow["step_id"] is not None else []
    return Story(
        ref.kind,
        flow,
        template,
        steps,
        spent,
        await budget_caps.of_flow(store, flow, spent, own),
        await _asked(store, ref.kind, flow["tenant_id"], steps),
        await _inner(store, flow, steps),
        await store.forks(ref.id) if ref.kind.flow is WORKSTREAM else [],
        around[0] if around else None,
        await _events(store, ref, flow, {row["id"] for row in steps}),
    )


def in_order(steps: list[Row]) -> list[Row]:
    """Sort steps as in the definition, with the items of a step right after it."""
    places = {row["id"]: row["position"] for row in steps}
    return sorted(steps, key=lambda row: (places[row["id"]], row["place"] if row["place"] is not None else -1))


async def cost_of_step(store: Reader, step: Row) -> Cost | None:
    """Return the cost of a step, or None if it made no calls."""
    flow = await row_of(store, FlowRef(flows.kind_of(step), step["flow_id"]), ("id", "tree_id"))
    return (await budget_caps.of_steps(store, flow)).get(step["id"])


async def _asked(store: Reader, kind: Kind, tenant_id: int, steps: list[Row]) -> list[Approval]:
    """Return the open approval requests of steps and of their jobs."""
    active = [row for row in steps if phases(kind.step)[row["state"]] is Phase.ACTIVE]
    gates = [await store.gate(tenant_id, row["id"]) for row in active if row["job_id"] is None]
    names = {row["job_id"]: row["name"] for row in active if row["job_id"] is not None}
    jobs = await store.rows(JOB, list(names), ("id", "waits_for")) if names else []
    waiting = {job["id"]: names[job["id"]] for job in jobs if (job["waits_for"] or "").startswith(APPROVAL)}
    asked = [one for one in gates if one is not None and one.decision is None]
    return asked + await asked_by(store, tenant_id, waiting)


async def _inner(store: Reader, flow: Row, steps: list[Row]) -> dict[int, list[FlowRef]]:
    if flow["template_id"] is None:
        return {}
    known = (await shape(store, flow["tenant_id"], flow["template_id"])).steps
    found: dict[int, list[FlowRef]] = {}
    for row in steps:
        if row["name"] in known and known[row["name"]].kind == "flow":
            for kind in KINDS.values():
                inner = await store.subflows(kind.flow, row["id"])
                found.setdefault(row["id"], []).extend(FlowRef(kind, one["id"]) for one in inner)
    return found


async def _events(store: Reader, ref: FlowRef, flow: Row, steps: set[int]) -> list[Event]:
    """Return the latest moves of a flow and its steps, oldest first."""
    own = EventFilter(flow["tenant_id"], ref.kind.flow.name, ref.id)
    belongs = EventFilter(flow["tenant_id"], correlation_id=flow["correlation_id"] or ref.public_id)
    found = await store.events(own, limit=EVENTS_SHOWN, newest_first=True)
    found += await store.events(belongs, limit=4 * EVENTS_SHOWN, newest_first=True)
    about = {(ref.kind.flow.name, ref.id), *((ref.kind.step.name, key) for key in steps)}
    mine = {(event.entity_id, event.seq): event for event in found if (event.entity, event.entity_id) in about}
    return sorted(mine.values(), key=lambda event: (event.ts, event.id))[-EVENTS_SHOWN:]


async def output(store: Store, step: Row) -> Any:
    """Return the output of a step as data, or None if it has none."""
    found = await store.outputs(step["flow_id"], [step["name"]])
    return await content(store, step["tenant_id"], found[0]) if found else None


async def small_outputs(store: Reader, ref: FlowRef, names: list[str]) -> dict[str, Any]:
    """Return the outputs of these steps by name, except those too large for their rows."""
    found = await store.outputs(ref.id, names) if names else []
    return {one.name: json.loads(one.output) for one in found if one.output is not None and one.output_hash is None}


# --- public form


def flow_json(kind: Kind, flow: Row) -> dict[str, Any]:
    """Return a flow in its public form."""
    names = ("name", "key", "error", "reason", "retry_count", "max_retries", "correlation_id", "trace_id", "seq")
    shown: dict[str, Any] = {"id": public_id(kind.flow.name, flow["id"]), "kind": kind.name}
    shown |= {"state": flow["state"], "status": flow["state"], "inputs": inputs_of(flow)}
    shown |= {name: flow[name] for name in names if name in flow}
    shown["trace_id"] = spans.trace_id(flow["trace_id"])
    shown |= {name: _moment(flow[name]) for name in _TIMES}
    forked = flow["forked_from"]
    shown["forked_from"] = None if forked is None else public_id(kind.flow.name, forked)
    return shown


def step_json(step: Row, cost: Cost | None = None) -> dict[str, Any]:
    """Return a step in its public form, without its output."""
    kind = flows.kind_of(step)
    return {
        "id": public_id(kind.step.name, step["id"]),
        "flow": FlowRef(kind, step["flow_id"]).public_id,
        "name": step["name"],
        "state": step["state"],
        "status": step["state"],
        "attempts": step["attempts"],
        "retry_count": step["retry_count"],
        "max_retries": step["max_retries"],
        "job": None if step["job_id"] is None else public_id(JOB.name, step["job_id"]),
        "error": step["error"],
        "reason": step["reason"],
        "cost_micros": None if cost is None else cost.micros,
        "lost_calls": 0 if cost is None else cost.lost,
        "started_at": _moment(step["started_at"]),
        "completed_at": _moment(step["completed_at"]),
        "updated_at": _moment(step["updated_at"]),
    }


async def cost_json(store: Reader, ref: FlowRef) -> dict[str, Any]:
    """Return the cost of a flow, in total and by step."""
    flow, rows = await row_of(store, ref), in_order(await store.steps(ref.id))
    own, spent = [row for row in rows if row["parent_id"] is None], await budget_caps.of_steps(store, flow)
    told = [
        {"id": public_id(ref.kind.step.name, row["id"]), "name": row["name"], **_money(spent[row["id"]])}
        for row in own
        if row["id"] in spent
    ]
    total = await budget_caps.of_flow(store, flow, spent, [row["id"] for row in own])
    return {"id": ref.public_id, **_money(total), "steps": told}


def _money(cost: Cost) -> dict[str, Any]:
    shown = budget_caps.cost_json(cost)
    return {name: shown[name] for name in ("cost_micros", "cost_usd", "lost_calls", "lost_micros", "reserved_micros")}


def story_json(story: Story) -> dict[str, Any]:
    """Return everything about a flow in its public form."""
    shown = flow_json(story.kind, story.flow)
    template = story.template
    shown["template"] = None if template is None else {"id": template.public_id, "version": template.version}
    shown |= {"cost_micros": story.cost.micros, "lost_calls": story.cost.lost, "lost_micros": story.cost.lost_micros}
    shown["steps"] = [
        step_json(row, story.costs.get(row["id"]))
        | {"flows": [ref.public_id for ref in story.inner.get(row["id"], [])]}
        for row in story.steps
    ]
    shown["questions"] = [approval_json(one) for one in story.asked]
    shown["forks"] = [public_id(WORKSTREAM.name, row["id"]) for row in story.forks]
    shown["inside_of"] = None if story.around is None else step_json(story.around)["flow"]
    shown["events"] = [event_json(event) for event in story.events]
    return shown


def took_us(row: Row, now: int) -> int | None:
    """Return how long a step or flow took or has been running, or None if it has not started."""
    if row["started_at"] is None:
        return None
    lifecycle = LIFECYCLES[row["lifecycle"]] if "lifecycle" in row else None
    at_rest = lifecycle is not None and phases(lifecycle)[row["state"]] is Phase.FAILED
    return int((row["completed_at"] or (row["updated_at"] if at_rest else now)) - row["started_at"])


def remark(step: Row) -> str:
    """Return a step's error, or the reason for its state, or ""."""
    meaning = phases(LIFECYCLES[step["lifecycle"]])[step["state"]]
    error = None if meaning is Phase.SATISFIED else step["error"]
    return error or step["reason"] or ""


def _moment(us: int | None) -> str | None:
    return None if us is None else rfc3339(us)


def as_text(value: Any) -> str:
    """Return the output of a step as text for users."""
    return json.dumps(value, indent=2, ensure_ascii=False)
