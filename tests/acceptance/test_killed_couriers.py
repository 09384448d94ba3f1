"""Workers killed with -9 while they deliver: another delivers it, under the same name."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from keptwork.store import open_store
from keptwork.store.contract.outbox import Delivery, NewDelivery
from keptwork.webhooks.outbox import name_of
from tests.acceptance.chaos import until
from tests.support.command import environment
from tests.support.hook_server import HANG, SECRET, HookServer, Reply, hook_server

PROGRAM = "tests.acceptance.courier_program"
LEASE = 1.0


def start(url: str) -> subprocess.Popen[bytes]:
    allowed = {"KEPTWORK_WEBHOOK_ALLOW": "127.0.0.1", "KEPTWORK_WEBHOOK_SECRET": SECRET}
    command = [sys.executable, "-m", PROGRAM, url, str(LEASE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(**allowed))


async def told(url: str, hooks: HookServer, number: int) -> list[str]:
    store = await open_store(url)
    for flow in range(1, number + 1):
        body = json.dumps({"n": flow})
        await store.put_delivery(NewDelivery(1, "run", flow, 2, "run.succeeded", hooks.url(), body))
    await store.close()
    return [name_of("run", flow, 2) for flow in range(1, number + 1)]


async def left(url: str) -> list[Delivery]:
    store = await open_store(url)
    try:
        return await store.deliveries(1, limit=1000)
    finally:
        await store.close()


def killed_over_each(url: str, hooks: HookServer, deaths: int, messages: int) -> list[str]:
    """Kills whoever delivers, that often, once it has sent something and waits for an answer."""
    names = asyncio.run(told(url, hooks, messages))
    with ExitStack() as stack:
        for death in range(deaths):
            seen = len(hooks.got)
            victim = stack.enter_context(start(url))
            assert until(lambda seen=seen: len(hooks.got) > seen, 30)  # type: ignore[misc]
            victim.kill()
            victim.wait()
            print(f"death {death + 1}: {len(hooks.got)} requests so far")
        hooks.answers = lambda number: Reply(204)
        with start(url) as survivor:
            assert until(lambda: all(one.state == "delivered" for one in asyncio.run(left(url))), 30)
            assert survivor.stdin is not None
            survivor.stdin.close()
            assert survivor.wait(30) == 0
    return names


def check(url: str, deaths: int, messages: int) -> None:
    with hook_server(lambda number: Reply(HANG)) as hooks:
        names = killed_over_each(url, hooks, deaths, messages)
    assert {got.name for got in hooks.got} == set(names)
    assert len({(got.name, got.body) for got in hooks.got}) == messages
    assert all(got.signed_with(SECRET) for got in hooks.got)
    delivered = asyncio.run(left(url))
    assert sum(one.attempts for one in delivered) >= len(hooks.got) > messages
    print(f"{deaths} couriers killed over {messages} messages: {len(hooks.got)} requests, each message delivered")


def test_what_a_killed_worker_was_delivering_is_delivered_by_another(database_url: str) -> None:
    check(database_url, deaths=1, messages=3)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_twenty_killed_couriers_lose_nothing(database_url: str) -> None:
    check(database_url, deaths=20, messages=100)
