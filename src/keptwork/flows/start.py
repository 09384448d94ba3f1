"""Templates: definitions of flows, stored by version, found by name or by ID."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import rfc3339
from keptwork.errors import BadInput, NotFound
from keptwork.flows import commands as flows
from keptwork.flows.compiled import Library
from keptwork.flows.definition import Flow
from keptwork.flows.validation import from_text
from keptwork.store import Store
from keptwork.store.contract.flows_templates import PREFIX, Template
from keptwork.store.contract.store import Reader

MOST_AT_ONCE = 10_000
MOST_INPUTS = 1_000


async def put(store: Store, tenant_id: int, flow: Flow, library: Library | None = None) -> Template:
    """Store a definition as the next version of its name.

    Return the newest version if it is the same.
    """
    return await store.atomically(lambda tx: flows.keep(tx, flow, tenant_id, library or {}))


async def find(store: Reader, tenant_id: int, named: str) -> Template:
    """Return a version by its public ID, or the newest version of a name. Raise `NotFound` for any other."""
    prefix, key = ids.key_of(named.strip()) or ("", 0)
    found = await store.template(tenant_id, key) if prefix == PREFIX else None
    newest = [] if found else await store.templates(tenant_id, name=named.strip(), limit=1)
    if found is None and not newest:
        raise NotFound(what="template", id=repr(named), listing="keptwork templates list")
    return found or newest[0]


def by_name(template: Template, named: str) -> bool:
    """Return whether the caller named the template, and not one version by its ID."""
    return named.strip().lower() != template.public_id


async def find_of_kind(store: Reader, tenant_id: int, named: str, kind: str) -> Template:
    """Return a template of this kind of flow. Raise `BadInput` for another kind."""
    found = await find(store, tenant_id, named)
    if found.kind != kind:
        raise BadInput(what=f"{found.name} is the template of a {found.kind}; start it among {found.kind}s")
    return found


async def listed(
    store: Reader, tenant_id: int, *, name: str | None = None, every: bool = False, limit: int = 100
) -> list[Template]:
    """List the templates of a tenant by name: the newest version of each, or every version."""
    if not 1 <= limit <= MOST_AT_ONCE:
        raise BadInput(what=f"a list holds 1 to {MOST_AT_ONCE} templates, not {limit}")
    return await store.templates(tenant_id, name=name, newest_only=not every, limit=limit)


class Page(NamedTuple):
    """A page of templates, and the cursor of the next page if there are more."""

    templates: list[Template]
    next: str | None


async def page(
    store: Reader,
    tenant_id: int,
    *,
    name: str | None = None,
    every: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page:
    """Return one page of the templates of a tenant, by name."""
    place = None
    if after is not None:
        before, _, version = after.rpartition("@")
        place = before, int(version)
    found = await store.templates(tenant_id, name=name, newest_only=not every, after=place, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], None if last is None else f"{last.name}@{last.version}")


def flow_of(template: Template) -> Flow:
    """Return the flow that a template defines."""
    return Flow.model_validate(json.loads(template.definition))


def given(flow: Flow, pairs: list[str]) -> dict[str, Any]:
    """Return inputs typed as `name=value`, converted to the types that the flow declares.

    >>> flow = Flow.model_validate({"name": "f", "inputs": {"n": {"type": "integer"}},
    ...     "steps": [{"id": "a", "command": ["true"]}]})
    >>> given(flow, ["n=3"])
    {'n': 3}
    """
    if len(pairs) > MOST_INPUTS:
        raise BadInput(what=f"{len(pairs):,} inputs are over the limit of {MOST_INPUTS:,}")
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise BadInput(what=f"{pair!r} is no input; write it as name=value")
        found[name.strip()] = from_text(flow.inputs.get(name.strip()), text)
    return found


def as_json(template: Template, *, whole: bool = False) -> dict[str, Any]:
    """Return a template in its public form, with its definition if `whole` is set."""
    shown = {
        "id": template.public_id,
        "name": template.name,
        "version": template.version,
        "kind": template.kind,
        "hash": f"sha256:{template.hash}",
        "created_at": rfc3339(template.created_at),
    }
    return shown | ({"definition": json.loads(template.definition)} if whole else {})
