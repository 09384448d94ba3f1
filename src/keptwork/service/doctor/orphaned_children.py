"""Unfinished jobs that were spawned by a cancelled job."""

from __future__ import annotations

from keptwork.lifecycle import JOB
from keptwork.service import children
from keptwork.service.doctor.chart import Limits
from keptwork.service.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from keptwork.store import Store
from keptwork.store.protocol import Reader


async def look(reader: Reader, limits: Limits) -> list[Finding]:
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


async def mend(store: Store, finding: Finding) -> None:
    await children.cancel(store, finding.tenant_id, finding.id)


CHECK = StoreCheck("orphaned_children", look, mend)
