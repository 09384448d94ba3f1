"""The settings of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keptwork.maintenance.retention import Retention
from keptwork.workers.supervisor_link_bond import Bond

SILENT_US = 60_000_000
KEEP_AS_USUAL = Retention()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a worker. Times are in microseconds.

    If `lease_us` is None, each kind of job has its own lease. A handler in its own process finds its application's jobs
    in `database`. A worker that has lost `most_stuck` threads (default: half the number of its slots) ends, to be
    replaced. A worker that uses more than `most_memory` bytes pauses. Workers without a heartbeat for `silent_us` are
    terminated. A worker with `own_process` can end its process. With a `bond`, it ends with its supervisor. A `remote`
    worker has no database, and its server does the maintenance.
    """

    queues: Sequence[str] = ("default",)
    concurrency: int = 32
    name: str = ""
    tenant_id: int | None = None
    lease_us: int | None = None
    grace_us: int = 30_000_000
    retention: Retention = KEEP_AS_USUAL
    database: str | None = None
    most_stuck: int | None = None
    most_memory: int | None = None
    silent_us: int = SILENT_US
    own_process: bool = False
    bond: Bond | None = None
    version: str = ""
    remote: bool = False
