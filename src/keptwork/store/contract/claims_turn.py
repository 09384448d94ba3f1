"""The tenant after which the next claim of a process starts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from keptwork.store.contract.records import Job


class Turn:
    """The tenant that was served last. Processes start at random tenants, so that they do not all favor the same
    one."""

    def __init__(self) -> None:
        self.after = random.randrange(1 << 20)  # noqa: S311 - fairness, not secrecy

    def served(self, jobs: Sequence[Job]) -> None:
        """Record the tenant that was served last. Jobs come in turns: the first job of each tenant, then the second of
        each. If the first two jobs have the same tenant, there was no other tenant."""
        if len(jobs) > 1 and jobs[1].tenant_id != jobs[0].tenant_id:
            self.after = next(reversed(dict.fromkeys(job.tenant_id for job in jobs)))
        elif jobs:
            self.after = jobs[0].tenant_id
