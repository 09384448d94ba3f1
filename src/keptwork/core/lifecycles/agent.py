"""The agent job: route a skill, choose a model, call it, account for it."""

from keptwork.core.decide import Lifecycle, Move, State, Verb
from keptwork.core.guards import retries_left

INIT = State("INIT", started=True)
DEFINE_AGENT = State("DEFINE_AGENT")
PROCESS = State("PROCESS")
END = State("END")
COMPLETED = State("COMPLETED", final=True)
FAILED = State("FAILED", final=True)

AGENT = Lifecycle(
    name="agent",
    table="agent_jobs",
    prefix="agent",
    states=(INIT, DEFINE_AGENT, PROCESS, END, COMPLETED, FAILED),
    moves=(
        Move("create", Verb.CREATE, (), INIT),
        Move(
            "success",
            Verb.SUCCEED,
            (INIT,),
            DEFINE_AGENT,
            when="description present and at most 10,000 bytes",
        ),
        Move("success", Verb.SUCCEED, (DEFINE_AGENT,), PROCESS, when="skill routed, model chosen"),
        Move("success", Verb.SUCCEED, (PROCESS,), END, when="the model answered"),
        Move("success", Verb.SUCCEED, (END,), COMPLETED, when="audit record written"),
        Move("retry", Verb.RETRY, (PROCESS,), PROCESS, when="retries left", guard=retries_left),
        Move(
            "failure",
            Verb.FAIL,
            (INIT, DEFINE_AGENT, PROCESS, END),
            FAILED,
            when="permanent failure, or no retries left",
        ),
    ),
)
