"""Versioned definitions of flows."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from keptwork.core import ids

PREFIX = "tpl"


class NewTemplate(NamedTuple):
    """A definition to store. `definition` is its JSON, and `kind` is run or workstream."""

    tenant_id: int
    kind: str
    name: str
    definition: str

    @property
    def hash(self) -> str:
        """The hash of the exact definition. The same definition does not create a new version."""
        return sha256(f"{self.kind}\0{self.definition}".encode()).hexdigest()


class Template(NamedTuple):
    """A stored definition, which never changes."""

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
