"""Leases that are over: what becomes of the jobs."""

from __future__ import annotations

import json
from typing import Any

from keptwork.lifecycle import JOB, Change, decide, insist
from keptwork.store import Job


def reaped(job: Job, now: int) -> Change:
    """Back into the queue while attempts are left; otherwise the end its policy asks for."""
    error = f"the lease of its worker ended in attempt {job.attempts} of {job.max_attempts}"
    facts: dict[str, Any] = {"now": max(now, job.lease_until or 0), "lease_over": True, "actor": "reaper"}
    if job.attempts < job.max_attempts:
        return insist(decide(JOB, job, "expire", reason=error, **facts))
    values = {"error": error}
    if job.on_exhausted == "fail":
        return insist(decide(JOB, job, "fail", reason=error, values=values, **facts))
    detail = json.dumps({"stage": "exec", "last_lease_expires_at": job.lease_until})
    code = "exhausted_retries"
    return insist(decide(JOB, job, "dead_letter", reason=code, reason_code=code, detail=detail, values=values, **facts))
