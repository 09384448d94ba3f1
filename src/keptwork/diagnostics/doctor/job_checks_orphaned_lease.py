"""Jobs that are assigned or running although their lease has expired or they have none."""

from __future__ import annotations

from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import ASSIGNED, RUNNING
from keptwork.diagnostics.doctor.finding import DOCTOR, MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.jobs import complete
from keptwork.jobs.outcome_leases import reaped
from keptwork.store import Job, Store
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.store.contract.store import Reader
from keptwork.store.counters_decisions import decided

LEASE_PATIENCE_US = 30_000_000
"""Time after its expiry in which a running worker would have reclaimed a lease."""


async def orphaned_lease_check(reader: Reader, limits: Limits) -> list[Finding]:
    now = await reader.now()
    over = [job for job in await reader.overdue(MOST_SHOWN) if (job.lease_until or now) + LEASE_PATIENCE_US <= now]
    found = [
        _finding(job.id, job.tenant_id, job.state, "the lease of its worker is over", job.lease_until) for job in over
    ]
    for row in await reader.unleased(MOST_SHOWN):
        found.append(
            _finding(row["id"], row["tenant_id"], row["state"], "no worker has a lease on it", row["updated_at"])
        )
    return found


def _finding(id: int, tenant_id: int, state: str, but: str, since: int | None) -> Finding:
    return Finding(
        "orphaned_lease",
        JOB.name,
        id,
        f"the job is {state}, but {but}",
        since,
        "nobody works on it, and no worker is there that would take it back",
        "put it back into its queue, or end it if its attempts are used up",
        tenant_id=tenant_id,
    )


async def repair_orphaned_lease(store: Store, finding: Finding) -> None:
    row = await store.get(JOB, finding.id, None)
    if row is None or row["state"] not in (ASSIGNED.name, RUNNING.name):
        return
    now = await store.now()
    if row["lease_until"] is None:
        change = decided(store, JOB, row, "release", actor=DOCTOR, reason=finding.says)
    elif row["lease_until"] <= now:
        change = reaped(Job(*(row[column] for column in JOB_COLUMNS)), now)._replace(actor=DOCTOR)
    else:
        return
    await complete.applied(store, [change])


ORPHANED_LEASE = StoreCheck("orphaned_lease", orphaned_lease_check, repair_orphaned_lease)
