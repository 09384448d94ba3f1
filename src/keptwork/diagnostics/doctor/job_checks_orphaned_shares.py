"""Unfinished shares of a finished crew, which was edited manually."""

from __future__ import annotations

from functools import partial

from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews
from keptwork.crews.engine import allocate, call_off_shares, lock_of
from keptwork.diagnostics.doctor.finding import DOCTOR, MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.flows import engine as advance
from keptwork.jobs.complete import again_if_moved
from keptwork.store import Store, Transaction
from keptwork.store.contract.store import Reader

REASON = "its crew had ended"


async def orphaned_shares_check(reader: Reader, limits: Limits) -> list[Finding]:
    found = []
    for tenant_id, key in await reader.outlived_crews(MOST_SHOWN):
        count = len(await reader.shares([key], unfinished_only=True))
        (row,) = await reader.rows(CREW, [key], ("id", "state", "completed_at"))
        found.append(
            Finding(
                "orphaned_shares",
                CREW.name,
                key,
                f"it is {row['state']}, but {count} of its shares {'has' if count == 1 else 'have'} not ended",
                row["completed_at"],
                "what comes of them is for nobody, and they occupy workers of its depth",
                "cancel them; those that run are asked to stop",
                tenant_id=tenant_id,
            )
        )
    return found


async def repair_orphaned_shares(store: Store, finding: Finding) -> None:
    await again_if_moved(store, partial(_mend, tenant_id=finding.tenant_id, key=finding.id))


async def _mend(tx: Transaction, tenant_id: int, key: int) -> None:
    row = await tx.get(CREW, key, tenant_id)
    if row is None:
        return
    await tx.lock_trees([crews.tree_of(row), lock_of(tenant_id)])
    over = await call_off_shares(tx, row, REASON, DOCTOR)
    await allocate(tx, tenant_id)
    await advance.crews_ended(tx, over)


ORPHANED_SHARES = StoreCheck("orphaned_shares", orphaned_shares_check, repair_orphaned_shares)
