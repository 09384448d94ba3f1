"""The load: so many connections that each ask again as soon as they are answered. It is a process of its own, and talks
to sockets itself, so that it is never what is measured. Usage: python -m bench.http.load PORT, a request in JSON lines
on stdin. Prints how many requests there were, in how long, and every latency's place among them."""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import httptools


class Plan(NamedTuple):
    """What is asked, in turn, over how many connections and for how long; the beginning does not count."""

    requests: list[str]
    connections: int
    seconds: float
    warm_up: float


class Asker(asyncio.Protocol):
    """One connection. An answer that is no success ends all of it."""

    def __init__(
        self, requests: Iterator[bytes], latencies: list[tuple[float, float]], ended: asyncio.Future[None]
    ) -> None:
        self._requests, self._latencies, self._ended = requests, latencies, ended
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if self._parser.get_status_code() >= 300:
            self._fail(f"answered {self._parser.get_status_code()}")
            return
        self._latencies.append((now, now - self._asked))
        self._parser = httptools.HttpResponseParser(self)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"cut off: {exc}")

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self.transport.write(next(self._requests))

    def _fail(self, what: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError(what))


async def load(port: int, plan: Plan) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    latencies: list[tuple[float, float]] = []
    requests = itertools.cycle([one.encode() for one in plan.requests])
    began = time.perf_counter()
    made = [
        await loop.create_connection(lambda: Asker(requests, latencies, ended), "127.0.0.1", port)
        for _ in range(plan.connections)
    ]
    done, _ = await asyncio.wait([ended], timeout=plan.warm_up + plan.seconds)
    for one in done:
        one.result()
    for transport, _ in made:
        transport.abort()
    ended.cancel()
    return figures(latencies, began + plan.warm_up, plan.seconds)


def figures(latencies: list[tuple[float, float]], since: float, seconds: float) -> dict[str, float]:
    """Of what was answered in the time that counts."""
    counted = sorted(took for at, took in latencies if since <= at < since + seconds)
    assert counted, "nothing was answered"
    return {
        "rate": len(counted) / seconds,
        "p50_ms": 1_000 * counted[len(counted) // 2],
        "p99_ms": 1_000 * counted[int(len(counted) * 0.99)],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(int(sys.argv[1]), Plan(*json.load(sys.stdin))))))
