"""The conditions of guarded moves: pure functions of a record and the facts of the moment.

A missing fact counts as false, so that a caller who forgets one is rejected. The declaration states each guard in words
(`when`).
"""

from __future__ import annotations

from keptwork.core.decide import Facts, Record

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
    """Return whether the job is due and not held, its queue is not paused, and the worker may claim."""
    return bool(
        record["run_at"] <= facts["now"]
        and record["held_by"] is None
        and not facts.get("queue_paused", False)
        and facts.get("worker_may_claim", False)
    )


def attempts_left(record: Record, facts: Facts) -> bool:
    """Return whether the job may start another attempt."""
    return bool(record["attempts"] < record["max_attempts"])


def failed_for_good(record: Record, facts: Facts) -> bool:
    """Return whether the error is permanent, or the attempts are used up and the job's policy is to fail."""
    spent = not attempts_left(record, facts) and record["on_exhausted"] == "fail"
    return bool(facts.get("permanent", False)) or spent


def dead_letter_reason_given(record: Record, facts: Facts) -> bool:
    """Return whether the reason is a known one. `exhausted_retries` also needs used-up attempts and a policy that
    dead-letters."""
    reason = facts.get("reason_code")
    if reason == "exhausted_retries":
        return not attempts_left(record, facts) and bool(record["on_exhausted"] == "dead_letter")
    return reason in DEAD_LETTER_REASONS


def valid_crew(record: Record, facts: Facts) -> bool:
    """Return whether the crew has 1 to 10 workers, is directly below its parent, and is not too deep."""
    parent_depth = facts.get("parent_depth", -1)
    return bool(
        1 <= record["worker_count"] <= MAX_WORKERS
        and parent_depth is not None
        and record["depth"] == parent_depth + 1
        and record["depth"] <= MAX_DEPTH
    )


def workers_free(record: Record, facts: Facts) -> bool:
    """Return whether the quota of the crew's depth has room for all of its workers."""
    return bool(facts.get("free_workers", 0) >= record["worker_count"])


def earlier_steps_done(record: Record, facts: Facts) -> bool:
    """Return whether everything before this step has succeeded."""
    return bool(facts.get("dependencies_met", False))


def retries_left(record: Record, facts: Facts) -> bool:
    """Return whether the entity's own retry counter is below its limit."""
    return bool(record["retry_count"] < record["max_retries"])


def failures_reached(record: Record, facts: Facts) -> bool:
    """Return whether the consecutive failures have reached the breaker's threshold."""
    return bool(record["failures"] >= record["failure_threshold"])


def cooled_down(record: Record, facts: Facts) -> bool:
    """Return whether the breaker has been open for its whole cooldown."""
    return bool(record["probe_at"] <= facts["now"])


def successes_reached(record: Record, facts: Facts) -> bool:
    """Return whether the successful probes have reached the breaker's threshold."""
    return bool(record["successes"] >= record["success_threshold"])
