"""A step of a workstream: a tool, an agent, a call, or an approval in the graph."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import earlier_steps_done, retries_left

S_PENDING = State("S_PENDING")
S_RUNNING = State("S_RUNNING", started=True)
S_SUCCESS = State("S_SUCCESS", final=True)
S_FAILED = State("S_FAILED")
S_RETRYING = State("S_RETRYING")
S_SKIPPED = State("S_SKIPPED", final=True)
S_ABANDONED = State("S_ABANDONED", final=True)

WORKSTREAM_STEP = Lifecycle(
    name="workstream-step",
    table="steps",
    prefix="step",
    shares_table=True,
    states=(S_PENDING, S_RUNNING, S_SUCCESS, S_FAILED, S_RETRYING, S_SKIPPED, S_ABANDONED),
    moves=(
        Move("create", Verb.CREATE, (), S_PENDING),
        Move(
            "dependencies_met",
            Verb.START,
            (S_PENDING,),
            S_RUNNING,
            when="every dependency succeeded or was skipped",
            guard=earlier_steps_done,
        ),
        Move("success", Verb.SUCCEED, (S_RUNNING,), S_SUCCESS, when="exit code expected, or approved"),
        Move("failure", Verb.FAIL, (S_RUNNING,), S_FAILED, when="exit code not expected, rejected or expired"),
        Move("retry_eligible", Verb.RETRY, (S_FAILED,), S_RETRYING, when="retries left", guard=retries_left),
        Move("retry_attempt", Verb.RESUME, (S_RETRYING,), S_RUNNING, when="after the backoff"),
        Move(
            "skip",
            Verb.SKIP,
            (S_PENDING, S_FAILED, S_RETRYING),
            S_SKIPPED,
            when="operator, or `when:` is false",
        ),
        Move("reset", Verb.RESET, (S_FAILED,), S_PENDING, when="operator; retry count 0"),
        Move(
            "abandon",
            Verb.CANCEL,
            (S_PENDING, S_RUNNING, S_FAILED, S_RETRYING),
            S_ABANDONED,
            when="the workstream is abandoned",
        ),
    ),
    pairs=(("dependencies_met", "success"),),
)
