"""Routes of budgets and costs: list, show, set, and raise budgets; show costs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.agents import budget_caps
from keptwork.agents import budget_caps as service
from keptwork.core.durations import moment_us
from keptwork.core.money import micros
from keptwork.core.validation import LONGEST_KEY
from keptwork.http.auth import Administers, Reads
from keptwork.http.dependencies import After, Db, Most, Name, Text, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.agents import Dollars
from keptwork.http.routes.events import Moment
from keptwork.store import Store
from keptwork.store.contract.budgets import BudgetView

router = APIRouter(prefix="/api/budgets", tags=["budgets"])
spent = APIRouter(prefix="/api/cost", tags=["budgets"])

LIST = "budgets"
MOST_CALLS = 20

BudgetName = Annotated[
    Text,
    Path(
        min_length=1,
        max_length=LONGEST_KEY,
        description="`tenant`, `today`, a date (2026-11-16), or the ID of a job or flow.",
    ),
]


class Capped(BaseModel):
    """A budget: its scope, its cap, and the amounts spent and reserved. Amounts are whole millionths of a US dollar."""

    scope: str
    subject: str
    cap_micros: int | None
    spent_micros: int
    reserved_micros: int
    left_micros: int | None
    warn_percent: int
    said_by: str
    warned_at: str | None
    created_at: str
    updated_at: str


class Budget(Capped):
    """A budget, the number of jobs that it holds, and the maximum cost of the last call that did not fit."""

    held: int
    wanted_micros: int | None


class Budgets(BaseModel):
    """A page of budgets, and the cursor of the next page."""

    budgets: list[Budget]
    next: str | None


class Call(BaseModel):
    """A model call in the ledger: its maximum cost, its cost, and its tokens."""

    job: str
    call: str
    provider: str
    model: str
    state: str
    ceiling_micros: int
    cost_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    created_at: str
    ended_at: str | None


class WholeBudget(Budget):
    """A budget with the latest calls that count against it. `lost_calls` are calls of unknown cost: they count at their
    maximum cost, in total `lost_micros`. `lost_count` describes how long they count."""

    calls_in_flight: int
    lost_calls: int
    lost_micros: int
    lost_count: str
    calls: list[Call]


class Recapped(Capped):
    """A budget with its new cap, and how many holds were lifted immediately (`let_go`)."""

    let_go: int


class SetCap(Asked):
    """A cap in US dollars; null removes the cap."""

    model_config = example(usd="2.50")

    usd: Dollars | None = Field(description='US dollars as a string, such as "2.50"; null for no cap.')


class RaiseCap(Asked):
    """An amount to add to a cap."""

    model_config = example(usd="1.00")

    usd: Dollars = Field(description='US dollars as a string, such as "1.00", to add to the current cap.')


class Sum(BaseModel):
    """The cost of model calls. Lost calls count as spent, because their outcome is unknown."""

    calls: int
    lost_calls: int
    cost_micros: int
    cost_usd: str
    lost_micros: int
    reserved_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


class CostLine(Sum):
    """The cost of one item: a model, tenant, flow, or day."""

    name: str
    id: str | None


class Costs(BaseModel):
    """The costs of the tenant since a time, and their total. Days are in order of time; other lines start with the most
    expensive."""

    by: str
    since: str
    costs: list[CostLine]
    total: Sum


@router.get("", response_model=Budgets, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, scope: Name = None, after: After = None, limit: Most = 50) -> Response:
    """List budgets: the tenant's budget, budgets of days, then all others, newest first."""
    page = await service.page(store, caller.tenant_id, scope=scope, after=opened(LIST, after), limit=limit)
    return answer({"budgets": [service.as_json(one) for one in page.budgets], "next": sealed(LIST, page.next)})


@router.get("/{name}", response_model=WholeBudget, responses=fails(errors.NotFound))
async def show(name: BudgetName, caller: Reads, store: Db) -> Response:
    """Show one budget, its latest calls, and how long lost calls count against it."""
    found = await service.find(store, caller.tenant_id, name)
    unsure = service.uncertain_json(found.budget, await store.uncertain(found.budget))
    calls = [only(Call, service.call_json(call)) for call in await service.last_calls(store, found.budget, MOST_CALLS)]
    return answer({**service.as_json(found), **unsure, "calls": calls})


@router.post(
    "/{name}/set",
    response_model=Recapped,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def set_cap(name: BudgetName, asked: SetCap, caller: Administers, does: Does) -> Response:
    """Set the cap of a budget, over the configuration or the flow file. Held jobs that now fit resume."""
    cap = None if asked.usd is None else micros(asked.usd)

    async def work(store: Store) -> dict[str, Any]:
        return _recapped(await service.set_cap(store, caller.tenant_id, name, cap, actor=caller.actor))

    return await does.at_length(asked, work)  # 100,000 holds are lifted in batches


@router.post(
    "/{name}/raise",
    response_model=Recapped,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def raise_cap(name: BudgetName, asked: RaiseCap, caller: Administers, does: Does) -> Response:
    """Raise the cap of a budget. Some of the held jobs that now fit resume immediately; workers resume the others."""
    by = micros(asked.usd)

    async def work(store: Store) -> dict[str, Any]:
        return _recapped(await service.raise_cap(store, caller.tenant_id, name, by, actor=caller.actor))

    return await does(asked, work)


@spent.get("", response_model=Costs, responses=fails())
async def cost(
    caller: Reads,
    store: Db,
    by: Annotated[
        Text, Query(max_length=20, description=f"Grouping of the costs: {', '.join(budget_caps.BY)}.")
    ] = "model",
    since: Moment = "30d",
) -> Response:
    """Show the cost of the tenant's model calls. Costs of other tenants are never included, regardless of the scopes of
    the key."""
    start = moment_us(since or "30d", await store.now())
    return answer(budget_caps.spent_json(await budget_caps.read(store, caller.tenant_id, by, start, own_only=True)))


def _recapped(raised: service.Raised) -> dict[str, Any]:
    return {**only(Capped, service.as_json(BudgetView(raised.budget, 0))), "let_go": raised.let_go}
