"""Budget caps: set them, find budgets by name, and lift the holds of jobs that fit.

A budget holds a job from when one of its calls does not fit until it would fit: because the cap was raised, because
other calls cost less than was reserved, or because the day has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from keptwork.agents import budget_rules
from keptwork.agents.budget_rules import CONFIG
from keptwork.agents.budgets import new_for_flow
from keptwork.core import ids
from keptwork.core.durations import moment, rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, RUN, WORKSTREAM
from keptwork.core.money import (
    LARGEST_MICROS,
    MICROS,
    NO_CAPS,
    TOTAL,
    Scope,
    day_called,
    day_name,
    day_of,
    dollars,
    midnight_after,
    owner_of,
)
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, NotFound
from keptwork.flows import commands as flows
from keptwork.jobs import queries
from keptwork.jobs.held_jobs import PORTION, Tended, all_gone
from keptwork.store import EventFilter, Store, Transaction
from keptwork.store.acknowledged import acknowledged
from keptwork.store.contract.budgets import LOST, NO_COST, OPEN, Budget, BudgetView, Charge, Cost, NewBudget, Sum
from keptwork.store.contract.store import Reader

TODAY = "today"
MOST_LOST = 10_000
LARGEST_KEY = (1 << 63) - 1

Row = dict[str, Any]


class Raised(NamedTuple):
    """A budget with its new cap, and the number of jobs whose holds were lifted immediately."""

    budget: Budget
    let_go: int


async def named(store: Store, tenant_id: int, name: str) -> NewBudget:
    """Return the budget that a user names: `tenant`, `today`, a day, or the ID of a job or flow.

    The budget need not exist yet, but the job or flow must.
    """
    said = name.strip()
    if said in (TOTAL, Scope.TENANT):
        return _new(tenant_id, 0, Scope.TENANT, TOTAL)
    day = day_of(await store.now()) if said == TODAY else day_called(said)
    if day is not None:
        return _new(tenant_id, day, Scope.DAY, day_name(day))
    prefix, key = ids.key_of(said) or ("", 0)
    if prefix == JOB.prefix:
        await queries.find(store, tenant_id, said)
        return _new(tenant_id, key, Scope.JOB, said)
    if prefix in (RUN.prefix, WORKSTREAM.prefix):
        return await _of_flow(store, tenant_id, said)
    raise NotFound(what="budget", id=repr(name), listing="keptwork budgets list")


async def _of_flow(store: Store, tenant_id: int, id: str) -> NewBudget:
    ref = await flows.found(store, id, tenant_id)
    row = await flows.row_of(store, ref, ("id", "tree_id"))
    if row["tree_id"] not in (None, ref.id):
        raise BadInput(
            what=f"{id} is inside another flow, and only the outermost one has a budget; see: keptwork why {id}"
        )
    return await new_for_flow(store, tenant_id, ref.id, NO_CAPS)


def _new(tenant_id: int, owner: int, scope: Scope, subject: str) -> NewBudget:
    return NewBudget(tenant_id, owner, scope, subject, None, NO_CAPS.warn_percent, CONFIG)


async def find(store: Store, tenant_id: int, name: str) -> BudgetView:
    """Return a budget by its name, and its number of held jobs. Raise `NotFound` if it was never used."""
    found = await store.budget(tenant_id, (await named(store, tenant_id, name)).owner)
    if found is None:
        raise NotFound(what="budget that was ever used", id=repr(name), listing="keptwork budgets list")
    return found


class Page(NamedTuple):
    """A page of budgets, and the cursor of the next page if there are more."""

    budgets: list[BudgetView]
    next: str | None


async def page(
    store: Store, tenant_id: int, *, scope: str | None = None, after: str | None = None, limit: int = 50
) -> Page:
    """Return one page of a tenant's budgets.

    The tenant's own budget comes first, then those of days, then the others, newest first.
    """
    if scope is not None and scope not in list(Scope):
        raise BadInput(what=f"there are no budgets for a {scope!r}; a budget is for a {', '.join(Scope)}")
    found = await store.budgets(tenant_id, scope=scope, after=_place(after), limit=limit + 1)
    more = found[limit - 1].budget if len(found) > limit else None
    return Page(found[:limit], None if more is None else f"{more.scope}:{more.owner}")


def _place(after: str | None) -> tuple[str, int] | None:
    if after is None:
        return None
    scope, _, owner = after.partition(":")
    if scope not in list(Scope) or not owner.removeprefix("-").isdecimal() or abs(int(owner)) > LARGEST_KEY:
        raise BadInput(what=f"{after!r} is no place in a list of budgets; take one from an earlier answer")
    return scope, int(owner)


@acknowledged
async def set_cap(store: Store, tenant_id: int, name: str, cap_micros: int | None, *, actor: str) -> Raised:
    """Set or remove the cap of a budget, and lift the holds of the jobs that then fit."""
    budget = await _recapped(store, tenant_id, name, lambda _: cap_micros, actor)
    return Raised(budget, await all_gone(partial(tend, store, tenant_id, budget.hold)))


@acknowledged
async def raise_cap(store: Store, tenant_id: int, name: str, by_micros: int, *, actor: str) -> Raised:
    """Raise the cap of a budget by this amount, and lift a portion of its holds immediately.

    Workers lift the others that fit.
    """

    def more(budget: Budget) -> int:
        if budget.cap_micros is None:
            raise BadInput(what=f"{budget_rules.called(budget)} has no cap that could be raised; set one")
        if budget.cap_micros + by_micros > LARGEST_MICROS:
            raise BadInput(what="a cap of more than a billion dollars cannot be kept")
        return budget.cap_micros + by_micros

    budget = await _recapped(store, tenant_id, name, more, actor)
    return Raised(budget, (await tend(store, tenant_id, budget.hold)).let_go)


async def _recapped(store: Store, tenant_id: int, name: str, cap: Callable[[Budget], int | None], actor: str) -> Budget:
    check_name("actor", actor)
    new = await named(store, tenant_id, name)
    await store.make_budgets([new])

    async def changed(tx: Transaction) -> Budget:
        (found,) = await tx.lock_budgets(tenant_id, [new.owner])
        budget = found._replace(cap_micros=cap(found), said_by=actor, promised_micros=0)
        kept = budget if budget_rules.is_near(budget) else budget._replace(warned_at=None)
        await tx.keep_budget(kept)
        return kept

    return await store.atomically(changed)


async def tend(store: Store, tenant_id: int, hold: str) -> Tended:
    """Lift the holds of jobs that fit into a budget, up to one portion in one transaction."""
    owner = owner_of(hold)
    found = None if owner is None else await store.budget(tenant_id, owner)
    if found is not None and budget_rules.may_go(found.budget, await store.now()) == 0:
        return Tended()
    return await store.atomically(lambda tx: _let_go(tx, tenant_id, hold, owner), weight=PORTION)


async def _let_go(tx: Transaction, tenant_id: int, hold: str, owner: int | None) -> Tended:
    locked = [] if owner is None else await tx.lock_budgets(tenant_id, [owner])
    budget, now = locked[0] if locked else None, await tx.now()
    many = budget_rules.may_go(budget, now)
    if many == 0:
        return Tended()
    gone = await tx.let_go(tenant_id, hold, PORTION if many is None else min(many, PORTION))
    if budget is not None and gone:
        await tx.keep_budget(budget_rules.let_go(budget, gone, now))
    return Tended(gone, gone == PORTION and many != PORTION)


async def holding(store: Store, job: Row) -> Budget | None:
    """Return the budget that holds a job, from the job's whole row, or None if no budget does."""
    owner = owner_of(job["held_by"])
    found = None if owner is None else await store.budget(job["tenant_id"], owner)
    return None if found is None else found.budget


