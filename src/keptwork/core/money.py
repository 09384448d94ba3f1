"""Budgets: amounts of money as text, caps, and the names of budgets and their holds.

Amounts are integer millionths of a dollar. A budget is for a job, a flow (the outermost one), a tenant in total, or one
day of a tenant. Days are in UTC, by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from keptwork.core import ids
from keptwork.errors import BadInput

HOLD = "budget:"
"""Prefix of the hold of a budget. Its scope and subject follow."""

TOTAL = "total"
"""The subject of a tenant's total budget."""

MICROS = 1_000_000
DAY_US = 86_400_000_000
LARGEST_MICROS = 1_000_000_000 * MICROS
_FIRST_DAY = date(1970, 1, 1)


class Scope(StrEnum):
    """The scopes of budgets, in the order in which they are checked."""

    JOB = "job"
    FLOW = "flow"
    TENANT = "tenant"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Caps:
    """The default caps in millionths of a dollar. None means no cap.

    A warning is given when `warn_percent` of a cap is spent.
    """

    job: int | None = None
    flow: int | None = None
    tenant: int | None = None
    day: int | None = None
    warn_percent: int = 80

    @classmethod
    def of_dollars(
        cls,
        job_usd: Decimal | float | str | None = None,
        flow_usd: Decimal | float | str | None = None,
        tenant_usd: Decimal | float | str | None = None,
        day_usd: Decimal | float | str | None = None,
        warn_at: float = 0.8,
    ) -> Caps:
        """Return the caps that a configuration sets."""
        job, flow, tenant, day = (
            None if usd is None else micros(usd) for usd in (job_usd, flow_usd, tenant_usd, day_usd)
        )
        if not 0 < warn_at <= 1:
            raise BadInput(what=f"warn_at is {warn_at!r}; it is the part of a cap from which to warn, as in 0.8")
        return cls(job, flow, tenant, day, round(warn_at * 100))

    def of(self, scope: str) -> int | None:
        """Return the cap of one scope, or None."""
        cap: int | None = getattr(self, Scope(scope).value)
        return cap


NO_CAPS = Caps()


def micros(usd: Decimal | float | str) -> int:
    """Return an exact amount of dollars in millionths. Raise `BadInput` if it is not a valid amount.

    >>> micros("2"), micros("$12.40"), micros(0.0123)
    (2000000, 12400000, 12300)
    """
    try:
        amount = Decimal(str(usd).strip().removeprefix("$")) * MICROS
        possible = 0 <= amount <= LARGEST_MICROS  # checked first, because a number can have a million digits
    except ArithmeticError:
        raise BadInput(what=f"{usd!r} is no amount of dollars; write one like 2.50") from None
    if not possible or amount != int(amount):
        raise BadInput(what=f"{usd!r} is no amount of dollars: from 0 to a billion, with at most six decimal places")
    return int(amount)


def dollars(amount: int) -> str:
    """Return an amount for display.

    >>> dollars(12_400_000), dollars(12_345), dollars(500_000), dollars(850), dollars(7), dollars(-9_500_000)
    ('$12.40', '$0.0123', '$0.50', '$0.00085', '$0.000007', '-$9.50')
    """
    sign, size = "-" if amount < 0 else "", Decimal(abs(amount)) / MICROS
    if size >= 1 or not size % Decimal("0.01"):
        return f"{sign}${size:,.2f}"
    return f"{sign}${size:.4f}" if size > Decimal("0.01") else f"{sign}${f'{size:.6f}'.rstrip('0'):0<6}"


def hold_of(scope: str, subject: str) -> str:
    """Return the hold of the jobs that a budget holds.

    >>> hold_of("day", "2026-11-16")
    'budget:day:2026-11-16'
    """
    return f"{HOLD}{scope}:{subject}"


def owner_of(held_by: str | None) -> int | None:
    """Return the owner of the budget that holds a job, as its row stores it, or None.

    >>> owner_of("budget:day:1970-01-03"), owner_of("budget:tenant:total"), owner_of("breaker:api"), owner_of(None)
    (2, 0, None, None)
    """
    if held_by is None or not held_by.startswith(HOLD):
        return None
    scope, _, subject = held_by.removeprefix(HOLD).partition(":")
    if scope == Scope.TENANT:
        return 0
    if scope == Scope.DAY:
        return day_called(subject)
    found = ids.key_of(subject)
    return found[1] if found else None


def day_of(us: int) -> int:
    """Return the number of a time's day, counted from 1970."""
    return us // DAY_US


def midnight_after(day: int) -> int:
    """Return the time at which a day ends."""
    return (day + 1) * DAY_US


def day_name(day: int) -> str:
    """Return the name of a day.

    >>> day_name(20_773)
    '2026-11-16'
    """
    return (_FIRST_DAY + timedelta(days=day)).isoformat()


def day_called(name: str) -> int | None:
    """Return the number of a day from its name, or None if the name is invalid.

    >>> day_called("2026-11-16"), day_called("soon")
    (20773, None)
    """
    try:
        found = datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None
    return (found - _FIRST_DAY).days
