"""What the tests of cages do again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keptwork.process.pool import Cages, Ending, Longest
from keptwork.process.resource_limits import Limits

PROGRAM = "tests.process.programs"
TWIN = "tests.process.twin"
WEAK = "tests.process.weak"
LARGEST = 1 << 20


async def run(cages: Cages, deed: str, argument: Any = None, limits: Limits | None = None) -> Ending:
    request = json.dumps(argument).encode()
    return await cages.run(deed, limits or Limits(), request, Longest(LARGEST, 0), lambda _: None, _nothing_aside)


async def _nothing_aside(asked: bytes) -> Any:
    raise AssertionError(f"nobody should ask anything aside, but: {asked[:100]!r}")


async def answer(cages: Cages, deed: str, argument: Any = None) -> Any:
    ending = await run(cages, deed, argument)
    assert ending.answer is not None, ending
    return json.loads(ending.answer)


async def there(path: Path) -> int:
    """When something has written its process id to that file."""
    await until(path.exists)
    return int(path.read_text())  # noqa: ASYNC240 - a few bytes


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Looks until it holds; other processes ring no bell."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.005)
