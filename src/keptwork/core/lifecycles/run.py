"""The run: the steps of a template, in strict order, with human approvals."""

from keptwork.core.decide import Lifecycle, Move, State, Verb

PENDING = State("PENDING")
RUNNING = State("RUNNING", started=True)
WAITING_APPROVAL = State("WAITING_APPROVAL")
SUCCEEDED = State("SUCCEEDED", final=True)
FAILED = State("FAILED", final=True)
CANCELED = State("CANCELED", final=True)

RUN = Lifecycle(
    name="run",
    table="runs",
    prefix="run",
    states=(PENDING, RUNNING, WAITING_APPROVAL, SUCCEEDED, FAILED, CANCELED),
    moves=(
        Move("create", Verb.CREATE, (), PENDING),
        Move("start", Verb.START, (PENDING,), RUNNING, when="the first runnable step is claimed or opened"),
        Move("gate", Verb.GATE, (RUNNING,), WAITING_APPROVAL, when="an approval step opened"),
        Move("approve", Verb.APPROVE, (WAITING_APPROVAL,), RUNNING, when="approved, and steps remain"),
        Move("succeed", Verb.SUCCEED, (RUNNING, WAITING_APPROVAL), SUCCEEDED, when="all steps SUCCEEDED"),
        Move(
            "fail",
            Verb.FAIL,
            (RUNNING, WAITING_APPROVAL),
            FAILED,
            when="a step failed, was rejected or expired",
        ),
        Move("cancel", Verb.CANCEL, (PENDING, RUNNING, WAITING_APPROVAL), CANCELED, when="user"),
    ),
)
