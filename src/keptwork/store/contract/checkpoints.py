"""The results of a job's steps, to be saved and as saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keptwork.store.contract.checkpoints_blobs import Blob
from keptwork.store.contract.records import Job

OWN = "#"
"""The prefix of the names of waits, so that no step of a user has the same name."""

PROGRESS = "job_progress"
"""The kind of telemetry for the progress of jobs."""


class Save(NamedTuple):
    """The result of a step, to be stored while its claim holds the job. A large result also comes as a blob, and
    `result` then only describes the blob. `code` is a digest of the function, and `version` is that of its handler."""

    job: Job
    name: str
    result: str
    blob: Blob | None = None
    code: str | None = None
    version: int = 0

    @property
    def weight(self) -> int:
        """The number of rows that it counts for in the estimate of a write's work."""
        return 1 if self.blob is None else 1 + self.blob.weight


class Report(NamedTuple):
    """The progress of a job that its handler reported, as JSON."""

    job: Job
    payload: str


class Checkpoint(NamedTuple):
    """The stored result of a step and the epoch of its claim. `hash` is the hash of a large result. `changed_at` is
    when a worker first met the step with other code."""

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
    """Return the saves as statement parameters, one list item for each save."""
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
