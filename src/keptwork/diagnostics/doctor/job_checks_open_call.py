"""A call to a model that is still open although its job has finished."""

from __future__ import annotations

from keptwork.agents import budgets
from keptwork.core.lifecycles import JOB
from keptwork.core.money import dollars
from keptwork.diagnostics.doctor.finding import MOST_SHOWN, Finding, StoreCheck
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.store import Store
from keptwork.store.contract.store import Reader

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
