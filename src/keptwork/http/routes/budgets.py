"""Money: what may be spent, what was, and giving more."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_KEY
from keptwork.budget import micros
from keptwork.http.auth import Administers, Reads
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import After, Db, Most, Name, Text, answer, fails, only
from keptwork.http.routes.agent_jobs import Dollars
from keptwork.http.routes.events import Moment
from keptwork.moments import moment_us
from keptwork.service import budget_caps as service
from keptwork.service import costs
from keptwork.store import Store
from keptwork.store.budgets import BudgetView

router = APIRouter(prefix="/api/budgets", tags=["budgets"])
spent = APIRouter(prefix="/api/cost", tags=["budgets"])

LIST = "budgets"
MOST_CALLS = 20

BudgetName = Annotated[
    Text,
    Path(
        min_length=1,
        max_length=LONGEST_KEY,
        description="`tenant`, `today`, a day (2026-11-16), or the id of a job or a flow.",
    ),
]


class Capped(BaseModel):
    """A budget: what it is for, its cap, what is spent and reserved of it. Money is whole millionths of a dollar."""

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
    """A budget, how many jobs it holds back, and what the last call that did not fit may have cost."""

    held: int
    wanted_micros: int | None


class Budgets(BaseModel):
    """Some budgets, and where to go on if there are more."""

    budgets: list[Budget]
    next: str | None


class Call(BaseModel):
    """A call to a model in the ledger: what it may have cost, and what it did."""

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
    """A budget with the last calls that count against it. `lost_calls` are calls of unknown cost, which count with what
    they may have cost at most, `lost_micros` in all; `lost_count` says how long."""

    calls_in_flight: int
    lost_calls: int
    lost_micros: int
    lost_count: str
    calls: list[Call]


class Recapped(Capped):
    """A budget with its new cap, and how many of the jobs it held were let go at once."""

    let_go: int


class SetCap(Asked):
    """A cap in dollars; null takes it away."""

    model_config = example(usd="2.50")

    usd: Dollars | None = Field(description='Dollars as text, as in "2.50"; null for no cap.')


class RaiseCap(Asked):
    """How much more may be spent."""

    model_config = example(usd="1.00")

    usd: Dollars = Field(description='Dollars as text, as in "1.00", to be added to the cap there is.')


class Sum(BaseModel):
    """What calls did cost. What is lost counts as spent: nobody knows what came of it."""

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
    """What was spent on one thing: a model, a tenant, a flow or a day."""

    name: str
    id: str | None


class Costs(BaseModel):
    """What the tenant has spent since then, added up; days in their order, else the most first."""

    by: str
    since: str
    costs: list[CostLine]
    total: Sum


@router.get("", response_model=Budgets, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, scope: Name = None, after: After = None, limit: Most = 50) -> Response:
    """The budgets: that of the tenant, those of days, and then the others, the newest first."""
    page = await service.page(store, caller.tenant_id, scope=scope, after=opened(LIST, after), limit=limit)
    return answer({"budgets": [service.as_json(one) for one in page.budgets], "next": sealed(LIST, page.next)})


@router.get("/{name}", response_model=WholeBudget, responses=fails(errors.NotFound))
async def show(name: BudgetName, caller: Reads, store: Db) -> Response:
    """One budget, the last calls that count against it, and how long lost calls stay counted."""
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
    """Gives a budget a cap, whatever the configuration or a flow's file says. Jobs that then fit go on."""
    cap = None if asked.usd is None else micros(asked.usd)

    async def work(store: Store) -> dict[str, Any]:
        return _recapped(await service.set_cap(store, caller.tenant_id, name, cap, actor=caller.actor))

    return await does.at_length(asked, work)  # a hundred thousand held jobs are let go in portions


@router.post(
    "/{name}/raise",
    response_model=Recapped,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def raise_cap(name: BudgetName, asked: RaiseCap, caller: Administers, does: Does) -> Response:
    """Adds to the cap of a budget. Some of the jobs that then fit are let go at once, the others by workers."""
    by = micros(asked.usd)

    async def work(store: Store) -> dict[str, Any]:
        return _recapped(await service.raise_cap(store, caller.tenant_id, name, by, actor=caller.actor))

    return await does(asked, work)


@spent.get("", response_model=Costs, responses=fails())
async def cost(
    caller: Reads,
    store: Db,
    by: Annotated[Text, Query(max_length=20, description=f"What to add up by: {', '.join(costs.BY)}.")] = "model",
    since: Moment = "30d",
) -> Response:
    """What the tenant has spent on calls to models. Nobody is told what others have, whatever the scope of the key."""
    start = moment_us(since or "30d", await store.now())
    return answer(costs.as_json(await costs.read(store, caller.tenant_id, by, start, own_only=True)))


def _recapped(raised: service.Raised) -> dict[str, Any]:
    return {**only(Capped, service.as_json(BudgetView(raised.budget, 0))), "let_go": raised.let_go}
