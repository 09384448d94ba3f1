"""`keptwork approvals` and `keptwork jobs signal` as their users run them: one story over one database."""

from __future__ import annotations

import asyncio
from typing import Any

from keptwork import Keptwork
from keptwork.context import Context
from tests.cli.queue_scene import answer, said
from tests.support.command import run


async def worked(url: str) -> list[str]:
    """Works until nothing is due, and tells how the jobs stand."""
    async with Keptwork(url) as app:

        @app.job()
        async def ship(ctx: Context, version: str) -> Any:
            approved = await ctx.wait_for_approval(f"Ship {version}?", by="ops", expires="24h", details={"v": version})
            paid = await ctx.wait_for_event("paid")
            return [approved.by, approved.comment, paid]

        if not await (await app.open()).jobs():
            for version in ("1.1", "1.2"):
                await ship.enqueue(version=version)
        await app.work(until_idle=True)
        return [row["result"] or row["state"] for row in await (await app.open()).jobs(newest_first=False)]


def test_questions_are_listed_shown_and_decided_and_events_are_sent(sqlite_url: str) -> None:
    assert asyncio.run(worked(sqlite_url)) == ["queued", "queued"]
    second, first = answer(sqlite_url, "approvals", "list")["approvals"]
    assert (first["question"], first["scope"], first["state"]) == ("Ship 1.1?", "ops", "open")
    for columns in (80, 200):
        assert "Ship 1.2?" in said(sqlite_url, "approvals", "list", columns=columns)
    shown = said(sqlite_url, "approvals", "show", first["id"])
    assert all(words in shown for words in ("Ship 1.1?", '{"v":"1.1"}', first["job_id"], "expires in 24 h", "sha256:"))

    given = answer(sqlite_url, "approvals", "approve", first["id"], "--by", "ann", "--reason", "fine")
    assert (given["state"], given["decided_by"], given["comment"]) == ("approved", "ann", "fine")
    assert said(sqlite_url, "approvals", "approve", first["id"]) == f"{first['id']} is approved, by ann.\n"
    refused = run("approvals", "reject", first["id"], "--db", sqlite_url)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"keptwork: {first['id']} was approved by ann before, and stays so\n",
    )
    assert said(sqlite_url, "approvals", "reject", second["id"], "--by", "bob").endswith("is rejected, by bob.\n")
    assert said(sqlite_url, "approvals", "list") == "Nothing waits for a decision.\n"
    assert len(answer(sqlite_url, "approvals", "list", "--all")["approvals"]) == 2
    assert run("approvals", "show", "apr_1", "--db", sqlite_url).returncode == 1

    assert asyncio.run(worked(sqlite_url)) == ["queued", "failed"]
    signal = ("jobs", "signal", "paid", "--payload", '{"eur":5}', "--job", first["job_id"], "--key", "k")
    assert said(sqlite_url, *signal) == "paid was sent; 1 job goes on.\n"
    assert said(sqlite_url, *signal) == "paid was sent before under that key; nothing was sent.\n"
    assert run("jobs", "signal", "paid", "--payload", "{", "--db", sqlite_url).returncode == 2
    assert asyncio.run(worked(sqlite_url)) == ['["ann","fine",{"eur":5}]', "failed"]
