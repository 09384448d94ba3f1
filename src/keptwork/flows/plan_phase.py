"""Map the state of a step, in any lifecycle, to its meaning for the engine."""

from __future__ import annotations

from enum import Enum
from functools import cache

from keptwork.core.decide import Lifecycle, Verb


class Phase(Enum):
    """The progress of a step."""

    WAITING = "it has not begun"
    ACTIVE = "it has begun, and will go on"
    SATISFIED = "it is done: what comes after it may begin"
    FAILED = "it failed for good"
    GONE = "it was given up"


_SATISFY = (Verb.SUCCEED, Verb.SKIP, Verb.APPROVE)
_FAIL = (Verb.FAIL, Verb.REJECT, Verb.EXPIRE)


@cache
def phases(lifecycle: Lifecycle) -> dict[str, Phase]:
    """Return the phase of each state by its name, derived from the moves that lead to the state.

    >>> from keptwork.core.lifecycles import WORKSTREAM_STEP
    >>> phases(WORKSTREAM_STEP)["S_SKIPPED"]
    <Phase.SATISFIED: 'it is done: what comes after it may begin'>
    """
    found = {state.name: Phase.ACTIVE for state in lifecycle.states}
    for verbs, meaning in (((Verb.CANCEL,), Phase.GONE), (_FAIL, Phase.FAILED), (_SATISFY, Phase.SATISFIED)):
        found |= {move.target.name: meaning for move in lifecycle.moves if move.verb in verbs}
    return {**found, lifecycle.initial.name: Phase.WAITING}


@cache
def flow_phases(lifecycle: Lifecycle) -> dict[str, Phase]:
    """Return, for each state of a flow by its name, its meaning for the flow's steps.

    >>> from keptwork.core.lifecycles import WORKSTREAM
    >>> flow_phases(WORKSTREAM)["S_RETRYING"]
    <Phase.FAILED: 'it failed for good'>
    """
    failing = {move.target.name for move in lifecycle.moves if move.verb in (Verb.FAIL, Verb.RETRY)}
    found = {state.name: Phase.FAILED if state.name in failing else Phase.ACTIVE for state in lifecycle.states}
    return found | {state.name: Phase.GONE for state in lifecycle.states if state.final}
