"""What every lifecycle must be, transcribed by hand from LIFECYCLES.md and the seeds.

Nothing here is derived from the code under test, and nothing here imports it: the tables are
typed a second time on purpose, so that a slip in the declarations cannot hide. If a test that
compares the two fails, read LIFECYCLES.md, decide which is wrong, and mend that one by hand.

A move is one line: (trigger, from, to). "assigned, running" in the document is two lines here.
Creation is not a move: `create` names the trigger that leads from nothing to `initial`.
`override` is not here either: the document calls it an operation beside the lifecycle.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    name: str
    states: tuple[str, ...]
    initial: str
    final: frozenset[str]
    create: str
    moves: tuple[tuple[str, str, str], ...]
    raises_epoch: frozenset[str] = frozenset()

    @property
    def all_triggers(self) -> frozenset[str]:
        """Every trigger of a move; the creating one is not among them."""
        return frozenset(trigger for trigger, _, _ in self.moves)


# Job (seed 004). retry, expire, release and snooze go back to queued under the next epoch.
JOB = Expected(
    name="job",
    states=(
        "queued",
        "assigned",
        "running",
        "succeeded",
        "failed",
        "cancelled",
        "dead_lettered",
    ),
    initial="queued",
    final=frozenset({"succeeded", "failed", "cancelled", "dead_lettered"}),
    create="enqueue",
    moves=(
        ("claim", "queued", "assigned"),
        ("start", "assigned", "running"),
        ("succeed", "running", "succeeded"),
        ("fail", "assigned", "failed"),
        ("fail", "running", "failed"),
        ("retry", "running", "queued"),
        ("expire", "assigned", "queued"),
        ("expire", "running", "queued"),
        ("release", "assigned", "queued"),
        ("release", "running", "queued"),
        ("snooze", "running", "queued"),
        ("cancel", "queued", "cancelled"),
        ("cancel", "assigned", "cancelled"),
        ("cancel", "running", "cancelled"),
        ("dead_letter", "queued", "dead_lettered"),
        ("dead_letter", "assigned", "dead_lettered"),
        ("dead_letter", "running", "dead_lettered"),
    ),
    raises_epoch=frozenset({"retry", "expire", "release", "snooze"}),
)

# Worker (seed 001). COMPLETED and FAILED are final for work, and yet terminate leads out of them.
WORKER = Expected(
    name="worker",
    states=("IDLE", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "TERMINATED"),
    initial="IDLE",
    final=frozenset({"COMPLETED", "FAILED", "TERMINATED"}),
    create="register",
    moves=(
        ("start_task", "IDLE", "RUNNING"),
        ("pause", "RUNNING", "PAUSED"),
        ("resume", "PAUSED", "RUNNING"),
        ("complete_tasks", "RUNNING", "COMPLETED"),
        ("error_unrecoverable", "RUNNING", "FAILED"),
        ("terminate", "IDLE", "TERMINATED"),
        ("terminate", "RUNNING", "TERMINATED"),
        ("terminate", "PAUSED", "TERMINATED"),
        ("terminate", "COMPLETED", "TERMINATED"),
        ("terminate", "FAILED", "TERMINATED"),
    ),
)

# Crew (seed 001's Job).
CREW = Expected(
    name="crew",
    states=("SUBMITTED", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELED"),
    initial="SUBMITTED",
    final=frozenset({"COMPLETED", "FAILED", "CANCELED"}),
    create="submit",
    moves=(
        ("validate", "SUBMITTED", "PENDING"),
        ("reject", "SUBMITTED", "FAILED"),
        ("allocate_resources", "PENDING", "RUNNING"),
        ("success", "RUNNING", "COMPLETED"),
        ("error", "RUNNING", "FAILED"),
        ("cancel", "SUBMITTED", "CANCELED"),
        ("cancel", "PENDING", "CANCELED"),
        ("cancel", "RUNNING", "CANCELED"),
    ),
)

# Run (seed 002). The document has no list of states: the order is that of the seed's RunStatus.
RUN = Expected(
    name="run",
    states=("PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"),
    initial="PENDING",
    final=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    create="create",
    moves=(
        ("start", "PENDING", "RUNNING"),
        ("gate", "RUNNING", "WAITING_APPROVAL"),
        ("approve", "WAITING_APPROVAL", "RUNNING"),
        ("succeed", "RUNNING", "SUCCEEDED"),
        ("succeed", "WAITING_APPROVAL", "SUCCEEDED"),
        ("fail", "RUNNING", "FAILED"),
        ("fail", "WAITING_APPROVAL", "FAILED"),
        ("cancel", "PENDING", "CANCELED"),
        ("cancel", "RUNNING", "CANCELED"),
        ("cancel", "WAITING_APPROVAL", "CANCELED"),
    ),
)

# A run's step (seed 002). The order of the states is that of the seed's StepStatus.
RUN_STEP = Expected(
    name="run-step",
    states=("PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED"),
    initial="PENDING",
    final=frozenset({"SUCCEEDED", "FAILED", "CANCELED"}),
    create="create",
    moves=(
        ("claim", "PENDING", "RUNNING"),
        ("succeed", "RUNNING", "SUCCEEDED"),
        ("retry", "RUNNING", "PENDING"),
        ("fail", "RUNNING", "FAILED"),
        ("open_gate", "PENDING", "WAITING_APPROVAL"),
        ("approve", "WAITING_APPROVAL", "SUCCEEDED"),
        ("reject", "WAITING_APPROVAL", "FAILED"),
        ("expire", "WAITING_APPROVAL", "FAILED"),
        ("reclaim", "RUNNING", "RUNNING"),
        ("cancel", "PENDING", "CANCELED"),
        ("cancel", "RUNNING", "CANCELED"),
        ("cancel", "WAITING_APPROVAL", "CANCELED"),
    ),
)

# Workstream (seed 003). S_FAILED is not final: it can be retried.
WORKSTREAM = Expected(
    name="workstream",
    states=("S_PENDING", "S_RUNNING", "S_SUCCESS", "S_FAILED", "S_RETRYING", "S_ABANDONED"),
    initial="S_PENDING",
    final=frozenset({"S_SUCCESS", "S_ABANDONED"}),
    create="create",
    moves=(
        ("start_execution", "S_PENDING", "S_RUNNING"),
        ("all_steps_succeed", "S_RUNNING", "S_SUCCESS"),
        ("step_fails", "S_RUNNING", "S_FAILED"),
        ("retry_eligible", "S_FAILED", "S_RETRYING"),
        ("retry_attempt", "S_RETRYING", "S_RUNNING"),
        ("abandon", "S_RUNNING", "S_ABANDONED"),
        ("abandon", "S_FAILED", "S_ABANDONED"),
        ("abandon", "S_PENDING", "S_ABANDONED"),
        ("abandon", "S_RETRYING", "S_ABANDONED"),
    ),
)

# A workstream's step (seed 003). No reclaim: the document's table lists none for it.
WORKSTREAM_STEP = Expected(
    name="workstream-step",
    states=(
        "S_PENDING",
        "S_RUNNING",
        "S_SUCCESS",
        "S_FAILED",
        "S_RETRYING",
        "S_SKIPPED",
        "S_ABANDONED",
    ),
    initial="S_PENDING",
    final=frozenset({"S_SUCCESS", "S_SKIPPED", "S_ABANDONED"}),
    create="create",
    moves=(
        ("dependencies_met", "S_PENDING", "S_RUNNING"),
        ("success", "S_RUNNING", "S_SUCCESS"),
        ("failure", "S_RUNNING", "S_FAILED"),
        ("retry_eligible", "S_FAILED", "S_RETRYING"),
        ("retry_attempt", "S_RETRYING", "S_RUNNING"),
        ("skip", "S_PENDING", "S_SKIPPED"),
        ("skip", "S_FAILED", "S_SKIPPED"),
        ("skip", "S_RETRYING", "S_SKIPPED"),
        ("reset", "S_FAILED", "S_PENDING"),
        ("abandon", "S_PENDING", "S_ABANDONED"),
        ("abandon", "S_RUNNING", "S_ABANDONED"),
        ("abandon", "S_FAILED", "S_ABANDONED"),
        ("abandon", "S_RETRYING", "S_ABANDONED"),
    ),
)

# Breaker (seed 003). It never ends. The document does not name the creating trigger.
BREAKER = Expected(
    name="breaker",
    states=("CLOSED", "OPEN", "HALF_OPEN"),
    initial="CLOSED",
    final=frozenset(),
    create="create",
    moves=(
        ("trip", "CLOSED", "OPEN"),
        ("probe", "OPEN", "HALF_OPEN"),
        ("close", "HALF_OPEN", "CLOSED"),
        ("reopen", "HALF_OPEN", "OPEN"),
        ("reset", "OPEN", "CLOSED"),
        ("reset", "HALF_OPEN", "CLOSED"),
    ),
)

# Agent job (seed 000). The document does not name the creating trigger.
AGENT = Expected(
    name="agent",
    states=("INIT", "DEFINE_AGENT", "PROCESS", "END", "COMPLETED", "FAILED"),
    initial="INIT",
    final=frozenset({"COMPLETED", "FAILED"}),
    create="create",
    moves=(
        ("success", "INIT", "DEFINE_AGENT"),
        ("success", "DEFINE_AGENT", "PROCESS"),
        ("success", "PROCESS", "END"),
        ("success", "END", "COMPLETED"),
        ("retry", "PROCESS", "PROCESS"),
        ("failure", "INIT", "FAILED"),
        ("failure", "DEFINE_AGENT", "FAILED"),
        ("failure", "PROCESS", "FAILED"),
        ("failure", "END", "FAILED"),
    ),
)

EXPECTED: dict[str, Expected] = {
    "job": JOB,
    "worker": WORKER,
    "crew": CREW,
    "run": RUN,
    "run-step": RUN_STEP,
    "workstream": WORKSTREAM,
    "workstream-step": WORKSTREAM_STEP,
    "breaker": BREAKER,
    "agent": AGENT,
}

# The last column of the job's table. job_lease_renewed, job_heartbeat and job_compensated are not
# here: they are not transitions.
JOB_EVENTS: dict[str, str] = {
    "enqueue": "job_enqueued",
    "claim": "job_claimed",
    "start": "job_started",
    "succeed": "job_succeeded",
    "fail": "job_failed",
    "retry": "job_retry_scheduled",
    "expire": "job_lease_expired",
    "release": "job_released",
    "snooze": "job_snoozed",
    "cancel": "job_cancelled",
    "dead_letter": "job_dead_lettered",
}

# Seed 000, "Transition Rules": (state, outcome, retries left?, result). None: either way.
# The seed writes Init, DefineAgent, Process, End; the states here bear LIFECYCLES.md's spelling.
AGENT_NEXT: tuple[tuple[str, str, bool | None, str], ...] = (
    ("INIT", "success", None, "Next(DEFINE_AGENT)"),
    ("INIT", "failure", None, "Complete(Failure)"),
    ("DEFINE_AGENT", "success", None, "Next(PROCESS)"),
    ("DEFINE_AGENT", "failure", None, "Complete(Failure)"),
    ("PROCESS", "success", None, "Next(END)"),
    ("PROCESS", "failure", True, "Retry(PROCESS)"),
    ("PROCESS", "failure", False, "Complete(Failure)"),
    ("END", "success", None, "Complete(Success)"),
    ("END", "failure", None, "Complete(Failure)"),
)

# The pairs the seeds forbid by name: (lifecycle, from, to). "*" and "Any" are spelled out, the
# state itself included. No pair of these lists contradicts LIFECYCLES.md, so none is left out.
# Not in these lists, so not here: seed 004's "running → queued is forbidden" (LIFECYCLES.md allows
# it under the next epoch), and the empty exits of COMPLETED and FAILED in seed 001's §1.5 map
# (LIFECYCLES.md lets terminate out of both).
FORBIDDEN: tuple[tuple[str, str, str], ...] = (
    # Seed 001, §1.4
    ("worker", "IDLE", "PAUSED"),
    ("worker", "IDLE", "COMPLETED"),
    ("worker", "COMPLETED", "RUNNING"),
    ("worker", "COMPLETED", "PAUSED"),
    ("worker", "FAILED", "RUNNING"),
    # TERMINATED → *
    ("worker", "TERMINATED", "IDLE"),
    ("worker", "TERMINATED", "RUNNING"),
    ("worker", "TERMINATED", "PAUSED"),
    ("worker", "TERMINATED", "COMPLETED"),
    ("worker", "TERMINATED", "FAILED"),
    ("worker", "TERMINATED", "TERMINATED"),
    # Seed 001, §2.4
    ("crew", "SUBMITTED", "RUNNING"),
    # COMPLETED → *
    ("crew", "COMPLETED", "SUBMITTED"),
    ("crew", "COMPLETED", "PENDING"),
    ("crew", "COMPLETED", "RUNNING"),
    ("crew", "COMPLETED", "COMPLETED"),
    ("crew", "COMPLETED", "FAILED"),
    ("crew", "COMPLETED", "CANCELED"),
    ("crew", "FAILED", "RUNNING"),
    ("crew", "CANCELED", "RUNNING"),
    # Seed 003, "Invalid Transitions"
    # S_SUCCESS → Any (S_SUCCESS → S_RUNNING is listed there once more, by itself)
    ("workstream", "S_SUCCESS", "S_PENDING"),
    ("workstream", "S_SUCCESS", "S_RUNNING"),
    ("workstream", "S_SUCCESS", "S_SUCCESS"),
    ("workstream", "S_SUCCESS", "S_FAILED"),
    ("workstream", "S_SUCCESS", "S_RETRYING"),
    ("workstream", "S_SUCCESS", "S_ABANDONED"),
    # S_ABANDONED → Any
    ("workstream", "S_ABANDONED", "S_PENDING"),
    ("workstream", "S_ABANDONED", "S_RUNNING"),
    ("workstream", "S_ABANDONED", "S_SUCCESS"),
    ("workstream", "S_ABANDONED", "S_FAILED"),
    ("workstream", "S_ABANDONED", "S_RETRYING"),
    ("workstream", "S_ABANDONED", "S_ABANDONED"),
    ("workstream", "S_PENDING", "S_SUCCESS"),
    ("workstream", "S_PENDING", "S_FAILED"),
    ("workstream", "S_RUNNING", "S_PENDING"),
)
