"""What a flow is started with: given values held against what the definition asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork import core_schema
from keptwork.errors import BadInput
from keptwork.flow.check import misfit
from keptwork.flow.definition import Flow, Input


def bound(flow: Flow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every input with its value: as given, else its default; what does not fit is refused. An input that is neither
    given nor has a default is left out.

    >>> flow = Flow.model_validate({"name": "f", "inputs": {"n": {"type": "integer", "default": 3}},
    ...     "steps": [{"id": "a", "command": ["true"]}]})
    >>> bound(flow, {})
    {'n': 3}
    """
    unknown = sorted(set(given) - set(flow.inputs))
    if unknown:
        known = ", ".join(flow.inputs) or "none"
        raise BadInput(what=f"the flow {flow.name} has no input {', '.join(unknown)}; it has: {known}")
    for name, wanted in flow.inputs.items():
        _insist(flow, name, wanted, given)
    usual = {name: wanted.default for name, wanted in flow.inputs.items() if "default" in wanted.model_fields_set}
    values = {**usual, **given}
    return {name: values[name] for name in flow.inputs if name in values}


def _insist(flow: Flow, name: str, wanted: Input, given: Mapping[str, Any]) -> None:
    if name not in given:
        if wanted.required:
            raise BadInput(what=f"the flow {flow.name} needs the input {name}: give it with -i {name}=VALUE")
    elif wrong := misfit(wanted, given[name]):
        raise BadInput(what=f"the input {name} of the flow {flow.name} {wrong}")


def from_text(wanted: Input | None, text: str) -> Any:
    """A value typed on a command line, read as what the flow asks for: words as in a flow file, lists and objects as
    JSON. What cannot be read so stays the text that it is.

    >>> from_text(Input(type="integer"), "3"), from_text(None, "3"), from_text(Input(type="list"), '["no"]')
    (3, '3', ['no'])
    """
    if wanted is None or wanted.type == "string":
        return text
    try:
        return json.loads(text) if wanted.type in ("list", "object") else core_schema.scalar(text)
    except ValueError:
        return text
