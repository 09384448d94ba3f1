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

FIRST_CHECKS: tuple[tuple[FlowCheck, ...], ...] = (
    (flow_checks_incomplete.INCOMPLETE,),
    (flow_checks_out_of_order.OUT_OF_ORDER,),
)
"""If one of these finds something, the later checks cannot be relied on."""

FLOW_CHECKS: tuple[FlowCheck, ...] = (
    flow_checks_leftovers.LEFTOVERS,
    nested_checks_orphan_flow.ORPHAN_FLOW,
    step_checks_misplaced.MISPLACED,
    nested_checks_stray_question.STRAY_QUESTION,
    step_checks_idle_job.IDLE_JOB,
    step_checks_orphan_element.ORPHAN_ELEMENT,
    nested_checks_gate_state.GATE_STATE,
    flow_checks_given_up.GIVEN_UP,
    step_checks_failed.FAILED_STEP,
    step_checks_lost_job.LOST_JOB,
    flow_checks_finished.FINISHED,
    nested_checks_lost_flow.LOST_FLOW,
    nested_checks_lost_crew.LOST_CREW,
    nested_checks_no_question.NO_QUESTION,
    step_checks_ready.READY,
    step_checks_stalled_list.STALLED_LIST,
    flow_checks_no_timer.NO_TIMER,
    flow_checks_false_success.FALSE_SUCCESS,
    flow_checks_blocked.BLOCKED,
)
"""In the order of their repairs: a finding that blocks the repair of others comes first.

The first unfinished step of an active flow is ready to start, is running, has failed, or was cancelled. A check covers
each of these cases, so that every flow that nothing will move is found: no job, timer, approval request, crew, or
nested flow.
"""

LAST_CHECKS: tuple[FlowCheck, ...] = (flow_checks_stuck.STUCK,)
"""Checked only if nothing else is wrong with a flow.

Another finding would explain why the flow does not move.
"""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    job_checks_stuck_breaker.STUCK_BREAKER,
    job_checks_dead_hold.DEAD_HOLD,
    job_checks_orphaned_lease.ORPHANED_LEASE,
    job_checks_orphaned_children.ORPHANED_CHILDREN,
    job_checks_orphaned_shares.ORPHANED_SHARES,
    job_checks_stuck.STUCK_JOB,
    job_checks_open_call.OPEN_CALL,
)