async def full(store: Store, tenant_id: int, holds: Iterable[str]) -> set[str]:
    """Return those of these holds that stay until a budget's cap is raised or its day ends."""
    now, found = await store.now(), set[str]()
    for hold in set(holds):
        owner = owner_of(hold)
        view = None if owner is None else await store.budget(tenant_id, owner)
        if view is not None and not budget_rules.may_fit(view.budget, now):
            found.add(hold)
    return found


async def last_calls(store: Store, budget: Budget, limit: int) -> list[Charge]:
    """Return the latest calls that count against a budget."""
    owner, scope = budget.owner, budget.scope
    job, tree, day = (owner if scope == own else None for own in (Scope.JOB, Scope.FLOW, Scope.DAY))
    return await store.charges(budget.tenant_id, job=job, tree=tree, day=day, limit=limit)


def counted_until(budget: Budget) -> str:
    """Return how long a lost call counts against a budget, as text."""
    if budget.scope == Scope.DAY:
        return f"until {moment(midnight_after(budget.owner))}"
    return "permanently" if budget.scope == Scope.TENANT else f"for the rest of the {budget.scope}"


async def left_counted(store: Reader, tenant_id: int, *, job: int | None = None, tree: int | None = None) -> str | None:
    """Return a text about the lost calls of an ended job or flow that count with their ceilings.

    Return None if there are none.
    """
    lost = await store.charges(tenant_id, job=job, tree=tree, state=LOST, limit=MOST_LOST)
    if not lost:
        return None
    calls = "1 call was cut off and counts" if len(lost) == 1 else f"{len(lost):,} calls were cut off and count"
    amount, day = dollars(sum(call.cost_micros for call in lost)), max(call.day for call in lost)
    until = f"against the budget of the day until {moment(midnight_after(day))}, against the others permanently"
    return f"{calls} with {amount}: {until}. A late answer replaces that amount by the cost."


