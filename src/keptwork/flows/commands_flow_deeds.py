"""The actions that are currently possible for a flow and its steps. Others would be rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keptwork.core.lifecycles import Verb
from keptwork.flows.commands import kind_of
from keptwork.flows.compiled import Kind
from keptwork.flows.transaction import Row


def of_flow(kind: Kind, flow: Mapping[str, Any]) -> frozenset[str]:
    """Return those of hold, release, retry, resume, cancel, and fork that are possible.

    For a workstream, cancel means abandon.

    >>> from keptwork.flows.compiled import KINDS
    >>> sorted(of_flow(KINDS["run"], {"state": "PENDING", "held_at": 17}))
    ['cancel', 'release']
    """
    state, leads = flow["state"], kind.flow.leading_out_of
    found = {"fork"} if kind.name == "workstream" else set()
    if kind.flow.state(state).final:
        return frozenset(found)
    found.add("hold" if flow["held_at"] is None else "release")
    found |= {"cancel"} if leads(state, Verb.CANCEL) else set()
    found |= {"retry"} if leads(state, Verb.RETRY) or leads(state, Verb.RESUME) else set()
    return frozenset(found | ({"resume"} if kind.name == "workstream" else set()))


def of_step(step: Row, flow: Mapping[str, Any]) -> frozenset[str]:
    """Return those of skip and reset that are possible."""
    kind = kind_of(step)
    if kind.flow.state(flow["state"]).final:
        return frozenset()
    verbs = (Verb.SKIP, Verb.RESET)
    return frozenset(str(verb) for verb in verbs if kind.step.leading_out_of(step["state"], verb))
