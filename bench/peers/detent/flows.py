"""Flows on Detent: every move and result durable, one worker process with its defaults."""

import asyncio
import signal
import time
from typing import ClassVar

from bench.flows.protocol import FlowProgram
from bench.peers.protocol import TARGET, speak
from detent import Detent
from detent.flow.definition import Flow
from detent.service import flows

LOOK_SECONDS = 0.002

app = Detent(TARGET)


class DetentFlows(FlowProgram):
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
        return await ended([self.step(place) for place in range(steps)])

    async def chain(self, steps: int) -> float:
        return await ended(
            [{**self.step(place), **({"depends_on": [f"s{place - 1}"]} if place else {})} for place in range(steps)]
        )

    def step(self, place: int) -> dict[str, object]:
        return {"id": f"s{place}", "call": "bench.flows.protocol:awaited", "with": {"number": place}, **self.how}

    async def kept(self) -> int:
        async with app, app.transaction() as transaction:
            (row,) = await transaction.fetch("SELECT count(*) AS kept FROM steps WHERE output IS NOT NULL")
            return int(row["kept"])


async def ended(steps: list[dict[str, object]]) -> float:
    async with app:
        store, began = await app.open(), time.perf_counter()
        ref = await flows.start(store, Flow.model_validate({"name": "bench", "steps": steps}))
        while True:
            (row,) = await store.rows(ref.kind.flow, [ref.id], ("completed_at", "state"))
            if row["completed_at"] is not None:
                assert row["state"] == "S_SUCCESS", row["state"]
                return time.perf_counter() - began
            await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    speak(DetentFlows())