def command(budget: Budget) -> str:
    """Return the command that raises the cap of a budget."""
    name = Scope.TENANT if budget.scope == Scope.TENANT else budget.subject
    return f"keptwork budgets set {name} USD"


def as_json(standing: BudgetView) -> dict[str, Any]:
    """Return a budget in the form that commands print."""
    budget = standing.budget
    shown = (
        "scope",
        "subject",
        "cap_micros",
        "spent_micros",
        "reserved_micros",
        "left_micros",
        "warn_percent",
        "said_by",
    )
    return {
        **{name: getattr(budget, name) for name in shown},
        "held": standing.held,
        "wanted_micros": budget.wanted_micros if standing.held else None,
        "warned_at": None if budget.warned_at is None else rfc3339(budget.warned_at),
        "created_at": rfc3339(budget.created_at),
        "updated_at": rfc3339(budget.updated_at),
    }


def uncertain_json(budget: Budget, found: Mapping[str, Sum]) -> dict[str, Any]:
    """Return the calls with unknown costs against a budget, in the form that commands print."""
    flying, lost = found.get(OPEN, Sum()), found.get(LOST, Sum())
    return {
        "calls_in_flight": flying.calls,
        "lost_calls": lost.calls,
        "lost_micros": lost.cost_micros,
        "lost_count": counted_until(budget),
    }


def call_json(call: Charge) -> dict[str, Any]:
    """Return a call in the form that commands print."""
    left_out = ("id", "tenant_id", "job_id", "tree_id", "agent_id", "epoch", "taken", "day", "created_at", "ended_at")
    shown = {name: value for name, value in call._asdict().items() if name not in left_out}
    ended = None if call.ended_at is None else rfc3339(call.ended_at)
    return {**shown, "job": public_id(JOB.name, call.job_id), "created_at": rfc3339(call.created_at), "ended_at": ended}


# Show spending: the ledger's sums by model, tenant, flow, or day.


BY = ("model", "tenant", "flow", "day")
"""Dimensions by which spending can be summed."""

NO_FLOW = "no flow"


class Line(NamedTuple):
    """The spending of one subject, with its name and, if it has one, its public ID."""

    name: str
    id: str | None
    cost: Cost


class Costs(NamedTuple):
    """Spending by subject, and the total. Days are in order; other subjects start with the largest."""

    by: str
    since: int
    lines: list[Line]
    total: Cost


async def read(store: Store, tenant_id: int, by: str, since: int, *, own_only: bool = False) -> Costs:
    """Return the spending of a tenant. By tenant, return that of all tenants, unless `own_only` is set."""
    if by not in BY:
        raise BadInput(what=f"costs are not added up by {by!r}, but by {', '.join(BY)}")
    found = await store.costs(by, None if by == "tenant" and not own_only else tenant_id, since)
    names = await _names(store, by, found)
    lines = [Line(*names[cost.subject], cost) for cost in found]
    if by == "day":
        lines.sort(key=lambda line: line.name)
    return Costs(by, since, lines, _total(found))


