"""Metrics for supervisors: the moves of workers and crews, their times, and their refusals."""

from __future__ import annotations

from typing import Any

from keptwork.core.lifecycles import CREW, WORKER
from keptwork.observability import stats

SUPERVISED = (WORKER.name, CREW.name)


def figures(found: stats.Stats) -> dict[str, Any]:
    """Return the metrics of workers and crews, and how often requests were repeated."""
    whole = stats.as_json(found)
    kept = {
        name: [one for one in whole[source] if one["entity"] in SUPERVISED]
        for name, source in (
            ("transitions", "transitions"),
            ("time_in_state", "time_in_state"),
            ("failed_transitions", "refused_transitions"),
        )
    }
    return {"at": whole["at"], "workers": whole["workers"], **kept, "idempotency": whole["idempotency"]}
