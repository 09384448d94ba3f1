"""A process that has a tool run, to be killed: python -m tests.process.tool_owner PROGRAM MARK BEGUN [QUIET]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from keptwork.process.tool import Output, Tools
from tests.process.tool_stage import GRACE, runaway


async def main(program: str, mark: str, begun: str, *quiet: str) -> None:
    await Tools(program, GRACE).run(runaway(mark, Path(begun), *quiet), Output())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
