"""The steps of a flow on its page: their states, results, inner flows, and possible actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from keptwork.dashboard import flow_graph
from keptwork.dashboard.page_looks import tones
from keptwork.flows import commands_flow_deeds
from keptwork.flows import queries as stories
from keptwork.flows.graph import Before
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.plan_shape import Shape
from keptwork.flows.transaction import Row

ELEMENTS_SHOWN = 20
FLOWS_SHOWN = 20
LONGEST_OUTPUT = 2_000
_ORDER = (Phase.FAILED, Phase.ACTIVE, Phase.WAITING, Phase.GONE, Phase.SATISFIED)
"""The order in which the items of a list are shown."""


@dataclass(frozen=True)
class FlowSteps:
    """The data of the steps of a flow.

    `about` describes what each step does. `outputs` has the outputs of the shown steps. `answers` returns whether the
    user can decide an approval for a reviewer, or for anyone if the argument is None.
    """

    story: stories.Story
    shape: Shape
    about: Mapping[str, str]
    outputs: Mapping[str, Any]
    answers: Callable[[str | None], bool]
    now: int

    def shown(self, row: Row) -> dict[str, Any]:
        """Return a step with all of its details."""
        return {**self._line(row), **self._done(row), **self._inside(row), **self._rights(row["name"])}

    def drawing(self, shown: Sequence[Mapping[str, Any]]) -> Markup | None:
        """Return the graph of the steps, or None if it cannot be drawn."""
        return flow_graph.drawn([_box(step) for step in shown], self.shape.before)

    def _line(self, row: Row) -> dict[str, Any]:
        """Return the state of a step. Items of a list have no further details."""
        return {
            **stories.step_json(row, self.story.costs.get(row["id"])),
            "took_us": stories.took_us(row, self.now),
            "remark": stories.remark(row),
            "deeds": commands_flow_deeds.of_step(row, self.story.flow),
            "begun": self._phase(row) is not Phase.WAITING,
            "asks": row["name"] in self._asking,
            "tone": "asks" if row["name"] in self._asking else tones(self.story.kind.step)[row["state"]],
            "flows": [one.public_id for one in self.story.inner.get(row["id"], [])[:FLOWS_SHOWN]],
        }

    def _done(self, row: Row) -> dict[str, Any]:
        """Return what a step does, and its output if it is short."""
        name = row["name"]
        output = stories.as_text(self.outputs[name]) if name in self.outputs else None
        return {
            "about": self.about[name],
            "after": self.shape.before[name],
            "output": None if output is None else output[:LONGEST_OUTPUT],
            "cut": output is not None and len(output) > LONGEST_OUTPUT,
        }

    def _inside(self, row: Row) -> dict[str, Any]:
        """Return the items of a step, or the most relevant of many."""
        elements = self._elements.get(row["id"], [])
        telling = sorted(elements, key=lambda one: _ORDER.index(self._phase(one)))[:ELEMENTS_SHOWN]
        done = sum(self._phase(one) is Phase.SATISFIED for one in elements)
        return {"elements": [self._line(one) for one in telling], "done": done, "total": len(elements)}

    def _rights(self, name: str) -> dict[str, bool]:
        """Return whether the user can skip the step, or fork at it.

        Skipping an approval decides it. A fork that keeps earlier approvals gives them again.
        """
        kept = (one for one in self._of_others if one != name and not self._before.comes(name, one))
        return {"may_skip": name not in self._of_others, "may_fork": not any(kept)}

    def _phase(self, row: Row) -> Phase:
        return phases(self.story.kind.step)[row["state"]]

    @cached_property
    def _asking(self) -> set[str]:
        return {one.step for one in self.story.asked}

    @cached_property
    def _elements(self) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in self.story.steps:
            if row["parent_id"] is not None:
                found.setdefault(row["parent_id"], []).append(row)
        return found

    @cached_property
    def _of_others(self) -> set[str]:
        """The approval steps that the user cannot decide."""
        gates = {step.id: step.approval for step in self.shape.steps.values() if step.approval is not None}
        return {name for name, gate in gates.items() if not self.answers(gate.by)}

    @cached_property
    def _before(self) -> Before:
        return Before(self.shape.before)


def _box(step: Mapping[str, Any]) -> flow_graph.Box:
    state = "asks" if step["asks"] else step["state"].removeprefix("S_").lower().replace("_", " ")
    count = f"{step['done']}/{step['total']}" if step["total"] else ""
    return flow_graph.Box(step["name"], step["tone"], state, step["about"], count)
