"""The doctor beside workers at their work: what is under way is never found to be wrong, and nothing is mended."""

from __future__ import annotations

import asyncio

from keptwork import Keptwork
from keptwork.core.lifecycles import WORKSTREAM
from keptwork.diagnostics.doctor import runner
from keptwork.flows import commands as flows
from keptwork.store import open_store
from tests.service.flow_driver import flow, step

INNER = flow(step("x"), step("y", "x"), name="inner")
OUTER = flow(
    step("a"),
    step("each", "a", for_each={"items": list(range(6)), "limit": 2}),
    step("sub", "a", flow="inner"),
    step("skipped", "a", when="1 == 2"),
    step("last", "each", "sub", "skipped"),
)


async def test_nothing_is_found_and_nothing_mended_while_workers_carry_flows_out(database_url: str) -> None:
    app = Keptwork(database_url)
    store = await app.open()
    looking = await open_store(database_url)
    looks = 0
    while (
        looks < 3
    ):  # a quick machine may end ten flows within one look, so more are started until it has looked enough
        for _ in range(10):
            await flows.start(store, OUTER, library={"inner": INNER})
        work = asyncio.create_task(app.work(until_idle=True))
        while not work.done():
            outcome = await runner.treat(looking)
            assert (outcome.found, outcome.repairs) == ([], [])
            looks += 1
        await work
    assert {row["state"] for row in await store.flows(WORKSTREAM)} == {"S_SUCCESS"}
    await looking.close()
    await app.close()
