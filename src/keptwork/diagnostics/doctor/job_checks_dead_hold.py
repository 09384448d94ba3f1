"""Jobs that are held by a breaker that is closed or does not exist."""

from __future__ import annotations

from keptwork.core.lifecycles import BREAKER
from keptwork.core.lifecycles.breaker import CLOSED
from keptwork.diagnostics.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.store import Store
from keptwork.store.contract.store import Reader

HELD = "breaker:"
"""Prefix of a breaker's hold. The name of the breaker follows."""

HOLD_PATIENCE_US = 30_000_000
"""Time in which a running worker would have lifted the holds of a closed breaker."""

MOST_AT_ONCE = 1_000


async def dead_hold_check(reader: Reader, limits: Limits) -> list[Finding]:
    unclosed = {(row["tenant_id"], row["name"]) for row in await reader.unclosed_breakers(MOST_SHOWN)}
    now = await reader.now()
    return [
        Finding(
            "dead_hold",
            BREAKER.name,
            0,
            f"{'1 job is' if hold.jobs == 1 else f'{hold.jobs} jobs are'} held by {hold.held_by}, "
            f"but there is no such breaker that is not {CLOSED.name}",
            hold.since,
            "nothing will let them go",
            "let them go",
            tenant_id=hold.tenant_id,
            about=hold.held_by,
        )
        for hold in await reader.holds()
        if hold.held_by.startswith(HELD)
        and (hold.tenant_id, hold.held_by.removeprefix(HELD)) not in unclosed
        and hold.since + HOLD_PATIENCE_US <= now
    ]


async def repair_dead_hold(store: Store, finding: Finding) -> None:
    await let_all_go(store, finding.tenant_id, finding.about)


async def let_all_go(store: Store, tenant_id: int, held_by: str) -> None:
    """Lift the holds of all jobs with this hold."""
    while await store.let_go(tenant_id, held_by, MOST_AT_ONCE) == MOST_AT_ONCE:
        continue


DEAD_HOLD = StoreCheck("dead_hold", dead_hold_check, repair_dead_hold)
