"""Checks outside flows: breakers, holds, leases, children, shares, open calls."""

from __future__ import annotations

from functools import partial

from keptwork.agents import budgets
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import BREAKER, CREW, JOB
from keptwork.core.lifecycles.breaker import CLOSED, OPEN
from keptwork.core.lifecycles.job import ASSIGNED, RUNNING
from keptwork.core.money import dollars
from keptwork.crews import commands as crews
from keptwork.crews.engine import allocate, call_off_shares, lock_of
from keptwork.diagnostics.doctor.finding import DOCTOR, MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.flows import engine as advance
from keptwork.flows.transaction import Row
from keptwork.jobs import commands_children, complete
from keptwork.jobs.complete import again_if_moved
from keptwork.jobs.outcome import reaped
from keptwork.store import Job, Store, Transaction
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.store.contract.store import Reader
from keptwork.store.counters_decisions import decided

# Jobs that are held by a breaker that is closed or does not exist.


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


# A breaker that has been due for a probe for a long time, without a probe.


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


# Jobs that are assigned or running although their lease has expired or they have none.


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


# Unfinished jobs that were spawned by a cancelled job.


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


# Unfinished shares of a finished crew, which was edited manually.


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


# A job that has been assigned or running for a long time.


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


# A call to a model that is still open although its job has finished.


CALL_PATIENCE_US = 300_000_000
"""Time after its start in which every call has finished and been reported."""


async def open_call_check(reader: Reader, limits: Limits) -> list[Finding]:
    now = await reader.now()
    return [
        Finding(
            "open_call",
            JOB.name,
            call.job_id,
            f"its call {call.call!r} to {call.provider}/{call.model} is open, but the job has ended or is gone",
            call.created_at,
            f"{dollars(call.ceiling_micros)} stays reserved, and nobody else can spend it",
            "count it as lost, with what was reserved for it",
            tenant_id=call.tenant_id,
            about=call.call,
        )
        for call in await reader.abandoned_charges(MOST_SHOWN)
        if call.created_at + CALL_PATIENCE_US <= now
    ]


async def repair_open_call(store: Store, finding: Finding) -> None:
    await budgets.lost(store, finding.id, finding.about)


OPEN_CALL = StoreCheck("open_call", open_call_check, repair_open_call)
