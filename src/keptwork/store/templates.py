"""Definitions of flows, kept by version."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from keptwork import ids

PREFIX = "tpl"


class NewTemplate(NamedTuple):
    """A definition to be kept: `definition` is its JSON, `kind` run or workstream."""

    tenant_id: int
    kind: str
    name: str
    definition: str

    @property
    def hash(self) -> str:
        """Of exactly what is defined: the same again makes no new version."""
        return sha256(f"{self.kind}\0{self.definition}".encode()).hexdigest()


class Template(NamedTuple):
    """A definition as it is kept. It never changes."""

    id: int
    tenant_id: int
    version: int
    kind: str
    name: str
    hash: str
    created_at: int
    definition: str

    @property
    def public_id(self) -> str:
        return ids.public(PREFIX, self.id)


TEMPLATE_COLUMNS = Template._fields
