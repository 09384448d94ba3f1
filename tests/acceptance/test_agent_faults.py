"""Agent jobs through the real SDKs against a server that fails: each ends, and costs what was billed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import genai_prices
import pytest

from keptwork import Keptwork
from keptwork.agents.budget_rules import cost_micros
from keptwork.agents.conversation import Answer, Request, Tell, Usage
from keptwork.settings import Config, read
from keptwork.store.contract.budgets import Charge
from tests.support.llm_server import Act, BadJson, Cut, Hang, Large, LlmServer, Lose, Say, Status

FAULTS: dict[str, Act] = {
    "429": Status(429, retry_after="0"),
    "529": Status(529),
    "500": Status(500),
    "hang": Hang(),
    "cut stream": Cut("half of it", after=2),
    "lost": Lose(),
    "bad JSON": BadJson(),
    "empty": Say(""),
    "10 MB": Large(10 << 20),
}


@asynccontextmanager
async def asking(server: LlmServer, folder: Path, url: str, provider: str) -> AsyncIterator[Keptwork]:
    file = folder / "keptwork.toml"
    file.write_text(server.settings(provider, 'timeout = "4s"'))
    async with Keptwork(url, config=str(file)) as app:
        yield app


async def ended(app: Keptwork, job: int) -> None:
    async with asyncio.timeout(60):
        while True:
            await app.work(until_idle=True)
            (row,) = await (await app.open()).agents_of_jobs([job])
            if row["completed_at"] is not None:
                return
            await asyncio.sleep(0.01)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_whatever_a_provider_does_once_the_job_ends_well_and_costs_what_was_billed(
    provider: str, database_url: str, tmp_path: Path
) -> None:
    script = [act for fault in FAULTS.values() for act in (fault, Say("fine"))]
    with LlmServer(script) as server:
        async with asking(server, tmp_path, database_url, provider) as app:
            for fault in FAULTS:
                agent = await app.agent(f"Fix it ({fault})", tier="haiku", retry_base="1ms")
                await ended(app, agent.job_key)
                kept = await agent.audit()
                assert (kept["status"], kept["retry_count"], kept["llm_response"]) == ("Completed", 1, "fine"), fault
            store = await app.open()
            charges = sorted(await store.charges(app.tenant_id, limit=1_000), key=lambda charge: charge.id)
            rows = await store.agents(app.tenant_id, limit=1_000)
    assert len(server.calls) == 2 * len(FAULTS) == len(charges)
    told = reconciled(charges, server, provider, read(tmp_path / "keptwork.toml"))
    assert told == sum(charge.cost_micros for charge in charges if charge.state == "settled") > 0
    shown = sum(row["cost_micros"] for row in rows)
    assert shown == sum(charge.cost_micros for charge in charges), "agent jobs show lost calls with their bounds"


def reconciled(charges: Sequence[Charge], server: LlmServer, provider: str, config: Config) -> int:
    """The two books, call by call: what the server told is what was paid, to the millionth; what it billed and could
    not tell any more is on record as lost, with at least as much; what it did not bill was not paid. Sums up the first.
    """
    bills, told = {bill.call: bill for bill in server.bills}, 0
    for call, charge in zip(server.calls, charges, strict=True):
        bill = bills.get(call.number)
        cost = 0 if bill is None else cost_micros(provider, bill.model, bill.usage, config)
        if bill is not None and bill.told:
            assert (charge.state, charge.cost_micros) == ("settled", cost), bill
            told += cost
        elif bill is not None or charge.state == "lost":  # one that hangs may have been billed, as far as we can know
            assert (charge.state, charge.cost_micros) == ("lost", charge.ceiling_micros), bill
            assert cost <= charge.cost_micros, bill
        else:
            assert (charge.state, charge.cost_micros) == ("released", 0), call
    return told


class Metered:
    """Answers with as many tokens as the task says."""

    name = "anthropic"

    async def answer(self, request: Request, tell: Tell | None = None) -> Answer:
        number = int(request.messages[0].text.split()[-1])
        return Answer("fine", request.model, Usage(1_000 + 7 * number, 200 + 3 * number))


async def test_a_hundred_jobs_over_the_tiers_add_up_to_what_the_price_table_says(database_url: str) -> None:
    tiers = ["haiku"] * 60 + ["sonnet"] * 30 + ["opus"] * 10
    async with Keptwork(database_url) as app:
        app.provider = Metered()
        jobs = [(await app.agent(f"Fix typo {n}", tier=tier)).job_key for n, tier in enumerate(tiers)]
        await app.work(until_idle=True)
        store = await app.open()
        rows = {row["job_id"]: row for row in await store.agents(app.tenant_id, limit=1_000)}
        spent = sum(charge.cost_micros for charge in await store.charges(app.tenant_id, limit=1_000))
    expected = [_by_table(rows[job]["model"], Usage(1_000 + 7 * n, 200 + 3 * n)) for n, job in enumerate(jobs)]
    assert [rows[job]["cost_micros"] for job in jobs] == expected
    assert spent == sum(expected)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


def _by_table(model: str, usage: Usage) -> int:
    """What genai-prices says itself, rounded up to a whole millionth."""
    counted = genai_prices.Usage(input_tokens=usage.input, output_tokens=usage.output)
    price = genai_prices.calc_price(counted, model_ref=model, provider_id="anthropic").total_price
    return int((Decimal(price) * 1_000_000).to_integral_value(ROUND_CEILING))
