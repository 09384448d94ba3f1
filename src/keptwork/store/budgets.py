"""Budgets, calls that were paid for and the tokens a model takes, as they go into the store and come out of it."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.budget import hold_of

OPEN, SETTLED, RELEASED, LOST = CHARGE_STATES = ("open", "settled", "released", "lost")
"""How a call stands in the ledger. It has no lifecycle of its own: it belongs to the move of its job."""


class NewBudget(NamedTuple):
    """A budget to be made. `owner` is the key of the job or of the outermost flow, the number of the day, or 0 for all
    of the tenant."""

    tenant_id: int
    owner: int
    scope: str
    subject: str
    cap_micros: int | None
    warn_percent: int
    said_by: str


class Budget(NamedTuple):
    """A budget as it stands. `wanted_micros` is what the last call that was refused may have cost, `let_go_at` when
    jobs that it held were last let go, and `promised_micros` what they have yet to reserve."""

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
        """What the jobs that it holds back are held by."""
        return hold_of(self.scope, self.subject)

    @property
    def left_micros(self) -> int | None:
        """What may still be reserved; none where there is no cap."""
        return None if self.cap_micros is None else self.cap_micros - self.spent_micros - self.reserved_micros


BUDGET_COLUMNS = Budget._fields


class BudgetView(NamedTuple):
    """A budget, and how many jobs it holds back."""

    budget: Budget
    held: int


class NewCharge(NamedTuple):
    """A call that is about to be made: what it may cost at most, and how many tokens were taken for it."""

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
        """Whose budgets it counts against."""
        return owners_of(self.job_id, self.tree_id, self.day)


class Closing(NamedTuple):
    """What came of a call, what it cost and how many tokens it took. It ended now, unless `ended_at` says when."""

    state: str
    cost_micros: int = 0
    outcome: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    ended_at: int | None = None


class Charge(NamedTuple):
    """A call as the ledger has it."""

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
        """Whose budgets it counts against."""
        return owners_of(self.job_id, self.tree_id, self.day)


CHARGE_COLUMNS = Charge._fields


class Closed(NamedTuple):
    """A call that has just been closed, and the budgets it counts against, as they stand since."""

    charge: Charge
    budgets: list[Budget]


class Cost(NamedTuple):
    """What was spent on something. What the lost calls are counted with is in `micros`, too; `open_micros` is not."""

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
    """Several calls: how many, what they may cost at most, and what is spent for them."""

    calls: int = 0
    ceiling_micros: int = 0
    cost_micros: int = 0


class Bucket(NamedTuple):
    """The tokens a model has been asked for: when all of them will have trickled away, at so many a minute, and until
    when the provider wants to be left alone. Times are microseconds."""

    provider: str
    model: str
    empty_at: int = 0
    blocked_until: int = 0
    tokens_per_minute: int | None = None


BUCKET_COLUMNS = Bucket._fields


def owners_of(job_id: int, tree_id: int | None, day: int) -> list[int]:
    """Whose budgets a call of a job counts against."""
    return [job_id, *([] if tree_id is None else [tree_id]), day, 0]
