"""A thousand open streams on one server: what it weighs, and how long an event takes to all of them.

They are held by a process of its own, which has the first word of an event from each and looks no further.
Usage: python -m bench.http.streams PORT TOKEN.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time

from bench.memory import Weight

STREAMS = 1_000
EVENTS = 5
MOST_MB, MOST_SECONDS = 200.0, 1.0
PATIENCE_SECONDS = 60.0


def measure() -> bool:
    """Prints the figures; whether they are within the bounds on both stores."""
    from bench.http.comparison import product

    within = []
    print(
        f"\n{STREAMS:,} streams on one server; the bounds are {MOST_MB:.0f} MB and {MOST_SECONDS:.0f} s to all of them"
    )
    for store in ("sqlite", "postgres"):
        with product(store) as server:
            before = Weight.of(server.pid).now
            command = [sys.executable, "-m", "bench.http.streams", str(server.port), server.token]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            told, weight = json.loads(done.stdout), Weight.of(server.pid)
        within.append(weight.most <= MOST_MB and told["max_ms"] <= 1_000 * MOST_SECONDS)
        print(
            f"  {store:<9}{weight.most:6.0f} MB ({before:.0f} without them) · an event is with half of them after "
            f"{told['p50_ms']:.0f} ms, with all after {told['max_ms']:.0f} ms · {'met' if within[-1] else 'NOT met'}"
        )
    return all(within)


class Stream(asyncio.Protocol):
    """One stream; says when it begins and whenever it is told something."""

    def __init__(self, ask: bytes, audience: "Audience") -> None:
        self._ask, self._audience = ask, audience

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._ask)

    def data_received(self, data: bytes) -> None:
        if b"\ndata: " in data:
            self._audience.told()
        elif b"retry: " in data:
            self._audience.begun()


class Audience:
    """All of them together."""

    def __init__(self) -> None:
        self.listening = 0
        self.at: list[float] = []
        self.all = asyncio.Event()

    def begun(self) -> None:
        self.listening += 1
        if self.listening == STREAMS:
            self.all.set()

    def told(self) -> None:
        self.at.append(time.perf_counter())
        if len(self.at) == STREAMS:
            self.all.set()

    async def heard(self) -> list[float]:
        """When each was told; they are all waited for."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.all.wait()
        self.all.clear()
        at, self.at = self.at, []
        return at


async def main(port: int, token: str) -> None:
    loop, audience, head = asyncio.get_running_loop(), Audience(), f"Host: x\r\nAuthorization: Bearer {token}\r\n"
    ask = f"GET /api/events/stream HTTP/1.1\r\n{head}\r\n".encode()
    held = [await loop.create_connection(lambda: Stream(ask, audience), "127.0.0.1", port) for _ in range(STREAMS)]
    await audience.heard()
    took = [await _told(port, head, audience) for _ in range(EVENTS)]
    for transport, _ in held:
        transport.abort()
    middle = sorted(one for each in took for one in each)
    print(json.dumps({"p50_ms": 1_000 * middle[len(middle) // 2], "max_ms": 1_000 * middle[-1]}))


async def _told(port: int, head: str, audience: Audience) -> list[float]:
    """How long after a job was sent in each stream is told of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"kind": "fetch"})
    more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    began = time.perf_counter()
    writer.write(f"POST /api/jobs HTTP/1.1\r\n{head}{more}".encode())
    at = await audience.heard()
    assert (await reader.readline()).split()[1] == b"201"
    writer.close()
    return [one - began for one in at]


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4 * STREAMS, hard)), hard))
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
