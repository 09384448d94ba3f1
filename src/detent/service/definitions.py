"""Definitions as the engine uses them: read from the database once, and kept, because they never change."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from detent.errors import NotFound
from detent.flow.definition import Flow
from detent.flow.shape import Shape
from detent.lifecycle import RUN, RUN_STEP, WORKSTREAM, WORKSTREAM_STEP, Lifecycle
from detent.store.protocol import Reader
from detent.store.tally import Tally
from detent.store.templates import Template

KEPT = 1_000


class Kind(NamedTuple):
    """A kind of flow: its own lifecycle, and that of its steps."""

    name: str
    flow: Lifecycle
    step: Lifecycle


KINDS = {"run": Kind("run", RUN, RUN_STEP), "workstream": Kind("workstream", WORKSTREAM, WORKSTREAM_STEP)}

_shapes: WeakKeyDictionary[Tally, dict[int, Shape]] = WeakKeyDictionary()
"""By what stands for an open database, since two databases may give one key to two definitions."""


def definition_text(flow: Flow) -> str:
    """A definition as it is kept: what was said, and nothing else."""
    said = flow.model_dump(by_alias=True, exclude_unset=True)
    return json.dumps(said, separators=(",", ":"), default=float)  # only amounts of dollars are no JSON by themselves


@lru_cache(maxsize=KEPT)
def _read(definition: str) -> Shape:
    return Shape.of(Flow.model_validate(json.loads(definition)))


def shape_of(template: Template) -> Shape:
    """The shape of a definition."""
    return _read(template.definition)


async def shape(store: Reader, tenant_id: int, template_id: int) -> Shape:
    """The shape of a definition by its key."""
    known = _shapes.setdefault(store.tally, {})  # type: ignore[attr-defined]  # stores and their transactions have one
    if template_id not in known:
        template = await store.template(tenant_id, template_id)
        if template is None:
            raise NotFound(what="template", id=str(template_id), listing="detent templates list")
        if len(known) >= KEPT:
            known.clear()
        known[template_id] = shape_of(template)
    return known[template_id]
