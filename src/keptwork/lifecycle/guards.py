"""The conditions of guarded moves: pure questions about a record and the facts of the moment.

A fact that is not given counts as false, so a caller who forgets one is refused rather than let through. What
a guard says in words stands beside it in the declaration (`when`).
"""

from __future__ import annotations

from keptwork.lifecycle.machine import Facts, Record

MAX_DEPTH = 5
MAX_WORKERS = 10

DEAD_LETTER_REASONS = (
    "parse_error",
    "validation_failed",
    "dependency_unavailable",
    "timeout",
    "exhausted_retries",
    "policy_violation",
    "infrastructure_failure",
    "compensation_failed",
)


def claimable(record: Record, facts: Facts) -> bool:
    """Due, held back by nothing, in a queue that is not paused, and asked for by a worker that may claim."""
    return bool(
        record["run_at"] <= facts["now"]
        and record["held_by"] is None
        and not facts.get("queue_paused", False)
        and facts.get("worker_may_claim", False)
    )


def attempts_left(record: Record, facts: Facts) -> bool:
    """The job may be started once more."""
    return bool(record["attempts"] < record["max_attempts"])


def failed_for_good(record: Record, facts: Facts) -> bool:
    """The error is permanent, or the attempts are used up and the job's policy is to fail."""
    spent = not attempts_left(record, facts) and record["on_exhausted"] == "fail"
    return bool(facts.get("permanent", False)) or spent


def dead_letter_reason_given(record: Record, facts: Facts) -> bool:
    """A reason from the list; used-up attempts only count when they are used up and the policy says so."""
    reason = facts.get("reason_code")
    if reason == "exhausted_retries":
        return not attempts_left(record, facts) and bool(record["on_exhausted"] == "dead_letter")
    return reason in DEAD_LETTER_REASONS


def valid_crew(record: Record, facts: Facts) -> bool:
    """One to ten workers, directly below its parent, and not deeper than allowed."""
    parent_depth = facts.get("parent_depth", -1)
    return bool(
        1 <= record["worker_count"] <= MAX_WORKERS
        and parent_depth is not None
        and record["depth"] == parent_depth + 1
        and record["depth"] <= MAX_DEPTH
    )


def workers_free(record: Record, facts: Facts) -> bool:
    """The quota of the crew's depth has room for all of its workers."""
    return bool(facts.get("free_workers", 0) >= record["worker_count"])


def earlier_steps_done(record: Record, facts: Facts) -> bool:
    """Everything before this step has succeeded."""
    return bool(facts.get("dependencies_met", False))


def retries_left(record: Record, facts: Facts) -> bool:
    """The entity's own retry counter has not reached its limit."""
    return bool(record["retry_count"] < record["max_retries"])


def failures_reached(record: Record, facts: Facts) -> bool:
    """As many failures in a row as the breaker allows."""
    return bool(record["failures"] >= record["failure_threshold"])


def cooled_down(record: Record, facts: Facts) -> bool:
    """The breaker has been open for as long as it should."""
    return bool(record["probe_at"] <= facts["now"])


def successes_reached(record: Record, facts: Facts) -> bool:
    """As many good probes as the breaker asks for."""
    return bool(record["successes"] >= record["success_threshold"])
