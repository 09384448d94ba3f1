"""A database with jobs in every situation an operator meets, and the commands on it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.store import NewJob, Store, open_store
from tests.conformance.stage import claim, moved, worker
from tests.support.command import run


async def _fill(store: Store) -> dict[str, str]:
    owner = await worker(store)
    names = ("running", "failed", "dead", "dead too")
    keys = dict(zip(names, await store.enqueue([NewJob(name.split()[0], queue="work") for name in names]), strict=True))
    await claim(store, owner, 10, "work", start=True)
    broken: dict[str, Any] = {"by": "holder", "values": {"error": "ValueError: broken"}}
    await moved(store, JOB, keys["failed"], "fail", reason="ValueError: broken", **broken)
    detail = json.dumps({"stage": "input"})
    for name in ("dead", "dead too"):
        how = {"reason": "validation_failed", "reason_code": "validation_failed", "detail": detail}
        await moved(store, JOB, keys[name], "dead_letter", **how, **broken)
    (keys["waiting"],) = await store.enqueue([NewJob("waiting", '{"to":"ann"}', correlation_id="c-1")])
    return {name: public_id("job", key) for name, key in keys.items()}


def fill(url: str) -> dict[str, str]:
    """Jobs by what they are: waiting, running, failed, dead, dead too."""

    async def opened() -> dict[str, str]:
        store = await open_store(url)
        try:
            return await _fill(store)
        finally:
            await store.close()

    return asyncio.run(opened())


def answer(url: str, *arguments: str, code: int = 0) -> Any:
    """What a command says as JSON."""
    done = run(*arguments, "--json", "--db", url)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def said(url: str, *arguments: str, columns: int = 200) -> str:
    """What a command says to people; no line is too long for their terminal, and no id is cut."""
    done = run(*arguments, "--db", url, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= columns for line in done.stdout.splitlines())
    assert "…" not in done.stdout
    return done.stdout
