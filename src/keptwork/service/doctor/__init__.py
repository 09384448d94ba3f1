"""The doctor: finds inconsistent flows, jobs, and breakers, and repairs them.

Each finding has one file, with its check and its repair by declared moves; a new finding is a file and a line here.
`rounds` checks flow after flow. If no move can repair a finding, the doctor shows the operator the command to run.
"""

from __future__ import annotations

from keptwork.service.doctor import (
    blocked,
    dead_hold,
    failed_step,
    false_success,
    finished,
    gate_state,
    given_up,
    idle_job,
    incomplete,
    leftovers,
    lost_crew,
    lost_flow,
    lost_job,
    misplaced,
    no_question,
    no_timer,
    open_call,
    orphan_element,
    orphan_flow,
    orphaned_children,
    orphaned_lease,
    orphaned_shares,
    out_of_order,
    ready,
    stalled_list,
    stray_question,
    stuck,
    stuck_breaker,
    stuck_job,
)
from keptwork.service.doctor.finding import FlowCheck, StoreCheck

FIRST_CHECKS: tuple[tuple[FlowCheck, ...], ...] = ((incomplete.CHECK,), (out_of_order.CHECK,))
"""If one of these finds something, the later checks cannot be relied on."""

FLOW_CHECKS: tuple[FlowCheck, ...] = (
    leftovers.CHECK,
    orphan_flow.CHECK,
    misplaced.CHECK,
    stray_question.CHECK,
    idle_job.CHECK,
    orphan_element.CHECK,
    gate_state.CHECK,
    given_up.CHECK,
    failed_step.CHECK,
    lost_job.CHECK,
    finished.CHECK,
    lost_flow.CHECK,
    lost_crew.CHECK,
    no_question.CHECK,
    ready.CHECK,
    stalled_list.CHECK,
    no_timer.CHECK,
    false_success.CHECK,
    blocked.CHECK,
)
"""In the order of their repairs: a finding that blocks the repair of others comes first.

The first unfinished step of an active flow is ready to start, is running, has failed, or was cancelled. A check covers
each of these cases, so that every flow that nothing will move is found: no job, timer, approval request, crew, or
nested flow.
"""

LAST_CHECKS: tuple[FlowCheck, ...] = (stuck.CHECK,)
"""Checked only if nothing else is wrong with a flow.

Another finding would explain why the flow does not move.
"""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    stuck_breaker.CHECK,
    dead_hold.CHECK,
    orphaned_lease.CHECK,
    orphaned_children.CHECK,
    orphaned_shares.CHECK,
    stuck_job.CHECK,
    open_call.CHECK,
)
