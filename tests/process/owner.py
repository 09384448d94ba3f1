"""A process that has something run in a cage, to be killed: python -m tests.process.owner DEED ARGUMENT."""

from __future__ import annotations

import asyncio
import sys

from keptwork.process.pool import Cages
from keptwork.process.resource_limits import Limits
from tests.process.stage import PROGRAM, run


async def main(deed: str, argument: str) -> None:
    await run(Cages(PROGRAM, []), deed, argument, Limits())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
