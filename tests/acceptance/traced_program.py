"""An application whose one job goes everywhere a trace can go: steps, threads, a flow's tool, a model."""

from __future__ import annotations

import logging
import sys
from typing import Any

from keptwork import Keptwork

app = Keptwork()
log = logging.getLogger("shop")
log.setLevel(logging.INFO)

WRITE = "import os, sys; open(sys.argv[1], 'w').write(os.environ['TRACEPARENT'])"


def blocking(word: str) -> str:
    log.info("in a thread")
    return word


@app.job(name="tour")
async def tour(ctx: Any, secret: str, file: str) -> dict[str, Any]:
    log.info("begun")
    await ctx.step("thread", blocking, "done")
    flow = await ctx.step("flow", start_flow, file)
    agent = await ctx.step("agent", ask, secret)
    return {"traceparent": ctx.traceparent, "flow": flow, "agent": agent}


async def start_flow(file: str) -> str:
    steps = [{"id": "env", "command": [sys.executable, "-c", WRITE, file]}]
    return (await app.start_flow({"name": "look", "kind": "workstream", "steps": steps})).id


async def ask(secret: str) -> str:
    return (await app.agent(f"Say {secret}", tier="haiku")).job_id


@app.job(name="broken", max_attempts=1)
def broken(ctx: Any, secret: str) -> None:
    log.warning("about to break")
    raise RuntimeError(f"it broke with {secret}")


@app.job(name="apart", isolation="process")
def apart(ctx: Any) -> str | None:
    log.warning("in a process")
    traceparent: str | None = ctx.traceparent
    return traceparent
