"""A breaker that has been due for a probe for a long time, without a probe."""

from __future__ import annotations

from keptwork.core.lifecycles import BREAKER
from keptwork.core.lifecycles.breaker import OPEN
from keptwork.diagnostics.doctor.finding import DOCTOR, MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.diagnostics.doctor.job_checks_dead_hold import HELD, let_all_go
from keptwork.store import Store
from keptwork.store.contract.store import Reader
from keptwork.store.counters_decisions import decided


async def stuck_breaker_check(reader: Reader, limits: Limits) -> list[Finding]:
    held = {(hold.tenant_id, hold.held_by.removeprefix(HELD)): hold.jobs for hold in await reader.holds()}
    now, found = await reader.now(), []
    for row in await reader.unclosed_breakers(MOST_SHOWN):
        since = max(row["updated_at"], row["probe_at"]) if row["state"] == OPEN.name else row["updated_at"]
        jobs = held.get((row["tenant_id"], row["name"]), 0)
        if jobs and now - since > limits.of(row["state"]):
            found.append(
                Finding(
                    "stuck_breaker",
                    BREAKER.name,
                    row["id"],
                    f"the breaker {row['name']} is {row['state']}, could be tried, and nobody does",
                    since,
                    f"it holds back {jobs} {'job' if jobs == 1 else 'jobs'}",
                    "reset it, so that they are tried",
                    tenant_id=row["tenant_id"],
                )
            )
    return found


async def repair_stuck_breaker(store: Store, finding: Finding) -> None:
    row = await store.get(BREAKER, finding.id, None)
    if row is None:
        return
    change = decided(store, BREAKER, row, "reset", actor=DOCTOR, reason=finding.says)
    if not await store.apply([change]):
        await let_all_go(store, row["tenant_id"], f"{HELD}{row['name']}")


STUCK_BREAKER = StoreCheck("stuck_breaker", stuck_breaker_check, repair_stuck_breaker)
