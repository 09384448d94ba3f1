"""Flows on Detent in one program, as `detent run` has them: whoever starts the flow works, too."""

import asyncio
import threading

from bench.peers.detent.flows import DetentFlows, app, ended
from bench.peers.protocol import speak


class DetentEmbedded(DetentFlows):
    def work(self) -> None:  # type: ignore[override]  # there is no other process
        threading.Event().wait()

    async def carried_out(self, steps: list[dict[str, object]]) -> float:
        async with app:
            working = asyncio.create_task(app.work())
            try:
                return await ended(steps)
            finally:
                app.stop()
                await working


if __name__ == "__main__":
    speak(DetentEmbedded())
