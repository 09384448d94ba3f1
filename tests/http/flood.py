"""A client that asks as often as it is told, whatever it hears: `python -m tests.http.flood PORT KEY RATE SECONDS`.

It is a process of its own, so that it takes no time from whoever measures. It prints how often it got each status.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

CONNECTIONS = 10


async def ask(port: int, key: str, pause: float, ends: float, seen: Counter[int]) -> None:
    """One connection, a request each time it is due."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = f"GET /api/jobs?limit=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    due = time.monotonic()
    while time.monotonic() < ends:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.write(asked)
        top = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(top.partition(b"content-length: ")[2].split()[0]))
        seen[int(top.split()[1])] += 1
        due += pause
    writer.close()


async def main(port: int, key: str, rate: float, seconds: float) -> None:
    """All of them."""
    seen: Counter[int] = Counter()
    ends = time.monotonic() + seconds
    await asyncio.gather(*(ask(port, key, CONNECTIONS / rate, ends, seen) for _ in range(CONNECTIONS)))
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
