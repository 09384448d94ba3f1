"""A long conversation takes room for what is said in it, not for every time it is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from keptwork import Keptwork
from keptwork.agents import transcripts
from keptwork.agents.conversation import Answer, Request, Role
from keptwork.agents.tool_loop import Limits, Toolbox, converse
from keptwork.agents.transcripts import document
from keptwork.store import Blob, Job, Transaction
from keptwork.store.contract.agents_transcripts import NewLine
from keptwork.workers.tool_runner import Outcome
from tests.conformance.by_hand import Hand, hand_on
from tests.worker.agent_stage import Script, Scripted, config, kept_turns, question, says, uses

FEW, MANY = 60, 200
SIZES = {
    "blobs": "SELECT coalesce(sum(size), 0) FROM blobs",
    "checkpoints": "SELECT coalesce(sum(length(CAST(result AS text))), 0) FROM checkpoints",
}


def talkative(turns: int) -> Script:
    """A model that wants a tool each time, and never says the same."""

    def script(request: Request) -> Answer:
        said = sum(message.role is Role.ASSISTANT for message in request.messages)
        if said == turns - 1:
            return says("at last")
        return uses(("note", {"text": f"thought {said}: {'x' * 300}"}), text=f"I think {said}: {'y' * 300}")

    return script


async def curve(app: Keptwork, hand: Hand, tmp_path: Path, turns: int, append: Any) -> list[int]:
    """How many bytes are stored after each quarter of the conversation."""
    settings = config(tmp_path, note={"command": ["true"], "args": None})
    limits, found = Limits(turns, turns, 600), list[int]()

    @app.job(name="talk", max_attempts=1)
    async def talk(ctx: Any) -> str:
        ask = kept_turns(ctx, Scripted(talkative(turns)), append=append)

        async def counted(request: Request, n: int) -> Answer:
            answer = await ask(request, n)
            if n % (turns // 4) == 0:
                found.append(sum([int((await hand.run(sql))[0][0]) for sql in SIZES.values()]))
            return answer

        return (await converse(ctx, question(), Toolbox(settings, ("note",)), limits, counted)).text

    job = await talk.enqueue()
    await app.work(until_idle=True)
    assert await job.result() == "at last"
    return found


def bend(sizes: Sequence[int]) -> float:
    """How much more the last quarter takes than the first: 1 for a line, 7 for a square."""
    return (sizes[3] - sizes[2]) / sizes[0]


@pytest.fixture
async def hand(database_url: str) -> AsyncIterator[Hand]:
    """Plain SQL on the database."""
    opened = await hand_on(database_url)
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred programs would take their time; here it is about what is kept of them."""

    async def ran(ctx: Any, spec: Any) -> Outcome:
        return Outcome({"stdout": f"{json.loads(spec.stdin)['text'][:40]} {'z' * 300}", "exit_code": 0})

    monkeypatch.setattr("keptwork.agents.tool_loop.one_run", ran)


async def check(app: Keptwork, hand: Hand, tmp_path: Path, turns: int) -> None:
    sizes = await curve(app, hand, tmp_path, turns, transcripts.append)
    quarters = [turns // 4 * quarter for quarter in (1, 2, 3, 4)]
    print(f"\nbytes stored after {quarters} turns: {sizes}; the last quarter takes {bend(sizes):.2f} of the first")
    assert bend(sizes) < 1.3
    store = await app.open()
    (job,) = await store.jobs(limit=10, columns=("id",))
    said = await transcripts.transcript(store, 1, job["id"])
    assert [one.line.position for one in said] == list(range(2 * turns + 1))
    assert len({one.line.hash for one in said}) == len(said)


async def test_a_long_conversation_takes_room_in_a_straight_line(app: Keptwork, hand: Hand, tmp_path: Path) -> None:
    await check(app, hand, tmp_path, FEW)


@pytest.mark.chaos
async def test_two_hundred_turns_take_room_in_a_straight_line(app: Keptwork, hand: Hand, tmp_path: Path) -> None:
    await check(app, hand, tmp_path, MANY)


async def test_the_check_above_catches_a_transcript_of_whole_requests(sqlite_url: str, tmp_path: Path) -> None:
    async def whole(tx: Transaction, job: Job, request: Request, answer: Answer, round: int) -> None:
        text = json.dumps([document(message) for message in (*request.messages, answer.message)])
        await tx.say(job, [NewLine(round, len(request.messages), Blob.of(text.encode()))])

    async with Keptwork(sqlite_url) as app:
        hand = await hand_on(sqlite_url)
        assert bend(await curve(app, hand, tmp_path, FEW, whole)) > 5
        await hand.close()