def _total(found: list[Cost]) -> Cost:
    sums = [sum(column) for column in zip(*(cost[1:] for cost in found), strict=True)]
    return Cost("total", *sums) if found else NO_COST._replace(subject="total")


async def _names(store: Store, by: str, found: list[Cost]) -> dict[str, tuple[str, str | None]]:
    subjects = [cost.subject for cost in found]
    if by == "day":
        return {subject: (day_name(int(subject)), None) for subject in subjects}
    if by == "tenant":
        known = {str(tenant.id): tenant.name for tenant in await store.tenants()}
        return {subject: (known.get(subject, f"tenant {subject}"), None) for subject in subjects}
    return await _flows(store, subjects) if by == "flow" else {subject: (subject, None) for subject in subjects}


async def _flows(store: Store, subjects: list[str]) -> dict[str, tuple[str, str | None]]:
    """Return the names and IDs of flows.

    A deleted flow has no name any more, but its events have its ID. Spending outside flows has neither.
    """
    named: dict[str, tuple[str, str | None]] = {"0": (NO_FLOW, None)}
    for kind in (RUN, WORKSTREAM):
        rows = await store.rows(kind, [int(subject) for subject in subjects], ("id", "name")) if subjects else []
        named |= {str(row["id"]): (row["name"] or kind.name, public_id(kind.name, row["id"])) for row in rows}
    return named | {subject: await _gone(store, int(subject)) for subject in subjects if subject not in named}


async def _gone(store: Store, key: int) -> tuple[str, str | None]:
    born = await store.events(EventFilter(entity_id=key), limit=1)
    return (f"deleted {born[0].entity}", public_id(born[0].entity, key)) if born else (f"flow {key}", None)


async def of_steps(store: Reader, flow: Mapping[str, Any]) -> dict[int, Cost]:
    """Return the costs of a flow's steps by the ledger, without steps that made no calls."""
    return await store.step_costs(flow["id"], flow["tree_id"] or flow["id"])


async def of_flow(store: Reader, flow: Mapping[str, Any], steps: Mapping[int, Cost], own: Iterable[int]) -> Cost:
    """Return the cost of a flow: its tree if it is outermost, otherwise its `own` steps."""
    if flow["tree_id"] in (None, flow["id"]):
        return await store.tree_cost(flow["tenant_id"], flow["id"])
    return _total([steps[id] for id in own if id in steps])


def lost_words(cost: Cost) -> str | None:
    """Return a text about the lost calls in a sum, or None if there are none.

    >>> lost_words(NO_COST._replace(lost=1, lost_micros=42_000))
    '1 lost call counts with $0.0420, because nobody knows its cost'
    """
    if not cost.lost:
        return None
    calls, their = ("1 lost call counts", "its") if cost.lost == 1 else (f"{cost.lost:,} lost calls count", "their")
    return f"{calls} with {dollars(cost.lost_micros)}, because nobody knows {their} cost"


def spent_json(found: Costs) -> dict[str, Any]:
    """Return spending in the form that commands print."""
    lines = [{"name": line.name, "id": line.id, **cost_json(line.cost)} for line in found.lines]
    return {"by": found.by, "since": rfc3339(found.since), "costs": lines, "total": cost_json(found.total)}


def usd(amount: int) -> str:
    """Return an exact amount in dollars, for programs.

    >>> usd(12_300)
    '0.012300'
    """
    return f"{Decimal(amount) / MICROS:.6f}"


def cost_json(cost: Cost) -> dict[str, Any]:
    """Return a sum in the form that commands print."""
    return {
        "calls": cost.calls,
        "lost_calls": cost.lost,
        "cost_micros": cost.micros,
        "cost_usd": usd(cost.micros),
        "lost_micros": cost.lost_micros,
        "reserved_micros": cost.open_micros,
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
        "cache_read_tokens": cost.cache_read_tokens,
        "cache_write_tokens": cost.cache_write_tokens,
    }
