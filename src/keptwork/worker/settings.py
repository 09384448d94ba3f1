"""How a worker works, as its application says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keptwork.service.retention import Retention
from keptwork.worker.bond import Bond

SILENT_US = 60_000_000
KEEP_AS_USUAL = Retention()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a worker works; times are microseconds. Without a lease, each kind of job has its own. A handler in a process
    of its own finds its application's jobs in `database`. With `most_stuck` threads lost (else half as many as it has
    slots) a worker ends, to be replaced; with more than `most_memory` bytes in use it pauses. Workers that say nothing
    for `silent_us` are given up. One that has a process to itself may end that process; with a `bond` it ends with its
    supervisor. A `remote` one has no database: a server looks after what concerns all."""

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
