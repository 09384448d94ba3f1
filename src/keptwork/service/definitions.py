"""Definitions as the engine uses them: read from the database once, and kept, because they never change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from keptwork import ids
from keptwork.errors import NotFound
from keptwork.flow.definition import Flow
from keptwork.flow.shape import Shape
from keptwork.lifecycle import RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP, Lifecycle
from keptwork.store.protocol import Reader
from keptwork.store.tally import Tally
from keptwork.store.templates import PREFIX, Template

MOST_KEPT = 100_000
"""So many steps of definitions are remembered: about a quarter of a gigabyte at the most."""

Library = Mapping[str, Flow]
"""Flows that steps of another one are, by what those steps call them."""


class Kind(NamedTuple):
    """A kind of flow: its own lifecycle, and that of its steps."""

    name: str
    flow: Lifecycle
    step: Lifecycle


KINDS = {"run": Kind("run", RUN, RUN_STEP), "workstream": Kind("workstream", WORKSTREAM, WORKSTREAM_STEP)}

K = TypeVar("K", int, str)


class Shapes(dict[K, Shape]):
    """Those that were made once; all are forgotten when they have become too many steps."""

    def keep(self, key: K, shape: Shape) -> Shape:
        if sum(len(one.steps) for one in list(self.values())) + len(shape.steps) > MOST_KEPT:
            self.clear()
        self[key] = shape
        return shape


_reading = Lock()
_by_text: Shapes[str] = Shapes()
_by_key: WeakKeyDictionary[Tally, Shapes[int]] = WeakKeyDictionary()
"""By what stands for an open database, since two databases may give one key to two definitions."""


def definition_text(flow: Flow) -> str:
    """A definition as it is kept: what was said, and nothing else."""
    said = flow.model_dump(by_alias=True, exclude_unset=True)
    return json.dumps(said, separators=(",", ":"), default=float)  # only amounts of dollars are no JSON by themselves


def shape_of(template: Template) -> Shape:
    """The shape of a definition, by what it says: it may be one that is about to be kept, under a key that another one
    gets if it is not."""
    text = template.definition
    with _reading:  # one of two threads that want the same waits for the other
        return _by_text.get(text) or _by_text.keep(text, Shape.of(Flow.model_validate(json.loads(text))))


async def shape(store: Reader, tenant_id: int, template_id: int) -> Shape:
    """The shape of a definition by its key, of one that is kept."""
    known = _by_key.setdefault(store.tally, Shapes())  # type: ignore[attr-defined]  # stores and transactions have one
    if (found := known.get(template_id)) is not None:
        return found
    template = await store.template(tenant_id, template_id)
    if template is None:
        raise NotFound(what="template", id=str(template_id), listing="keptwork templates list")
    return known.keep(template_id, shape_of(template))


async def is_another(store: Reader, tenant_id: int, template_id: int, flow: Flow, library: Library) -> bool:
    """Whether a definition, or one inside it, says something else than the one that is kept under that key."""
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
    """What a definition says, in whatever order, but for the flows inside it: files call those otherwise than the
    database, and the database calls each version otherwise."""
    inner = [step.flow is not None and (step.flow in library or _is_kept(step.flow)) for step in flow.steps]
    steps = [step.model_copy(update={"flow": ""}) if own else step for step, own in zip(flow.steps, inner, strict=True)]
    return json.dumps(json.loads(definition_text(flow.model_copy(update={"steps": steps}))), sort_keys=True)


def _is_kept(named: str) -> bool:
    return (ids.key_of(named) or ("", 0))[0] == PREFIX


async def _inner(store: Reader, tenant_id: int, named: str, library: Library) -> Flow:
    if named in library:
        return library[named]
    return (await shape(store, tenant_id, (ids.key_of(named) or ("", 0))[1])).flow
