"""Costs: what was spent, by what and since when, and the budgets."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from keptwork.agents import budget_caps
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.money import day_name, day_of
from keptwork.store import NewJob, Store
from keptwork.store.contract.budgets import Closing, NewBudget, NewCharge
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running
from tests.http.test_budgets import held, spent


def test_what_was_spent_is_added_up_by_model_flow_or_day_with_a_bar_for_each(running: Running, site: httpx.Client):
    spent(running, 1_500_000, "opus")
    spent(running, 500_000, "<script>alert(1)</script>")
    spent(running, 77_000_000, "theirs-alone", THEIRS)
    page = site.get("/ui/costs").text
    assert "<b>$2.00</b> spent" in page
    assert page.index("anthropic/opus") < page.index("anthropic/&lt;script&gt;")
    assert '<progress max="1" value="1.0" aria-label="$1.50 on anthropic/opus">' in page
    assert 'value="0.3333' in page
    assert "theirs-alone" not in page
    assert "<script>alert" not in page
    assert "no flow" in site.get("/ui/costs", params={"by": "flow", "since": "7d"}).text
    today = running.do(lambda store: _today(store))
    assert today in site.get("/ui/costs", params={"by": "day", "since": "30d"}).text.partition("Budgets")[0]
    for wrong in ({"by": "whim"}, {"since": "1y"}, {"scope": "week"}):
        assert site.get("/ui/costs", params=wrong).status_code == 422


async def _today(store: Store) -> str:
    return day_name(day_of(await store.now()))


def test_only_the_most_costly_are_shown_of_very_many(running: Running, site: httpx.Client):
    async def spend(store: Store) -> None:
        day = day_of(await store.now())
        (job,) = await store.enqueue([NewJob("kind", "{}", "q", running.ours)])
        await store.make_budgets([NewBudget(running.ours, job, "job", public_id(JOB.name, job), None, 80, "config")])
        for n in range(101):
            new = NewCharge(running.ours, job, None, f"turn {n}", "p", f"m{n:03}", 1_000, day)
            await store.close_charge(await store.open_charge(new), Closing("settled", 1_000 + n, "answered", 1, 1))

    running.do(spend)
    page = site.get("/ui/costs").text
    assert ("p/m100" in page, "p/m001" in page, "p/m000" in page) == (True, True, False)
    assert "the first 100 of 101" in page


def test_budgets_say_what_is_left_and_whether_they_warn_or_hold(running: Running, site: httpx.Client):
    nothing = site.get("/ui/costs").text
    assert "Nothing was spent" in nothing
    assert "There is no budget yet" in nothing
    job = spent(running, 900_000)
    running.do(lambda store: budget_caps.set_cap(store, running.ours, "tenant", 900_000, actor="ops"))
    held(running, 3)
    page = site.get("/ui/costs").text
    assert "holds 3 jobs" in page
    assert "keptwork budgets set tenant USD" in page
    assert f'href="/ui/jobs/{job}"' in page
    assert "warns at 80 %" in page
    days = site.get("/ui/costs", params={"scope": "day"}).text
    assert ("holds 3 jobs" in days, job in days) == (False, False)


def test_budgets_go_on_at_another_page_and_the_choices_stay(running: Running, site: httpx.Client):
    jobs = [spent(running, 10) for _ in range(50)]
    first = site.get("/ui/costs", params={"by": "day", "since": "7d"}).text
    assert (jobs[-1] in first, jobs[0] in first) == (True, False)
    address = next_page(first)
    assert "by=day" in address
    assert "since=7d" in address
    assert jobs[0] in site.get(address).text


def test_a_reader_sees_costs_and_another_tenant_has_its_own(running: Running, signed_in: SignedIn):
    job = spent(running, 900_000)
    assert "$0.90" in signed_in(READER).get("/ui/costs").text
    theirs = signed_in(THEIRS).get("/ui/costs").text
    assert ("$0.90" in theirs, job in theirs) == (False, False)


def test_in_a_browser_what_is_spent_meanwhile_is_added(looked_at: Running, opens: Opens):
    spent(looked_at, 1_000_000)
    page = opens("/ui/costs?since=30d")
    page.evaluate("window.same = true")
    expect(page.locator(".figure").first).to_contain_text("$1.00")
    spent(looked_at, 500_000, "opus")
    expect(page.locator(".figure").first).to_contain_text("$1.50")
    assert page.evaluate("window.same") is True
    page.get_by_role("link", name="flow", exact=True).first.click()
    expect(page.get_by_role("cell", name="no flow")).to_be_visible()
    assert "since=30d" in page.url
