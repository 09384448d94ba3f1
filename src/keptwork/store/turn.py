"""Whose turn it is: where the next claim of a process begins to look at tenants."""

from __future__ import annotations

import random
from collections.abc import Sequence

from keptwork.store.records import Job


class Turn:
    """The tenant that was served last. Processes begin anywhere, so that they do not all favour the same."""

    def __init__(self) -> None:
        self.after = random.randrange(1 << 20)  # noqa: S311 - fairness, not secrecy

    def served(self, jobs: Sequence[Job]) -> None:
        """Jobs come in turn: of each tenant the first, then of each the second. Where the second is of the same tenant
        as the first, there was no other."""
        if len(jobs) > 1 and jobs[1].tenant_id != jobs[0].tenant_id:
            self.after = next(reversed(dict.fromkeys(job.tenant_id for job in jobs)))
        elif jobs:
            self.after = jobs[0].tenant_id
