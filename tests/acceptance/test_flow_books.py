"""Random flows with failures, kills, interrupts and resumes: every sum that is shown is that of the ledger, which is
the model server's but for named lost calls; no finished step runs again; no reservation outlives its job."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from keptwork.access.scopes import Scope
from keptwork.core.ids import resolve
from keptwork.http.auth import Caller
from keptwork.settings import read
from keptwork.store import open_store
from tests.acceptance.flow_books import PRICES, Books, Crowd, Model, Outcome, books, shown_otherwise, unequal
from tests.http.conftest import OURS, Keys, serving
from tests.support.llm_server import LlmServer

AT_ONCE = 4


async def looked_into(url: str) -> tuple[dict[str, Books], list[str]]:
    store = await open_store(url)
    try:
        return await books(store)
    finally:
        await store.close()


def carried_out(url: str, folder: Path, model: Model, numbers: range) -> tuple[list[Outcome], list[str]]:
    """What came of the flows, and which commands hung."""
    crowd = Crowd(url, folder, model)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(crowd.carried_out, numbers)), crowd.hung
    finally:
        crowd.close()


def compared(url: str, outcomes: list[Outcome], found: dict[str, Books]) -> list[str]:
    """What pages and commands show otherwise than the ledger has it."""
    wrong: list[str] = []
    with serving(url, Keys({OURS: Caller(1, frozenset(Scope), "key:k1")})) as running, running.client() as site:
        site.headers["Origin"] = running.address
        assert site.post("/ui/session").status_code == 204
        for outcome in outcomes:
            spent = dict.fromkeys(outcome.ids, 0)
            for charge in found[outcome.name].charges:
                (id,) = [id for id in outcome.ids if resolve(id).key == charge.tree_id] or [""]
                spent[id] = spent.get(id, 0) + charge.cost_micros
            wrong += shown_otherwise(outcome, {id: cost for id, cost in spent.items() if id}, site)
    return wrong


def check(url: str, folder: Path, numbers: range) -> None:
    began, model = time.monotonic(), Model()
    with LlmServer(model.act) as server:
        (folder / "keptwork.toml").write_text(server.settings("openai", more=PRICES))
        config = read(folder / "keptwork.toml")
        outcomes, hung = carried_out(url, folder, model, numbers)
        found, wrong = asyncio.run(looked_into(url))
        wrong += hung
        wrong += [line for name, one in found.items() for line in unequal(name, one, server, model, config)]
        wrong += compared(url, outcomes, found)
    charges = [charge for one in found.values() for charge in one.charges]
    lost = [charge for charge in charges if charge.state == "lost"]
    strikes = sum((outcome.strikes for outcome in outcomes), Counter[str]())
    ends = Counter(outcome.ended for outcome in outcomes)
    latest = max((late for one in found.values() for late in one.late), default=0)
    print(
        f"\n{urlsplit(url).scheme}: {len(outcomes)} flows ({dict(ends)}) in {strikes.total()} rounds {dict(strikes)}; "
        f"{len(server.calls)} requests, {len(server.bills)} billed; the ledger has {len(charges)} calls, "
        f"{sum(charge.cost_micros for charge in charges)} micro-USD, {len(lost)} of them lost with "
        f"{sum(charge.cost_micros for charge in lost)}, the latest closed {latest} us after its job; "
        f"{time.monotonic() - began:.0f} s"
    )
    assert not wrong, wrong
    assert set(ends) <= {"succeeded", "cancelled"}, ends


@pytest.mark.timeout(1_200)
def test_books_of_random_flows_agree_whatever_interrupts_them(database_url: str, tmp_path: Path) -> None:
    check(database_url, tmp_path, range(4))


@pytest.mark.chaos
@pytest.mark.timeout(14_400)
def test_books_of_1000_random_flows_agree_whatever_interrupts_them(database_url: str, tmp_path: Path) -> None:
    check(database_url, tmp_path, range(1_000))
