"""`keptwork budgets` and `keptwork cost` as their users run them: one story over one database."""

from __future__ import annotations

import asyncio

from keptwork.agents import budgets
from keptwork.agents.budgets import Refused
from keptwork.agents.conversation import Usage
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import RUN
from keptwork.core.money import Caps
from keptwork.store import NewJob, open_store
from tests.cli.queue_scene import answer, said
from tests.support.command import run


def spend(url: str) -> tuple[str, str]:
    """Three calls, one of them lost and one under way, and a job that is held because a fourth does not fit."""

    async def story() -> tuple[str, str]:
        store = await open_store(url)
        first, second = await store.enqueue([NewJob("think")] * 2)
        flow = await store.create(RUN, name="release-check")
        caps = Caps(tenant=20_000_000)

        async def call(name: str, model: str, ceiling: int, tree: int | None = None) -> int:
            which = {"tenant_id": 1, "job_id": first, "flow_tree": tree, "call": name, "provider": "anthropic"}
            made = await budgets.reserve(store, **which, model=model, ceiling_micros=ceiling, caps=caps)  # type: ignore[arg-type]
            assert isinstance(made, budgets.Reserved)
            return made.id

        paid = await call("turn 1", "opus", 15_000_000, flow)
        usage = Usage(1200, 300, 0, 50)
        await store.atomically(lambda tx: budgets.settle(tx, paid, cost_micros=12_400_000, usage=usage))
        await call("turn 2", "haiku", 12_300)
        await budgets.lost(store, first)
        await call("turn 3", "haiku", 7)
        refused = await budgets.reserve(
            store, tenant_id=1, job_id=second, flow_tree=None, call="turn 1", provider="anthropic", model="opus",
            ceiling_micros=9_000_000, caps=caps,
        )  # fmt: skip
        assert isinstance(refused, Refused)
        await store.enqueue([NewJob("think", held_by=refused.hold)])
        held = (await store.jobs(limit=1, columns=("id",)))[0]["id"]
        await store.close()
        return public_id("job", first), public_id("job", held)

    return asyncio.run(story())


def test_what_is_spent_is_shown_and_a_raise_lets_jobs_go(sqlite_url: str) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    assert said(sqlite_url, "budgets", "list") == "No budgets: no call to a model was ever paid for.\n"
    assert said(sqlite_url, "cost").startswith("Nothing was spent since")
    job, held = spend(sqlite_url)

    found = answer(sqlite_url, "budgets", "list")["budgets"]
    assert [one["scope"] for one in found] == ["tenant", "day", "flow", "job", "job"]
    assert (found[0]["spent_micros"], found[0]["reserved_micros"], found[0]["held"]) == (12_412_300, 7, 1)
    told = said(sqlite_url, "budgets", "list")
    assert all(words in told for words in ("$12.41", "$0.000007", "$20.00", "62 %"))
    only = answer(sqlite_url, "budgets", "list", "--scope", "flow")["budgets"]
    assert [one["spent_micros"] for one in only] == [12_400_000]

    shown = said(sqlite_url, "budgets", "show", job)
    assert all(words in shown for words in ("turn 1", "anthropic/opus", "settled", "lost", "open", "$15.00", "$0.0123"))
    assert len(answer(sqlite_url, "budgets", "show", "tenant")["calls"]) == 3

    why = run("why", held, "--db", sqlite_url).stdout
    assert "the tenant's budget has $12.41 of $20.00 spent and $0.000007 reserved" in why
    assert ", and the next call may cost $9.00" in why
    assert "try: keptwork budgets set tenant USD" in why

    raised = said(sqlite_url, "budgets", "set", "tenant", "25.50")
    assert raised == "The tenant's budget has a cap of $25.50, $12.41 of it spent; 1 held job is let go.\n"
    assert answer(sqlite_url, "budgets", "raise", "tenant", "0.50")["cap_micros"] == 26_000_000
    assert answer(sqlite_url, "budgets", "set", "today", "none")["cap_micros"] is None


def test_costs_are_added_up_and_drawn(sqlite_url: str) -> None:
    spend(sqlite_url)
    by_model = answer(sqlite_url, "cost")
    names = [(one["name"], one["cost_usd"], one["lost_calls"]) for one in by_model["costs"]]
    assert names == [("anthropic/opus", "12.400000", 0), ("anthropic/haiku", "0.012300", 1)]
    assert (by_model["total"]["cost_micros"], by_model["total"]["reserved_micros"]) == (12_412_300, 7)
    drawn = run("cost", "--db", sqlite_url, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS="200").stdout
    assert "\x1b[32m" not in drawn
    assert "\x1b[32m█" in run("cost", "--db", sqlite_url, FORCE_COLOR="1").stdout
    (opus,) = [line.split() for line in drawn.splitlines() if line.startswith("anthropic/opus")]
    assert opus == ["anthropic/opus", "1", "1,250", "300", "$12.40", "█" * 32]
    assert "$0.0123   ▒" in drawn
    assert "$12.41 in 3 calls since" in drawn
    assert "▒ 1 lost call is counted with $0.0123" in drawn
    assert "$0.000007 more is reserved by calls that are under way." in drawn
    by_flow = said(sqlite_url, "cost", "--by", "flow")
    assert "release-check (run_" in by_flow
    assert "no flow" in by_flow
    assert [one["name"] for one in answer(sqlite_url, "cost", "--by", "tenant")["costs"]] == ["default"]
    (day,) = answer(sqlite_url, "cost", "--by", "day", "--since", "1h")["costs"]
    assert len(day["name"]) == len("2026-11-16")


def test_what_cannot_be_is_refused_in_one_line(sqlite_url: str) -> None:
    assert run("migrate", "--db", sqlite_url).returncode == 0
    for words, told in (
        (("cost", "--by", "weather"), "costs are added up by model, tenant, flow, day"),
        (("budgets", "list", "--scope", "year"), "a budget is for a job, flow, tenant, day"),
        (("budgets", "set", "tenant", "lots"), "'lots' is no amount of dollars"),
    ):
        done = run(*words, "--db", sqlite_url)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert told in done.stderr
    assert "No budget 'nothing'" in run("budgets", "set", "nothing", "1", "--db", sqlite_url).stderr
    assert "No budget that was ever used 'today'" in run("budgets", "show", "today", "--db", sqlite_url).stderr
