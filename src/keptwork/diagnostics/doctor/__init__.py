"""The doctor: finds inconsistent flows, jobs, and breakers, and repairs them.

Each finding has one file, with its check and its repair by declared moves; a new finding is a file and a line here.
`rounds` checks flow after flow. If no move can repair a finding, the doctor shows the operator the command to run.
"""

from __future__ import annotations

from keptwork.diagnostics.doctor import (
    flow_checks_blocked,
    flow_checks_false_success,
    flow_checks_finished,
    flow_checks_given_up,
    flow_checks_incomplete,
    flow_checks_leftovers,
    flow_checks_no_timer,
    flow_checks_out_of_order,
    flow_checks_stuck,
    job_checks_dead_hold,
    job_checks_open_call,
    job_checks_orphaned_children,
    job_checks_orphaned_lease,
    job_checks_orphaned_shares,
    job_checks_stuck,
    job_checks_stuck_breaker,
    nested_checks_gate_state,
    nested_checks_lost_crew,
    nested_checks_lost_flow,
    nested_checks_no_question,
    nested_checks_orphan_flow,
    nested_checks_stray_question,
    step_checks_failed,
    step_checks_idle_job,
    step_checks_lost_job,
    step_checks_misplaced,
    step_checks_orphan_element,
    step_checks_ready,
    step_checks_stalled_list,
)
from keptwork.diagnostics.doctor.finding import FlowCheck, StoreCheck

FIRST_CHECKS: tuple[tuple[FlowCheck, ...], ...] = ((flow_checks_incomplete.CHECK,), (flow_checks_out_of_order.CHECK,))
"""If one of these finds something, the later checks cannot be relied on."""

FLOW_CHECKS: tuple[FlowCheck, ...] = (
    flow_checks_leftovers.CHECK,
    nested_checks_orphan_flow.CHECK,
    step_checks_misplaced.CHECK,
    nested_checks_stray_question.CHECK,
    step_checks_idle_job.CHECK,
    step_checks_orphan_element.CHECK,
    nested_checks_gate_state.CHECK,
    flow_checks_given_up.CHECK,
    step_checks_failed.CHECK,
    step_checks_lost_job.CHECK,
    flow_checks_finished.CHECK,
    nested_checks_lost_flow.CHECK,
    nested_checks_lost_crew.CHECK,
    nested_checks_no_question.CHECK,
    step_checks_ready.CHECK,
    step_checks_stalled_list.CHECK,
    flow_checks_no_timer.CHECK,
    flow_checks_false_success.CHECK,
    flow_checks_blocked.CHECK,
)
"""In the order of their repairs: a finding that blocks the repair of others comes first.

The first unfinished step of an active flow is ready to start, is running, has failed, or was cancelled. A check covers
each of these cases, so that every flow that nothing will move is found: no job, timer, approval request, crew, or
nested flow.
"""

LAST_CHECKS: tuple[FlowCheck, ...] = (flow_checks_stuck.CHECK,)
"""Checked only if nothing else is wrong with a flow.

Another finding would explain why the flow does not move.
"""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    job_checks_stuck_breaker.CHECK,
    job_checks_dead_hold.CHECK,
    job_checks_orphaned_lease.CHECK,
    job_checks_orphaned_children.CHECK,
    job_checks_orphaned_shares.CHECK,
    job_checks_stuck.CHECK,
    job_checks_open_call.CHECK,
)
