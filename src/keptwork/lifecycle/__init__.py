"""All lifecycles, by name. This package is independent of SQL, clocks, and processes."""

from keptwork.lifecycle.agent import AGENT
from keptwork.lifecycle.breaker import BREAKER
from keptwork.lifecycle.crew import CREW
from keptwork.lifecycle.job import JOB
from keptwork.lifecycle.machine import (
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
from keptwork.lifecycle.run import RUN
from keptwork.lifecycle.run_step import RUN_STEP
from keptwork.lifecycle.worker import WORKER
from keptwork.lifecycle.workstream import WORKSTREAM
from keptwork.lifecycle.workstream_step import WORKSTREAM_STEP

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
