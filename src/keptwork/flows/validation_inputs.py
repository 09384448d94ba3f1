"""Check the inputs that a flow is started with against its definition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork.errors import BadInput
from keptwork.flows import document_core_schema
from keptwork.flows.definition import Flow, Input
from keptwork.flows.validation import misfit


def bound(flow: Flow, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every input: the given value or the default. Raise `BadInput` for an invalid value.

    An input without a value and a default is left out.

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
    """Return a value from a command line, with the type that the flow expects.

    Words are read as in a flow file, lists and objects as JSON. A text that cannot be read that way stays a string.

    >>> from_text(Input(type="integer"), "3"), from_text(None, "3"), from_text(Input(type="list"), '["no"]')
    (3, '3', ['no'])
    """
    if wanted is None or wanted.type == "string":
        return text
    try:
        return json.loads(text) if wanted.type in ("list", "object") else document_core_schema.scalar(text)
    except ValueError:
        return text
