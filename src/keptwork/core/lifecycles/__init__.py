"""All lifecycles, by name. This package is independent of SQL, clocks, and processes."""

from keptwork.core.decide import (
    Change,
    Lifecycle,
    Move,
    Note,
    Right,
    State,
    Token,
    Verb,
    decide,
    insist,
    override,
)
from keptwork.core.lifecycles.agent import AGENT
from keptwork.core.lifecycles.breaker import BREAKER
from keptwork.core.lifecycles.crew import CREW
from keptwork.core.lifecycles.job import JOB
from keptwork.core.lifecycles.run import RUN
from keptwork.core.lifecycles.run_step import RUN_STEP
from keptwork.core.lifecycles.worker import WORKER
from keptwork.core.lifecycles.workstream import WORKSTREAM
from keptwork.core.lifecycles.workstream_step import WORKSTREAM_STEP

LIFECYCLES: dict[str, Lifecycle] = {
    lifecycle.name: lifecycle
    for lifecycle in (JOB, WORKER, CREW, RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP, BREAKER, AGENT)
}

__all__ = [
    "AGENT",
    "BREAKER",
    "CREW",
    "JOB",
    "LIFECYCLES",
    "RUN",
    "RUN_STEP",
    "WORKER",
    "WORKSTREAM",
    "WORKSTREAM_STEP",
    "Change",
    "Lifecycle",
    "Move",
    "Note",
    "Right",
    "State",
    "Token",
    "Verb",
    "decide",
    "insist",
    "override",
]
