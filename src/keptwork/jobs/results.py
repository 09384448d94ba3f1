"""Read the result of a job, or the reason why there is none."""

from __future__ import annotations

import json
from typing import Any

from keptwork.core.durations import Span
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.errors import JobFailed
from keptwork.jobs import queries
from keptwork.jobs.results_endings import Endings
from keptwork.store import Store
from keptwork.store.contract.checkpoints_blob_service import whole

Row = dict[str, Any]


async def result(
    store: Store, tenant_id: int, id: str, at_most: Span | None = None, endings: Endings | None = None
) -> Any:
    """Wait for a job and return its result. Raise `JobFailed` if it did not succeed."""
    text = await result_text(store, tenant_id, id, at_most, endings)
    return None if text is None else json.loads(text)


async def result_text(
    store: Store, tenant_id: int, id: str, at_most: Span | None = None, endings: Endings | None = None
) -> str | None:
    """Wait for a job and return its result as the stored JSON."""
    row = await queries.wait(store, tenant_id, id, at_most, endings)
    if not queries.succeeded(row):
        raise _failure(row)
    text: str | None = (await whole(store, row))["result"]
    return text


def _failure(row: Row) -> JobFailed:
    said = [text for text in (row["reason"], row["error"]) if text]
    return JobFailed(
        id=public_id(JOB.name, row["id"]),
        state=row["state"],
        reason=row["reason"],
        error=row["error"],
        why=": ".join(dict.fromkeys(said)) or "no reason was given",
    )
