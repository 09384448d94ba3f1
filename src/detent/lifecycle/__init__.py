"""All lifecycles, by name. Nothing in this package knows of SQL, clocks or processes."""

from detent.lifecycle.agent import AGENT
from detent.lifecycle.breaker import BREAKER
from detent.lifecycle.crew import CREW
from detent.lifecycle.job import JOB
from detent.lifecycle.machine import (
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
from detent.lifecycle.run import RUN
from detent.lifecycle.run_step import RUN_STEP
from detent.lifecycle.worker import WORKER
from detent.lifecycle.workstream import WORKSTREAM
from detent.lifecycle.workstream_step import WORKSTREAM_STEP

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
