"""The workstream: a graph of steps that can be retried, skipped, and abandoned."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import retries_left

S_PENDING = State("S_PENDING")
S_RUNNING = State("S_RUNNING", started=True)
S_SUCCESS = State("S_SUCCESS", final=True)
S_FAILED = State("S_FAILED")
S_RETRYING = State("S_RETRYING")
S_ABANDONED = State("S_ABANDONED", final=True)

WORKSTREAM = Lifecycle(
    name="workstream",
    table="workstreams",
    prefix="ws",
    states=(S_PENDING, S_RUNNING, S_SUCCESS, S_FAILED, S_RETRYING, S_ABANDONED),
    moves=(
        Move("create", Verb.CREATE, (), S_PENDING),
        Move("start_execution", Verb.START, (S_PENDING,), S_RUNNING),
        Move(
            "all_steps_succeed",
            Verb.SUCCEED,
            (S_RUNNING,),
            S_SUCCESS,
            when="every step succeeded or was skipped",
        ),
        Move("step_fails", Verb.FAIL, (S_RUNNING,), S_FAILED, when="a step has used up its own retries"),
        Move(
            "retry_eligible",
            Verb.RETRY,
            (S_FAILED,),
            S_RETRYING,
            when="retries left, or an operator raised the limit",
            guard=retries_left,
        ),
        Move("retry_attempt", Verb.RESUME, (S_RETRYING,), S_RUNNING, when="after the backoff"),
        Move(
            "abandon",
            Verb.CANCEL,
            (S_RUNNING, S_FAILED, S_PENDING, S_RETRYING),
            S_ABANDONED,
            when="user, or failed for longer than abandon_after",
        ),
    ),
)
