"""The doctor: finds inconsistent flows, jobs, and breakers, and repairs them.

Each finding has one file, with its check and its repair by declared moves; a new finding is a file and a line here.
`rounds` checks flow after flow. If no move can repair a finding, the doctor shows the operator the command to run.
"""

from __future__ import annotations

from keptwork.diagnostics.doctor import flow_checks, job_checks, nested_checks, step_checks
from keptwork.diagnostics.doctor.finding import FlowCheck, StoreCheck

FIRST_CHECKS: tuple[tuple[FlowCheck, ...], ...] = (
    (flow_checks.INCOMPLETE,),
    (flow_checks.OUT_OF_ORDER,),
)
"""If one of these finds something, the later checks cannot be relied on."""

FLOW_CHECKS: tuple[FlowCheck, ...] = (
    flow_checks.LEFTOVERS,
    nested_checks.ORPHAN_FLOW,
    step_checks.MISPLACED,
    nested_checks.STRAY_QUESTION,
    step_checks.IDLE_JOB,
    step_checks.ORPHAN_ELEMENT,
    nested_checks.GATE_STATE,
    flow_checks.GIVEN_UP,
    step_checks.FAILED_STEP,
    step_checks.LOST_JOB,
    flow_checks.FINISHED,
    nested_checks.LOST_FLOW,
    nested_checks.LOST_CREW,
    nested_checks.NO_QUESTION,
    step_checks.READY,
    step_checks.STALLED_LIST,
    flow_checks.NO_TIMER,
    flow_checks.FALSE_SUCCESS,
    flow_checks.BLOCKED,
)
"""In the order of their repairs: a finding that blocks the repair of others comes first.

The first unfinished step of an active flow is ready to start, is running, has failed, or was cancelled. A check covers
each of these cases, so that every flow that nothing will move is found: no job, timer, approval request, crew, or
nested flow.
"""

LAST_CHECKS: tuple[FlowCheck, ...] = (flow_checks.STUCK,)
"""Checked only if nothing else is wrong with a flow.

Another finding would explain why the flow does not move.
"""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    job_checks.STUCK_BREAKER,
    job_checks.DEAD_HOLD,
    job_checks.ORPHANED_LEASE,
    job_checks.ORPHANED_CHILDREN,
    job_checks.ORPHANED_SHARES,
    job_checks.STUCK_JOB,
    job_checks.OPEN_CALL,
)
