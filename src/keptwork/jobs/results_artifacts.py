"""Artifacts: list and read what jobs store in addition to their results, and check new ones."""

from __future__ import annotations

import re
from typing import Any

from keptwork.core.durations import rfc3339
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, NotFound
from keptwork.jobs import queries
from keptwork.store import Artifact, Store
from keptwork.store.contract.checkpoints_blob_service import content_of

LARGEST_ARTIFACT = 64 << 20
LONGEST_NAME = 200
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,80}(; ?[\w.+-]{1,40}=[\w.+-]{1,40})?", re.ASCII)


async def listed(store: Store, tenant_id: int, id: str) -> list[Artifact]:
    """List the artifacts of a job by name. Raise `NotFound` for an unknown ID and for another tenant's ID."""
    row = await queries.find(store, tenant_id, id)
    return await store.artifacts(tenant_id, row["id"])


async def content(store: Store, tenant_id: int, id: str, name: str) -> tuple[Artifact, bytes]:
    """Return an artifact of a job, and its content."""
    for artifact in await listed(store, tenant_id, id):
        if artifact.name == name:
            return artifact, await content_of(store, tenant_id, artifact.hash)
    shown = public_id(JOB.name, queries.key_of(id))
    raise NotFound(what="artifact", id=repr(name), listing=f"keptwork jobs artifacts {shown}")


def check_name(name: str) -> None:
    """Raise `BadInput` unless the name is printable and can be a file name in any directory."""
    plain = name.isprintable() and name == name.strip() and not re.search(r"[/\\]", name)
    if not plain or name in ("", ".", "..") or len(name) > LONGEST_NAME:
        limit = f"at most {LONGEST_NAME} printable characters without / and \\"
        raise BadInput(what=f"{name[:LONGEST_NAME]!r} is no name for an artifact; use {limit}")


def check_media_type(media_type: str) -> None:
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise BadInput(what=f"{media_type[:80]!r} is no media type; it looks like text/plain or application/pdf")


def check_size(name: str, size: int) -> None:
    if size > LARGEST_ARTIFACT:
        limit = f"{LARGEST_ARTIFACT >> 20} MiB"
        raise BadInput(what=f"artifact {name!r}: {size:,} bytes are over the limit of {limit}; keep it elsewhere")


def as_json(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact in its public form."""
    return {**artifact._asdict(), "created_at": rfc3339(artifact.created_at)}
