"""Idempotency keys of flows: reject a repeated key for a different flow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.errors import FlowKeyReused
from keptwork.flows.compiled import Kind, Library, is_another
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Row, inputs_of
from keptwork.store.contract.flows_templates import Template
from keptwork.store.contract.store import Reader

MOST_NAMED = 5


class Wanted(NamedTuple):
    """A flow to start, with its inputs as given and with defaults.

    `definition` is None if the caller wants the newest version of a name instead of one definition.
    """

    template: Template
    given: Mapping[str, Any]
    inputs: Mapping[str, Any]
    webhook: str | None
    definition: Flow | None
    library: Library


async def insist(store: Reader, kind: Kind, earlier: Row, wanted: Wanted) -> None:
    """Raise `FlowKeyReused`, with the difference, if the flow of the key is not the wanted one."""
    differs = await _differs(store, earlier, wanted)
    if differs is not None:
        flow = ids.public(kind.flow.prefix, earlier["id"])
        raise FlowKeyReused(key=earlier["key"], flow=flow, kind=kind.name, what=differs)


async def _differs(store: Reader, earlier: Row, wanted: Wanted) -> str | None:
    name, place = wanted.template.name, (earlier["tenant_id"], earlier["template_id"])
    if earlier["name"] != name:
        return f"a flow {earlier['name']} and not {name}"
    if wanted.definition is not None and await is_another(store, *place, wanted.definition, wanted.library):
        return f"by another definition of {name}"
    if others := _other_inputs(earlier, wanted):
        return f"with other inputs: {', '.join(others[:MOST_NAMED])}{', …' if others[MOST_NAMED:] else ''}"
    return "and told no webhook or another of its end" if wanted.webhook not in (None, earlier["webhook"]) else None


def _other_inputs(earlier: Row, wanted: Wanted) -> list[str]:
    """Return the names of inputs that differ.

    For a newer version, only given inputs are compared, because it has its own defaults.
    """
    before, now = inputs_of(earlier), wanted.inputs
    newer = wanted.definition is None and earlier["template_id"] != wanted.template.id
    names = wanted.given if newer else {**before, **now}
    return [name for name in names if _said(before, name) != _said(now, name)]


def _said(inputs: Mapping[str, Any], name: str) -> str:
    """Return an input as text, so that true and 1 differ. A missing input equals null, as older flows stored it."""
    return json.dumps(inputs.get(name), sort_keys=True)
