"""Read flow definitions from the database once and cache them, because they never change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from keptwork.core import ids
from keptwork.core.lifecycles import RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP, Lifecycle
from keptwork.errors import NotFound
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Shape
from keptwork.store.contract.flows_templates import PREFIX, Template
from keptwork.store.contract.store import Reader
from keptwork.store.counters import Tally

MOST_KEPT = 100_000
"""Maximum number of cached steps, which take about 256 MB."""

Library = Mapping[str, Flow]
"""Nested flows, by the names that the steps of the outer flow use."""


class Kind(NamedTuple):
    """A kind of flow, with its lifecycle and that of its steps."""

    name: str
    flow: Lifecycle
    step: Lifecycle


KINDS = {"run": Kind("run", RUN, RUN_STEP), "workstream": Kind("workstream", WORKSTREAM, WORKSTREAM_STEP)}

K = TypeVar("K", int, str)


class Shapes(dict[K, Shape]):
    """A cache of shapes. It is cleared when it contains too many steps."""

    def keep(self, key: K, shape: Shape) -> Shape:
        if sum(len(one.steps) for one in list(self.values())) + len(shape.steps) > MOST_KEPT:
            self.clear()
        self[key] = shape
        return shape


_reading = Lock()
_by_text: Shapes[str] = Shapes()
_by_key: WeakKeyDictionary[Tally, Shapes[int]] = WeakKeyDictionary()
"""Per open database, because two databases can give the same key to different definitions."""


def definition_text(flow: Flow) -> str:
    """Return a definition as it is stored: only the values that it sets."""
    said = flow.model_dump(by_alias=True, exclude_unset=True)
    return json.dumps(said, separators=(",", ":"), default=float)  # only amounts of dollars need a conversion to JSON


def shape_of(template: Template) -> Shape:
    """Return the shape of a definition, cached by its text.

    The key cannot be used: a template that is about to be stored might not be, and its key then goes to another
    template.
    """
    text = template.definition
    with _reading:  # two threads that need the same shape wait for each other
        return _by_text.get(text) or _by_text.keep(text, Shape.of(Flow.model_validate(json.loads(text))))


async def shape(store: Reader, tenant_id: int, template_id: int) -> Shape:
    """Return the shape of a stored definition, by its key."""
    known = _by_key.setdefault(store.tally, Shapes())  # type: ignore[attr-defined]  # stores and transactions have one
    if (found := known.get(template_id)) is not None:
        return found
    template = await store.template(tenant_id, template_id)
    if template is None:
        raise NotFound(what="template", id=str(template_id), listing="keptwork templates list")
    return known.keep(template_id, shape_of(template))


async def is_another(store: Reader, tenant_id: int, template_id: int, flow: Flow, library: Library) -> bool:
    """Return whether a definition, or one nested in it, differs from the stored one."""
    kept = (await shape(store, tenant_id, template_id)).flow
    if _said(kept, library) != _said(flow, library):
        return True
    for ours, theirs in zip(kept.steps, flow.steps, strict=True):
        if ours.flow == theirs.flow:
            continue
        _, key = ids.key_of(ours.flow or "") or ("", 0)
        if await is_another(store, tenant_id, key, await _inner(store, tenant_id, theirs.flow or "", library), library):
            return True
    return False


def _said(flow: Flow, library: Library) -> str:
    """Return a definition as text that is equal for equal definitions.

    It ignores the order of keys and the names of nested flows. Files and the database name nested flows differently,
    and each version has its own name in the database.
    """
    inner = [step.flow is not None and (step.flow in library or _is_kept(step.flow)) for step in flow.steps]
    steps = [step.model_copy(update={"flow": ""}) if own else step for step, own in zip(flow.steps, inner, strict=True)]
    return json.dumps(json.loads(definition_text(flow.model_copy(update={"steps": steps}))), sort_keys=True)


def _is_kept(named: str) -> bool:
    return (ids.key_of(named) or ("", 0))[0] == PREFIX


async def _inner(store: Reader, tenant_id: int, named: str, library: Library) -> Flow:
    if named in library:
        return library[named]
    return (await shape(store, tenant_id, (ids.key_of(named) or ("", 0))[1])).flow
