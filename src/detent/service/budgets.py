"""What agents may spend: reserved before a call, settled after it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from detent.agent.conversation import Usage
from detent.store import Store, Transaction


class Reserved(NamedTuple):
    """What was put aside for a call."""

    id: int
    warning: str | None = None


class Refused(NamedTuple):
    """Why a call must not be made now. Held by a cap, it waits until that is raised; else until a time."""

    hold: str | None
    reason: str
    until_us: int | None = None


async def reserve(
    store: Store,
    *,
    tenant_id: int,
    job_id: int,
    flow_tree: int | None,
    call: str,
    provider: str,
    model: str,
    ceiling_micros: int,
    tokens: int,
) -> Reserved | Refused:
    """Puts aside what a call may cost."""
    return Reserved(0)


async def settle(
    tx: Transaction, reservation_id: int, *, cost_micros: int, usage: Usage, outcome: Literal["answered", "failed"]
) -> None:
    """What it did cost."""


async def release(tx: Transaction, reservation_id: int) -> None:
    """Nothing was sent."""


async def lost(store: Store, job_id: int, call: str) -> int:
    """What an earlier attempt put aside for this call, and never settled, is lost; returns how many."""
    return 0
