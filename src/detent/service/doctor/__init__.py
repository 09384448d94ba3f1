"""The doctor: finds what is wrong with flows, jobs and breakers, and mends it by moves that are declared.

One file for each finding: how it is seen, and how it is mended; a new one is a file and a line here. `rounds` goes from
flow to flow. What no move can mend is left to an operator, with the command to run.
"""

from __future__ import annotations

from detent.service.doctor import (
    blocked,
    dead_hold,
    failed_step,
    false_success,
    finished,
    gate_state,
    given_up,
    idle_job,
    leftovers,
    lost_flow,
    lost_job,
    misplaced,
    no_question,
    no_timer,
    nothing_moves,
    orphan_element,
    orphan_flow,
    orphaned_children,
    orphaned_lease,
    ready,
    stalled_list,
    stray_question,
    stuck,
    stuck_breaker,
    stuck_job,
)
from detent.service.doctor.finding import FlowCheck, StoreCheck

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
    no_question.CHECK,
    ready.CHECK,
    stalled_list.CHECK,
    no_timer.CHECK,
    false_success.CHECK,
    blocked.CHECK,
)
"""In the order in which they are mended: what stands in the way of others comes first."""

LAST_CHECKS: tuple[FlowCheck, ...] = (nothing_moves.CHECK, stuck.CHECK)
"""Asked only where nothing else is wrong with a flow, for each of the others explains these."""

STORE_CHECKS: tuple[StoreCheck, ...] = (
    stuck_breaker.CHECK,
    dead_hold.CHECK,
    orphaned_lease.CHECK,
    orphaned_children.CHECK,
    stuck_job.CHECK,
)
