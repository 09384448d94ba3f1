"""What agents say: each message once by its hash, in its place, by whoever holds the job."""

from __future__ import annotations

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import Blob, Job, Store, Transaction, open_store
from keptwork.store.contract.agents_transcripts import Line, NewLine
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.by_hand import Hand
from tests.conformance.promises import keeps
from tests.conformance.stage import lost_jobs, moved, started, undone
from tests.conformance.times import SECOND, SetClock
from tests.support.broken_sql import leave_out

OURS, BY_NOW = 1, 1 << 60
HELLO, ANSWER = Blob.of(b'{"text":"hello"}'), Blob.of(b'{"text":"good day"}')


async def count(hand: Hand, table: str) -> int:
    found: int = (await hand.run(f"SELECT count(*) FROM {table}"))[0][0]
    return found


@keeps(
    Writer.say,
    "Store messages of a job's conversations at their positions, each content once per tenant",
    "Return whether the claim still holds the job",
)
@keeps(Reader.transcript, "Return the messages of a job's conversations by round and position")
async def test_a_conversation_is_read_back_in_its_order_and_each_message_stored_once(
    timed: Store, clock: SetClock, hand: Hand
) -> None:
    job, other = await started(timed), await started(timed)
    assert await timed.say(job, [NewLine(1, 0, HELLO), NewLine(0, 1, ANSWER), NewLine(0, 0, HELLO)]) is True
    assert await timed.say(other, [NewLine(0, 0, HELLO)]) is True
    at = clock.now
    assert await timed.transcript(OURS, job.id) == [
        Line(0, 0, HELLO.hash, HELLO.size, 0, at),
        Line(0, 1, ANSWER.hash, ANSWER.size, 0, at),
        Line(1, 0, HELLO.hash, HELLO.size, 0, at),
    ]
    assert await count(hand, "blobs") == 2
    assert await timed.blob(OURS, ANSWER.hash) == ANSWER.content


@keeps(Writer.say, "A message already stored at a position stays")
async def test_what_was_said_is_not_unsaid(timed: Store, clock: SetClock) -> None:
    job = await started(timed)
    await timed.say(job, [NewLine(0, 0, HELLO)])
    before = await timed.transcript(OURS, job.id)
    await clock.advance(SECOND)
    assert await timed.say(job, [NewLine(0, 0, ANSWER)]) is True
    assert await timed.transcript(OURS, job.id) == before


async def test_it_is_undone_with_the_turn_it_belongs_to(store: Store, hand: Hand) -> None:
    job = await started(store)
    async with undone(store) as transaction:
        assert await transaction.say(job, [NewLine(0, 0, HELLO)]) is True
    assert (await store.transcript(OURS, job.id), await count(hand, "blobs")) == ([], 0)

    async def work(transaction: Transaction) -> bool:
        return await transaction.say(job, [NewLine(0, 0, HELLO)])

    assert await store.atomically(work) is True
    assert len(await store.transcript(OURS, job.id)) == 1


async def _stale(store: Store, clock: SetClock) -> list[str]:
    """In which of the ways to lose a job its old holder could still say something."""
    lines = [NewLine(0, 0, HELLO)]
    return [way async for way, job in lost_jobs(store, clock) if await _heard(store, job, lines)]


async def _heard(store: Store, job: Job, lines: list[NewLine]) -> bool:
    return await store.say(job, lines) or bool(await store.transcript(OURS, job.id))


@keeps(Writer.say, "If it does not, nothing is stored")
async def test_whoever_lost_the_job_says_nothing(timed: Store, clock: SetClock, hand: Hand) -> None:
    assert await _stale(timed, clock) == []
    assert await count(hand, "blobs") == 0


@pytest.mark.parametrize(
    ("ignored", "caught"),
    [
        (("state", "epoch", "owner", "lease_until"), {"settled", "released"}),
        (("epoch", "owner"), {"claimed by another"}),
        (("lease_until",), {"lease over"}),
    ],
)
async def test_the_check_above_catches_a_statement_that_does_not_look(
    database_url: str, clock: SetClock, monkeypatch: pytest.MonkeyPatch, ignored: tuple[str, ...], caught: set[str]
) -> None:
    leave_out(monkeypatch, "may_say", rf"j\.({'|'.join(ignored)}) (=|>) (:\w+|\{{[\w.]+\}})", "true")
    store = await open_store(database_url, clock=getattr(clock, "manual", None))
    try:
        assert caught <= set(await _stale(store, clock))
    finally:
        await store.close()


@keeps(Reader.transcript, "Another tenant's job has none")
async def test_tenants_hear_nothing_of_each_other(store: Store, other_tenant: int) -> None:
    theirs = await started(store, tenant_id=other_tenant)
    await store.say(theirs, [NewLine(0, 0, HELLO)])
    assert await store.transcript(OURS, theirs.id) == []
    assert len(await store.transcript(other_tenant, theirs.id)) == 1
    assert await store.blob(OURS, HELLO.hash) is None


async def test_what_was_said_stays_as_long_as_its_job(store: Store, hand: Hand) -> None:
    job, other = await started(store), await started(store)
    await store.say(job, [NewLine(0, 0, HELLO), NewLine(0, 1, ANSWER)])
    await store.say(other, [NewLine(0, 0, HELLO)])
    assert await store.drop_unused_blobs(BY_NOW, 100) == 0
    await moved(store, JOB, job.id, "succeed", by="holder")
    await hand.run(f"DELETE FROM jobs WHERE id = {job.id}")
    assert await store.transcript(OURS, job.id) == []
    assert await store.drop_unused_blobs(BY_NOW, 100) == 1
    assert await store.blob(OURS, HELLO.hash) == HELLO.content
