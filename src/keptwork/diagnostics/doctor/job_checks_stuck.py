"""A job that has been assigned or running for a long time."""

from __future__ import annotations

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import ASSIGNED, RUNNING
from keptwork.diagnostics.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.diagnostics.doctor.job_checks_orphaned_lease import LEASE_PATIENCE_US
from keptwork.flows.transaction import Row
from keptwork.store.contract.store import Reader


async def stuck_job_check(reader: Reader, limits: Limits) -> list[Finding]:
    now, found = await reader.now(), []
    for state in (ASSIGNED.name, RUNNING.name):
        for row in await reader.long_at_work([state], now - limits.of(state), MOST_SHOWN):
            lease = row["lease_until"]
            if lease is not None and lease + LEASE_PATIENCE_US > now:  # otherwise `orphaned_lease` finds it
                found.append(await _found(reader, row, state))
    return found


async def _found(reader: Reader, row: Row, state: str) -> Finding:
    (asked,) = await reader.rows(JOB, [row["id"]], ("cancel_requested_at",))
    stops = asked["cancel_requested_at"] is not None
    cancel = f"keptwork jobs cancel {public_id(JOB.name, row['id'])}"
    return Finding(
        "stuck_job",
        JOB.name,
        row["id"],
        f"the job ({row['kind']}) is {state} for long, "
        + ("and was asked to stop, which it does not" if stops else "and its worker still keeps its lease"),
        row["updated_at"],
        "its handler hangs, or takes its time to end" if stops else "either it takes this long, or its handler hangs",
        None,
        f"{cancel} --hard" if stops else f"{cancel}, if it should not take this long",
        tenant_id=row["tenant_id"],
    )


STUCK_JOB = StoreCheck("stuck_job", stuck_job_check)
