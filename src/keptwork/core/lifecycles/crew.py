"""The crew: one task for one to ten workers, with sub-crews."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import valid_crew, workers_free

SUBMITTED = State("SUBMITTED")
PENDING = State("PENDING")
RUNNING = State("RUNNING", started=True)
COMPLETED = State("COMPLETED", final=True)
FAILED = State("FAILED", final=True)
CANCELED = State("CANCELED", final=True)

CREW = Lifecycle(
    name="crew",
    table="crews",
    prefix="crew",
    states=(SUBMITTED, PENDING, RUNNING, COMPLETED, FAILED, CANCELED),
    moves=(
        Move("submit", Verb.CREATE, (), SUBMITTED, when="schema valid"),
        Move(
            "validate",
            Verb.VALIDATE,
            (SUBMITTED,),
            PENDING,
            when="parent exists, depth = parent + 1 ≤ 5, worker_count 1 to 10",
            guard=valid_crew,
        ),
        Move("reject", Verb.REJECT, (SUBMITTED,), FAILED, when="validation error"),
        Move(
            "allocate_resources",
            Verb.START,
            (PENDING,),
            RUNNING,
            when="workers free under the depth's quota",
            guard=workers_free,
        ),
        Move("success", Verb.SUCCEED, (RUNNING,), COMPLETED, when="every share and sub-crew succeeded"),
        Move("error", Verb.FAIL, (RUNNING,), FAILED, when="a share failed permanently"),
        Move("cancel", Verb.CANCEL, (SUBMITTED, PENDING, RUNNING), CANCELED, when="user, timeout"),
    ),
)
