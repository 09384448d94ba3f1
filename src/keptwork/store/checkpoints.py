"""Results of a job's steps: what is to be saved, and what was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keptwork.store.blobs import Blob
from keptwork.store.records import Job

OWN = "#"
"""What the names of waits begin with, so that no step of the user's is called the same."""

PROGRESS = "job_progress"
"""The kind of telemetry that tells how far a job has come."""


class Save(NamedTuple):
    """The result of a step, to be kept while its job is held. What is large comes as a blob as well; `result` then only
    tells of it. `code` is a digest of the function, `version` that of its handler."""

    job: Job
    name: str
    result: str
    blob: Blob | None = None
    code: str | None = None
    version: int = 0

    @property
    def weight(self) -> int:
        """How many rows it counts for where the work of a write is estimated."""
        return 1 if self.blob is None else 1 + self.blob.weight


class Report(NamedTuple):
    """How far a job has come, as its handler said, in JSON."""

    job: Job
    payload: str


class Checkpoint(NamedTuple):
    """The kept result of a step, and under which epoch it was. `hash` is where it is if it is large, `changed_at` when
    a worker first met it with other code."""

    name: str
    result: str
    hash: str | None
    code: str | None
    version: int
    epoch: int
    created_at: int
    changed_at: int | None


CHECKPOINT_COLUMNS = Checkpoint._fields


def columns(saves: Sequence[Save]) -> dict[str, list[object]]:
    """As the statements take them, one element for each."""
    return {
        "job_id": [save.job.id for save in saves],
        "epoch": [save.job.epoch for save in saves],
        "owner": [save.job.owner for save in saves],
        "name": [save.name for save in saves],
        "result": [save.result for save in saves],
        "hash": [save.blob.hash if save.blob else None for save in saves],
        "code": [save.code for save in saves],
        "version": [save.version for save in saves],
    }
