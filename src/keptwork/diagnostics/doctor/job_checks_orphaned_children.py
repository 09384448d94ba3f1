"""Unfinished jobs that were spawned by a cancelled job."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB
from keptwork.diagnostics.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.jobs import commands_children
from keptwork.store import Store
from keptwork.store.contract.store import Reader


async def orphaned_children_check(reader: Reader, limits: Limits) -> list[Finding]:
    found = []
    for tenant_id, parent in await reader.cancelled_parents(MOST_SHOWN):
        count = len(await reader.unfinished_children(tenant_id, [parent]))
        have = "has" if count == 1 else "have"
        (row,) = await reader.rows(JOB, [parent], ("id", "state", "completed_at"))
        found.append(
            Finding(
                "orphaned_children",
                JOB.name,
                parent,
                f"the job is {row['state']}, but {count} of the jobs it spawned {have} not ended",
                row["completed_at"],
                "what comes of them is for nobody",
                "cancel them; those that run are asked to stop",
                tenant_id=tenant_id,
            )
        )
    return found


async def repair_orphaned_children(store: Store, finding: Finding) -> None:
    await commands_children.cancel_children(store, finding.tenant_id, finding.id)


ORPHANED_CHILDREN = StoreCheck("orphaned_children", orphaned_children_check, repair_orphaned_children)
