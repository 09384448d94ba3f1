"""Whether a call may be paid for: pure decisions about budgets and about the tokens a model takes in a minute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from keptwork.budget import Caps, Scope, day_of, dollars, midnight_after
from keptwork.store.budgets import Bucket, Budget

CONFIG = "config"
"""Who said a cap that nobody else did: it follows the configuration. What somebody said stays."""

TURN_US = 1_000_000
"""So long after jobs were let go, what they need is kept free for them."""

MINUTE_US = 60_000_000

_ORDER = list(Scope)


class Wait(NamedTuple):
    """A model is not to be asked before then, and why."""

    until_us: int
    reason: str


# --- budgets


def configured(budget: Budget, caps: Caps) -> Budget:
    """A budget as the configuration has it now, unless somebody said otherwise."""
    cap = caps.of(budget.scope) if budget.said_by == CONFIG else budget.cap_micros
    changed = budget._replace(cap_micros=cap, warn_percent=caps.warn_percent)
    return changed if is_near(changed) or budget.warned_at is None else changed._replace(warned_at=None)


def refusing(budgets: Iterable[Budget], ceiling: int) -> Budget | None:
    """The budget that a call which may cost so much does not fit into; of several, the one of the narrowest scope."""
    full = [budget for budget in budgets if budget.left_micros is not None and budget.left_micros < ceiling]
    return min(full, key=lambda budget: _ORDER.index(Scope(budget.scope)), default=None)


def refusal(budget: Budget, ceiling: int) -> str:
    """Why a call does not fit, and what would make it."""
    if budget.cap_micros is not None and ceiling > budget.cap_micros:
        why = f"one call may cost {dollars(ceiling)}, which is more than the whole cap"
    else:
        why = f"the next call may cost {dollars(ceiling)}"
    return f"{standing(budget)}, and {why}"


def standing(budget: Budget) -> str:
    """How a budget stands, in words."""
    if budget.cap_micros is None:
        return f"{called(budget)} has no cap: {dollars(budget.spent_micros)} spent"
    under_way = f" and {dollars(budget.reserved_micros)} reserved" if budget.reserved_micros else ""
    return f"{called(budget)} has {dollars(budget.spent_micros)} of {dollars(budget.cap_micros)} spent{under_way}"


def called(budget: Budget) -> str:
    """What a budget is called in a sentence."""
    if budget.scope == Scope.TENANT:
        return "the tenant's budget"
    return f"the budget of {'the day ' if budget.scope == Scope.DAY else ''}{budget.subject}"


def over_at(budget: Budget) -> int | None:
    """When a budget ends by itself: that of a day does."""
    return midnight_after(budget.owner) if budget.scope == Scope.DAY else None


def is_near(budget: Budget) -> bool:
    """Whether so much is spent that a warning is due."""
    cap = budget.cap_micros
    return cap is not None and budget.spent_micros * 100 >= cap * budget.warn_percent


def warned(budgets: Iterable[Budget], now: int) -> list[Budget]:
    """Those that a warning is to be given for, once each, with the time of it."""
    return [budget._replace(warned_at=now) for budget in budgets if budget.warned_at is None and is_near(budget)]


def warning(budgets: Iterable[Budget]) -> str | None:
    """The warning itself; none for none."""
    return "; ".join(standing(budget) for budget in budgets) or None


def may_go(budget: Budget | None, now: int) -> int | None:
    """How many of the jobs that a budget holds back may go now; none is all of them. As many go as would fit, going by
    what the last one wanted that did not; what does not fit after all comes back, and says what it wants."""
    if budget is None or budget.cap_micros is None or (budget.scope == Scope.DAY and budget.owner < day_of(now)):
        return None
    left = budget.cap_micros - budget.spent_micros - budget.reserved_micros - _promised(budget, now)
    return max(left, 0) // _wanted(budget)


def may_fit(budget: Budget | None, now: int) -> bool:
    """Return whether a held job can fit without a higher cap: now, or when the calls in flight have settled."""
    if budget is None or budget.cap_micros is None or (budget.scope == Scope.DAY and budget.owner < day_of(now)):
        return True
    return budget.cap_micros - budget.spent_micros >= _wanted(budget)


def let_go(budget: Budget, jobs: int, now: int) -> Budget:
    """The budget after so many jobs were let go: what they may need is kept free for them, for a moment."""
    return budget._replace(promised_micros=_promised(budget, now) + jobs * _wanted(budget), let_go_at=now)


def promise_kept(budget: Budget, ceiling: int) -> Budget:
    """The budget when a call is made: one of those that it was kept free for, as far as is known."""
    return budget._replace(promised_micros=max(budget.promised_micros - ceiling, 0))


def _promised(budget: Budget, now: int) -> int:
    fresh = budget.let_go_at is not None and now < budget.let_go_at + TURN_US
    return budget.promised_micros if fresh else 0


def _wanted(budget: Budget) -> int:
    return max(budget.wanted_micros or 0, 1)


# --- tokens


def asked(bucket: Bucket, tokens: int, per_minute: int | None, now: int) -> Bucket | Wait:
    """The bucket after a call took that many tokens, or how long it has to wait. A minute's worth may be taken at once;
    a call that takes more than that goes when nothing else is under way."""
    if bucket.blocked_until > now:
        return Wait(bucket.blocked_until, f"{bucket.provider} asked to leave {bucket.model} alone for a while")
    if per_minute is None:
        return bucket
    backlog, more = max(bucket.empty_at - now, 0), _takes_us(tokens, per_minute)
    if backlog and backlog + more > MINUTE_US:
        until = now + min(backlog, backlog + more - MINUTE_US)
        return Wait(until, f"{bucket.model} takes {per_minute:,} tokens a minute, and the fleet has asked for them")
    return bucket._replace(empty_at=now + backlog + more, tokens_per_minute=per_minute)


def corrected(bucket: Bucket, taken: int, used: int, now: int) -> Bucket:
    """The bucket when it is known how many tokens a call used, instead of those that were taken for it."""
    if bucket.tokens_per_minute is None:
        return bucket
    more = _takes_us(abs(used - taken), bucket.tokens_per_minute)
    empty_at = max(bucket.empty_at, now) + more if used > taken else bucket.empty_at - more
    return bucket._replace(empty_at=max(empty_at, 0))


def _takes_us(tokens: int, per_minute: int) -> int:
    """How long that many tokens take to trickle away."""
    return -(-tokens * MINUTE_US // max(per_minute, 1))
