"""The doctor: finds what is wrong with flows, jobs and breakers, and mends it by moves that are declared.

One file for each finding: how it is seen, and how it is mended; a new one is a file and a line here. `rounds` goes from
flow to flow. What no move can mend is left to an operator, with the command to run.
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
"""Where one of these finds something, those after it have nothing to go by."""

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
"""In the order in which they are mended: what stands in the way of others comes first.

A flow that goes on has a first step that is not done: it waits for nothing, has begun, has failed or was given up. Each
of these is looked at, so that no flow is left which nothing will move: no job, timer, question, crew or flow inside.
"""

LAST_CHECKS: tuple[FlowCheck, ...] = (stuck.CHECK,)
"""Asked only where nothing else is wrong with a flow: what is wrong explains why it does not move."""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    stuck_breaker.CHECK,
    dead_hold.CHECK,
    orphaned_lease.CHECK,
    orphaned_children.CHECK,
    orphaned_shares.CHECK,
    stuck_job.CHECK,
    open_call.CHECK,
)
