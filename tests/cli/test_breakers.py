"""`keptwork breakers` as its users run it: one story over one database."""

from __future__ import annotations

import asyncio

from keptwork import Breaker, Keptwork
from tests.cli.queue_scene import answer, said
from tests.support.command import run


def open_breaker(url: str) -> str:
    """Two jobs that fail, and one more that is held because of it."""

    async def fail() -> str:
        app = Keptwork(url)

        @app.job(breaker=Breaker("payments-api", failure_threshold=2, cooldown="1h"), max_attempts=1)
        async def pay(ctx: object) -> None:
            raise ConnectionError("refused")

        async with app:
            await app.enqueue_many(pay, [{}] * 2)
            await app.work(until_idle=True, concurrency=1)
            held = await pay.enqueue()
            await app.work(until_idle=True)
            return held.id

    return asyncio.run(fail())


def test_breakers_are_listed_shown_and_reset(sqlite_url):
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "breakers", "list") == "No breakers: no job that has one was ever run.\n"
    job = open_breaker(sqlite_url)
    (breaker,) = answer(sqlite_url, "breakers", "list")["breakers"]
    assert (breaker["name"], breaker["state"], breaker["status"], breaker["held"]) == (
        "payments-api",
        "OPEN",
        "OPEN",
        1,
    )
    assert (breaker["failures"], breaker["error"]) == (2, "ConnectionError: refused")
    told = said(sqlite_url, "breakers", "list")
    assert "2 of 2" in told
    assert "opens a probe in 60 min" in told
    shown = said(sqlite_url, "breakers", "show", "payments-api")
    assert all(words in shown for words in ("breaker_trip", "ConnectionError: refused", "it opens at 2"))
    assert [event["trigger"] for event in answer(sqlite_url, "breakers", "show", "payments-api")["events"]] == [
        "create",
        "trip",
    ]

    why = run("why", job, "--db", sqlite_url).stdout
    assert "is queued: the breaker payments-api is OPEN, open since" in why
    assert ": ConnectionError: refused; it cools down before a job may try" in why
    assert "that clears in 60 min" in why
    assert "keptwork breakers reset payments-api --reason TEXT" in why

    reset = ("breakers", "reset", "payments-api", "--reason", "they fixed it")
    assert said(sqlite_url, *reset) == "payments-api is CLOSED; 1 held job is let go.\n"
    again = run(*reset, "--db", sqlite_url)
    assert again.returncode == 1
    assert "reset" in again.stderr
    assert answer(sqlite_url, "breakers", "list")["breakers"][0]["state"] == "CLOSED"
    assert run("breakers", "reset", "payments-api", "--db", sqlite_url).returncode == 2
    missing = run("breakers", "show", "nothing", "--db", sqlite_url)
    assert (missing.returncode, missing.stderr) == (
        1,
        "keptwork: No breaker 'nothing'; list them with: keptwork breakers list\n",
    )


def test_breakers_are_among_the_figures(sqlite_url):
    open_breaker(sqlite_url)
    told = said(sqlite_url, "stats", "--prometheus")
    for sample in (
        'keptwork_breaker_state{tenant="default",breaker="payments-api",state="OPEN"} 1',
        'keptwork_breaker_state{tenant="default",breaker="payments-api",state="CLOSED"} 0',
        'keptwork_breaker_held_jobs{tenant="default",breaker="payments-api"} 1',
        'keptwork_breaker_trips_total{tenant="default",breaker="payments-api"} 1',
    ):
        assert sample in told.splitlines()
    assert answer(sqlite_url, "stats")["breakers"][0]["held"] == 1
