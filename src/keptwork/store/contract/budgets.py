"""Budgets, the ledger of paid calls, and the token buckets of models, as the store keeps them."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.core.money import hold_of

OPEN, SETTLED, RELEASED, LOST = CHARGE_STATES = ("open", "settled", "released", "lost")
"""The states of a call in the ledger. A call has no lifecycle of its own, since it belongs to a move of its job."""


class NewBudget(NamedTuple):
    """A budget to create. `owner` is the ID of the job or outermost flow, the number of the day, or 0 for the whole
    tenant."""

    tenant_id: int
    owner: int
    scope: str
    subject: str
    cap_micros: int | None
    warn_percent: int
    said_by: str


class Budget(NamedTuple):
    """A budget as it is now. `wanted_micros` is the possible cost of the last rejected call. `let_go_at` is when held
    jobs were last released from the budget, and `promised_micros` is what they have not reserved yet."""

    tenant_id: int
    owner: int
    scope: str
    subject: str
    cap_micros: int | None
    warn_percent: int
    said_by: str
    spent_micros: int
    reserved_micros: int
    wanted_micros: int | None
    promised_micros: int
    let_go_at: int | None
    warned_at: int | None
    created_at: int
    updated_at: int

    @property
    def hold(self) -> str:
        """The hold of the jobs that the budget holds."""
        return hold_of(self.scope, self.subject)

    @property
    def left_micros(self) -> int | None:
        """The amount that can still be reserved, or None without a cap."""
        return None if self.cap_micros is None else self.cap_micros - self.spent_micros - self.reserved_micros


BUDGET_COLUMNS = Budget._fields


class BudgetView(NamedTuple):
    """A budget with the number of jobs that it holds."""

    budget: Budget
    held: int


class NewCharge(NamedTuple):
    """A call that is about to be made, with its maximum cost and the tokens taken for it."""

    tenant_id: int
    job_id: int
    tree_id: int | None
    call: str
    provider: str
    model: str
    ceiling_micros: int
    day: int
    taken: int = 0
    epoch: int = 0
    agent_id: int | None = None

    @property
    def owners(self) -> list[int]:
        """The owners of the budgets that the call counts against."""
        return owners_of(self.job_id, self.tree_id, self.day)


class Closing(NamedTuple):
    """The outcome of a call, its cost, and its tokens. It ended now, unless `ended_at` is set."""

    state: str
    cost_micros: int = 0
    outcome: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    ended_at: int | None = None


class Charge(NamedTuple):
    """A call in the ledger."""

    id: int
    tenant_id: int
    job_id: int
    tree_id: int | None
    agent_id: int | None
    epoch: int
    call: str
    provider: str
    model: str
    state: str
    outcome: str | None
    ceiling_micros: int
    cost_micros: int
    taken: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    day: int
    created_at: int
    ended_at: int | None

    @property
    def owners(self) -> list[int]:
        """The owners of the budgets that the call counts against."""
        return owners_of(self.job_id, self.tree_id, self.day)


CHARGE_COLUMNS = Charge._fields


class Closed(NamedTuple):
    """A call that was just closed, with the budgets it counts against as they are now."""

    charge: Charge
    budgets: list[Budget]


class Cost(NamedTuple):
    """The cost of a subject. `micros` includes what lost calls are counted with, but not `open_micros`."""

    subject: str
    calls: int
    lost: int
    micros: int
    lost_micros: int
    open_micros: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


NO_COST = Cost("", *[0] * 9)


class Sum(NamedTuple):
    """A group of calls: their number, their maximum cost, and what was spent on them."""

    calls: int = 0
    ceiling_micros: int = 0
    cost_micros: int = 0


class Bucket(NamedTuple):
    """The tokens requested from a model. `empty_at` is when they will have drained at `tokens_per_minute`, and
    `blocked_until` is when the provider accepts requests again. Times are in microseconds."""

    provider: str
    model: str
    empty_at: int = 0
    blocked_until: int = 0
    tokens_per_minute: int | None = None


BUCKET_COLUMNS = Bucket._fields


def owners_of(job_id: int, tree_id: int | None, day: int) -> list[int]:
    """Return the owners of the budgets that a job's call counts against."""
    return [job_id, *([] if tree_id is None else [tree_id]), day, 0]
