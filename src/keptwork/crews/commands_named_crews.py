"""Create crews whose kind of share is known only by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork.core.durations import Span, span_us
from keptwork.crews import commands as crews
from keptwork.crews.commands import NewCrew
from keptwork.jobs import limits
from keptwork.jobs.queries import check_kind
from keptwork.jobs.queries import new_job as named_job
from keptwork.store import Store


async def named_crew(
    store: Store,
    tenant_id: int,
    kind: str,
    arguments: Mapping[str, Any],
    *,
    task: str,
    workers: int = 1,
    key: str | None = None,
    timeout: Span | None = None,  # noqa: ASYNC109 - how long the crew may take, not this call
    **rules: Any,
) -> NewCrew:
    """Return a crew whose shares are jobs of this kind, under the limits declared by workers.

    `rules` can set their `queue`, `priority`, and `max_attempts`. Raise `BadInput` for invalid values. Nothing is
    stored.
    """
    crews.check(task, workers, key, arguments)
    check_kind(kind)
    given = crews.shares_given(arguments, task, workers)
    plain = [named_job(tenant_id, kind, json.dumps(one), **rules) for one in given]
    shares = [await limits.under_limit(store, share) for share in plain]
    length = None if timeout is None else span_us(timeout)
    return NewCrew(tenant_id, task, workers, kind, crews.work_of(shares, arguments), key, length)
