"""A job that has been with a worker for a long time."""

from __future__ import annotations

from detent.lifecycle import JOB
from detent.lifecycle.job import ASSIGNED, RUNNING
from detent.service.doctor.chart import Limits
from detent.service.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from detent.service.doctor.orphaned_lease import PATIENCE_US
from detent.service.entities import public_id
from detent.store.protocol import Reader


async def look(reader: Reader, limits: Limits) -> list[Finding]:
    now, found = await reader.now(), []
    for state in (ASSIGNED.name, RUNNING.name):
        for row in await reader.long_at_work([state], now - limits.of(state), MOST_SHOWN):
            lease = row["lease_until"]
            if lease is None or lease + PATIENCE_US <= now:
                continue  # that is another finding
            found.append(
                Finding(
                    "stuck_job",
                    JOB.name,
                    row["id"],
                    f"the job ({row['kind']}) is {state} for long, and its worker still keeps its lease",
                    row["updated_at"],
                    "either it takes this long, or its handler hangs",
                    None,
                    f"detent jobs cancel {public_id(JOB.name, row['id'])}, if it should not take this long",
                    tenant_id=row["tenant_id"],
                )
            )
    return found


CHECK = StoreCheck("stuck_job", look)
