"""A storm of faults through both real SDKs: every call ends, none is made twice, and the books of both sides agree."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from keptwork.agents.budget_rules import ceiling_micros, cost_micros
from keptwork.agents.conversation import AgentFailure, Answer, Request
from keptwork.agents.providers.sdk import SdkProvider
from keptwork.outcomes import PermanentError
from keptwork.settings import Config
from tests.provider.conftest import Connect
from tests.support.llm_server import Act, BadJson, Cut, Drip, Hang, Large, LlmServer, Lose, Say, Status, use

pytestmark = pytest.mark.acceptance

PLAIN = Config.model_validate({})
ACTS: list[Act] = [
    Status(429, "1"),
    Status(529),
    Status(500),
    Status(400),
    Lose(),
    Cut(),
    Cut(clean=True),
    BadJson(),
    Say(""),
    Say("x", stop="length"),
    use("ruff", "{"),
    use("ruff", {}),
]
SLOW: list[Act] = [Large(), Hang(), Hang(begun=True), Drip(every=0.1)]


LONG = pytest.param(1_000, [*ACTS, *SLOW], 5, marks=[pytest.mark.chaos, pytest.mark.timeout(600)])


@pytest.mark.parametrize(("calls", "acts", "seconds"), [(40, ACTS, 60), LONG])
async def test_in_a_storm_every_call_ends_once_and_costs_what_was_billed(
    connect: Connect, asked: Request, calls: int, acts: list[Act], seconds: float
) -> None:
    chance, began = random.Random(calls), time.monotonic()
    planned = [
        chance.choice(acts) if chance.random() < 0.7 else Say("y" * chance.randint(1, 500)) for _ in range(calls)
    ]
    with LlmServer(planned) as server:
        provider, slots = connect(server.url, total=seconds), asyncio.Semaphore(16)

        async def one() -> str | tuple[int, bool]:
            async with slots:
                return await _outcome(provider, asked)

        outcomes = await asyncio.gather(*(one() for _ in range(calls)))
    assert len(server.calls) == calls
    costs = [outcome[0] for outcome in outcomes if not isinstance(outcome, str)]
    told = [cost_micros(provider.name, bill.model, bill.usage, PLAIN) for bill in server.bills if bill.told]
    assert sorted(costs) == sorted(told)
    assert max(costs) <= ceiling_micros(provider.name, asked.model, asked, PLAIN)
    kinds = Counter(outcome if isinstance(outcome, str) else "answered or paid" for outcome in outcomes)
    print(
        f"\n{provider.name}: {calls} calls in {time.monotonic() - began:.1f} s, {sum(costs)} micro-USD: {dict(kinds)}"
    )


async def _outcome(provider: SdkProvider, asked: Request) -> str | tuple[int, bool]:
    """What a call cost, and whether there is an answer; or in a word how it failed without a price."""
    answer: Answer | None = None
    try:
        answer = await provider.answer(asked)
        usage = answer.usage
    except AgentFailure as failure:
        if failure.usage is None:
            return "untold" if failure.sent else "unpaid"
        usage = failure.usage
    except PermanentError:
        return "refused"
    return cost_micros(provider.name, asked.model, usage, PLAIN), answer is not None
