"""Handlers for processes of their own that hold a sleep under the tools of asyncio, beside a step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from keptwork.context import Context


async def pay(log: str) -> str:
    _note(log, "begins")
    await asyncio.sleep(0.01)
    _note(log, "done")
    return "paid"


def _note(log: str, what: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{what}\n")


async def under_tool(ctx: Context, tool: str, log: str) -> Any:
    return await TOOLS[tool](lambda: ctx.step("pay", pay, log), lambda: ctx.sleep("100ms"))


async def gather(step: Any, wait: Any) -> Any:
    return (await asyncio.gather(step(), wait(), return_exceptions=True))[0]


async def task_group(step: Any, wait: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        paid = group.create_task(step())
        group.create_task(wait())
    return paid.result()


async def wait_for_all(step: Any, wait: Any) -> Any:
    paid = asyncio.ensure_future(step())
    await asyncio.wait({paid, asyncio.ensure_future(wait())})
    return paid.result()


async def shield(step: Any, wait: Any) -> Any:
    await asyncio.shield(wait())
    return await step()


async def as_completed(step: Any, wait: Any) -> Any:
    return next(one for one in [await one for one in asyncio.as_completed([step(), wait()])] if one is not None)


async def wait_for(step: Any, wait: Any) -> Any:
    return await asyncio.gather(step(), asyncio.wait_for(wait(), 60))


async def timeout(step: Any, wait: Any) -> Any:
    await step()
    async with asyncio.timeout(60):
        return await wait()


async def returned_beside(step: Any, wait: Any) -> Any:
    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    return "without having waited" if not waiting.done() else None


TOOLS = {
    tool.__name__: tool
    for tool in (gather, task_group, wait_for_all, shield, as_completed, wait_for, timeout, returned_beside)
}
