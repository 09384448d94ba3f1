"""The breaker: one per tenant and tool or model, shared by all workers."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import cooled_down, failures_reached, successes_reached

CLOSED = State("CLOSED")
OPEN = State("OPEN")
HALF_OPEN = State("HALF_OPEN")

BREAKER = Lifecycle(
    name="breaker",
    table="breakers",
    prefix="brk",
    states=(CLOSED, OPEN, HALF_OPEN),
    moves=(
        Move("create", Verb.CREATE, (), CLOSED, when="first use of the tool or model"),
        Move(
            "trip",
            Verb.TRIP,
            (CLOSED,),
            OPEN,
            when="5 consecutive failures (configurable)",
            guard=failures_reached,
        ),
        Move("probe", Verb.PROBE, (OPEN,), HALF_OPEN, when="after 60 s (configurable)", guard=cooled_down),
        Move(
            "close",
            Verb.CLOSE,
            (HALF_OPEN,),
            CLOSED,
            when="1 success (configurable)",
            guard=successes_reached,
        ),
        Move("reopen", Verb.REOPEN, (HALF_OPEN,), OPEN, when="the probe failed"),
        Move("reset", Verb.RESET, (OPEN, HALF_OPEN), CLOSED, when="operator"),
    ),
)
