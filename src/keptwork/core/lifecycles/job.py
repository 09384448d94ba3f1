"""The job: the unit of dispatch, claimed by a worker under a lease."""

from keptwork.core.decide import Lifecycle, Move, Note, Right, State, Verb
from keptwork.core.guards import attempts_left, claimable, dead_letter_reason_given, failed_for_good

QUEUED = State("queued")
ASSIGNED = State("assigned")
RUNNING = State("running", started=True)
SUCCEEDED = State("succeeded", final=True)
FAILED = State("failed", final=True)
CANCELLED = State("cancelled", final=True)
DEAD_LETTERED = State("dead_lettered", final=True)

HOLDER = frozenset({Right.HOLDER})
REAPER = frozenset({Right.REAPER})
OPERATOR = frozenset({Right.OPERATOR})

JOB = Lifecycle(
    name="job",
    table="jobs",
    prefix="job",
    states=(QUEUED, ASSIGNED, RUNNING, SUCCEEDED, FAILED, CANCELLED, DEAD_LETTERED),
    moves=(
        Move("enqueue", Verb.CREATE, (), QUEUED, "job_enqueued", when="payload valid"),
        Move(
            "claim",
            Verb.CLAIM,
            (QUEUED,),
            ASSIGNED,
            "job_claimed",
            when="due; worker IDLE or RUNNING; queue not paused; breaker and budget allow it",
            guard=claimable,
        ),
        Move("start", Verb.START, (ASSIGNED,), RUNNING, "job_started", when="lease held", rights=HOLDER),
        Move("succeed", Verb.SUCCEED, (RUNNING,), SUCCEEDED, "job_succeeded", when="lease held", rights=HOLDER),
        Move(
            "fail",
            Verb.FAIL,
            (ASSIGNED, RUNNING),
            FAILED,
            "job_failed",
            when="permanent error, or attempts used up and policy fail",
            guard=failed_for_good,
            rights=HOLDER | REAPER,
        ),
        Move(
            "retry",
            Verb.RETRY,
            (RUNNING,),
            QUEUED,
            "job_retry_scheduled",
            when="transient error, attempts left; due again after a backoff",
            guard=attempts_left,
            rights=HOLDER,
            raises_epoch=True,
        ),
        Move(
            "expire",
            Verb.EXPIRE,
            (ASSIGNED, RUNNING),
            QUEUED,
            "job_lease_expired",
            when="lease expired, attempts left",
            guard=attempts_left,
            rights=REAPER,
            raises_epoch=True,
        ),
        Move(
            "release",
            Verb.RELEASE,
            (ASSIGNED, RUNNING),
            QUEUED,
            "job_released",
            when="worker drains, or breaker or budget holds it; costs no attempt",
            rights=HOLDER | OPERATOR,
            raises_epoch=True,
        ),
        Move(
            "snooze",
            Verb.SNOOZE,
            (RUNNING,),
            QUEUED,
            "job_snoozed",
            when="requested by the handler; costs no attempt",
            rights=HOLDER,
            raises_epoch=True,
        ),
        Move(
            "cancel",
            Verb.CANCEL,
            (QUEUED, ASSIGNED, RUNNING),
            CANCELLED,
            "job_cancelled",
            when="user or policy",
            rights=HOLDER | OPERATOR,
        ),
        Move(
            "dead_letter",
            Verb.DEAD_LETTER,
            (QUEUED, ASSIGNED, RUNNING),
            DEAD_LETTERED,
            "job_dead_lettered",
            when="attempts used up and policy dead_letter, poison payload, policy violation, infrastructure",
            guard=dead_letter_reason_given,
            rights=HOLDER | REAPER | OPERATOR,
        ),
    ),
    pairs=(("claim", "start"),),
    linked=("parent_id", "limit_key", "step_id", "crew_id", "tree_id", "kind"),
    notes=(Note("compensate", "job_compensated"),),
)
