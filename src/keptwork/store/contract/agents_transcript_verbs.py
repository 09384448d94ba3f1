"""The store's operations on agents' conversations, written once for both databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from keptwork.store.contract.agents_transcripts import Line, NewLine
from keptwork.store.contract.breakers_verbs import BreakerReads, BreakerVerbs
from keptwork.store.contract.checkpoints_blobs import Blob
from keptwork.store.contract.records import Job


class TranscriptReads(BreakerReads):
    """The read operations."""

    async def transcript(self, tenant_id: int, job: int) -> list[Line]:
        return [Line(*row) for row in await self._ask("transcript", tenant_id=tenant_id, job_id=job)]


class TranscriptVerbs(TranscriptReads, BreakerVerbs):
    """The write operations."""

    @abstractmethod
    async def keep_blob(self, tenant_id: int, blob: Blob) -> None:
        """Store content, as `Writer.keep_blob` promises."""

    async def say(self, job: Job, lines: Sequence[NewLine]) -> bool:
        return await self.atomically(lambda tx: tx._say(job, lines), sum(1 + line.blob.weight for line in lines))

    async def _say(self, job: Job, lines: Sequence[NewLine]) -> bool:
        """Store messages, with their content in the order of hashes. PostgreSQL locks content, so the order prevents
        deadlocks."""
        claim = {"job_id": job.id, "tenant_id": job.tenant_id, "epoch": job.epoch}
        if not await self._tell("may_say", **claim, owner=job.owner):
            return False
        for blob in sorted({line.blob for line in lines}):
            await self.keep_blob(job.tenant_id, blob)
        for line in lines:
            which = {"round": line.round, "position": line.position}
            await self._tell("say", **claim, **which, size=line.blob.size, hash=line.blob.hash)
        return True
