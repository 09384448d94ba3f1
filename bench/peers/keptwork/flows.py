"""Flows on Keptwork: every move and result durable, one worker process with its defaults."""

import asyncio
import signal
import time
from typing import ClassVar

from bench.flows.protocol import WARM, FlowProgram
from bench.peers.protocol import TARGET, speak
from keptwork import Keptwork
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow

LOOK_SECONDS = 0.002

app = Keptwork(TARGET)


class KeptworkFlows(FlowProgram):
    how: ClassVar[dict[str, object]] = {}
    """What each step says of itself."""

    async def setup(self) -> None:
        async with app:
            pass

    async def work(self) -> None:
        async with app:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
            await app.work()

    async def wide(self, steps: int) -> float:
        return await warmed_up(self.side_by_side(WARM), self.side_by_side(steps))

    async def chain(self, steps: int) -> float:
        return await warmed_up(self.one_by_one(WARM), self.one_by_one(steps))

    def side_by_side(self, steps: int) -> list[dict[str, object]]:
        return [self.step(place) for place in range(steps)]

    def one_by_one(self, steps: int) -> list[dict[str, object]]:
        first, *others = self.side_by_side(steps)
        return [first, *({**step, "depends_on": [f"s{place}"]} for place, step in enumerate(others))]

    def step(self, place: int) -> dict[str, object]:
        return {"id": f"s{place}", "call": "bench.flows.protocol:awaited", "with": {"number": place}, **self.how}

    async def kept(self) -> int:
        async with app, app.transaction() as transaction:
            (row,) = await transaction.fetch("SELECT count(*) AS kept FROM steps WHERE output IS NOT NULL")
            return int(row["kept"])


async def warmed_up(few: list[dict[str, object]], steps: list[dict[str, object]]) -> float:
    async with app:
        await ended(few)
        return await ended(steps)


async def ended(steps: list[dict[str, object]]) -> float:
    store, began = await app.open(), time.perf_counter()
    ref = await flows.start(store, Flow.model_validate({"name": "bench", "steps": steps}))
    while True:
        (row,) = await store.rows(ref.kind.flow, [ref.id], ("completed_at", "state"))
        if row["completed_at"] is not None:
            assert row["state"] == "S_SUCCESS", row["state"]
            return time.perf_counter() - began
        await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    speak(KeptworkFlows())
