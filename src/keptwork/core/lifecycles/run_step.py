"""A step of a run: executed by a job, or approved by a reviewer."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import earlier_steps_done

PENDING = State("PENDING")
RUNNING = State("RUNNING", started=True)
WAITING_APPROVAL = State("WAITING_APPROVAL")
SUCCEEDED = State("SUCCEEDED", final=True)
FAILED = State("FAILED", final=True)
CANCELED = State("CANCELED", final=True)

RUN_STEP = Lifecycle(
    name="run-step",
    table="steps",
    prefix="step",
    shares_table=True,
    states=(PENDING, RUNNING, WAITING_APPROVAL, SUCCEEDED, FAILED, CANCELED),
    moves=(
        Move("create", Verb.CREATE, (), PENDING),
        Move(
            "claim",
            Verb.START,
            (PENDING,),
            RUNNING,
            when="all earlier steps SUCCEEDED; attempts + 1",
            guard=earlier_steps_done,
        ),
        Move("succeed", Verb.SUCCEED, (RUNNING,), SUCCEEDED, when="output and cost stored"),
        Move("retry", Verb.RETRY, (RUNNING,), PENDING, when="attempts left; due again after a backoff"),
        Move("fail", Verb.FAIL, (RUNNING,), FAILED, when="attempts used up, or permanent error"),
        Move(
            "open_gate",
            Verb.GATE,
            (PENDING,),
            WAITING_APPROVAL,
            when="an approval step; all earlier steps SUCCEEDED",
            guard=earlier_steps_done,
        ),
        Move("approve", Verb.APPROVE, (WAITING_APPROVAL,), SUCCEEDED, when="reviewer with the scope"),
        Move("reject", Verb.REJECT, (WAITING_APPROVAL,), FAILED, when="reviewer with the scope"),
        Move("expire", Verb.EXPIRE, (WAITING_APPROVAL,), FAILED, when="not decided before the deadline"),
        Move("reclaim", Verb.RECLAIM, (RUNNING,), RUNNING, when="lease expired, new claim; attempts + 1"),
        Move("cancel", Verb.CANCEL, (PENDING, RUNNING, WAITING_APPROVAL), CANCELED, when="the run is cancelled"),
    ),
    pairs=(("claim", "succeed"),),
)
