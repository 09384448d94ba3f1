"""Whatever happens, a budget's sums are those of the ledger and of a model kept by hand, and no cap is passed."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keptwork.agents import budget_rules, budgets
from keptwork.agents.budgets import Reserved
from keptwork.core.money import Caps
from keptwork.store import Store, open_store
from keptwork.store.contract.budgets import Budget
from tests.service.spender import ask, released, settled

DEEDS = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 2), st.sampled_from((None, 0, 1)), st.integers(0, 60)),
    st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 100)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("lost"), st.integers(0, 2)),
    st.tuples(st.just("late"), st.integers(0, 9), st.integers(0, 100)),
    st.tuples(st.just("raise"), st.sampled_from(("job", "flow", "tenant", "day")), st.integers(0, 80)),
)


class Model:
    """What the books must say, kept by hand."""

    def __init__(self) -> None:
        self.caps = {"job": 90, "flow": 120, "tenant": 200, "day": 180}
        self.open: dict[int, tuple[int, list[tuple[str, int]]]] = {}
        self.lost: dict[int, tuple[int, list[tuple[str, int]]]] = {}
        self.spent: dict[tuple[str, int], int] = {}

    def whose(self, job: int, flow: int | None) -> list[tuple[str, int]]:
        return [("job", job), *([] if flow is None else [("flow", flow)]), ("tenant", 0), ("day", 0)]

    def reserved(self, who: tuple[str, int]) -> int:
        return sum(ceiling for ceiling, whose in self.open.values() if who in whose)

    def fits(self, job: int, flow: int | None, ceiling: int) -> bool:
        return all(
            self.spent.get(who, 0) + self.reserved(who) + ceiling <= self.caps[who[0]] for who in self.whose(job, flow)
        )

    def close(self, id: int, cost: int) -> None:
        for who in self.open.pop(id)[1]:
            self.spent[who] = self.spent.get(who, 0) + cost


async def play(store: Store, tenant: int, deeds: list[tuple[Any, ...]]) -> None:
    model, base = Model(), tenant * 1_000_000_000
    for deed in deeds:
        await follow(store, tenant, base, model, deed)
        await agree(store, tenant, base, model)


async def follow(store: Store, tenant: int, base: int, model: Model, deed: tuple[Any, ...]) -> None:
    if deed[0] == "reserve":
        _, job, flow, ceiling = deed
        tree = None if flow is None else base + 100 + flow
        asked: dict[str, Any] = {"tenant_id": tenant, "flow_tree": tree, "caps": Caps(**model.caps)}
        answer = await ask(store, base + job, ceiling, **asked)
        assert isinstance(answer, Reserved) == model.fits(job, flow, ceiling), (deed, answer)
        if isinstance(answer, Reserved):
            model.open[answer.id] = ceiling, model.whose(job, flow)
    elif deed[0] == "raise":
        model.caps[deed[1]] += deed[2]
    elif deed[0] == "lost":
        mine = [id for id, (_, whose) in model.open.items() if whose[0] == ("job", deed[1])]
        assert await budgets.lost(store, base + deed[1]) == len(mine)
        for id in mine:
            model.lost[id] = model.open[id]
            model.close(id, model.open[id][0])
    elif deed[0] == "late":
        if model.lost:
            id = list(model.lost)[deed[1] % len(model.lost)]
            ceiling, whose = model.lost.pop(id)
            cost = ceiling * deed[2] // 100
            await (settled(store, id, cost) if cost else released(store, id))
            for who in whose:
                model.spent[who] -= ceiling - cost
    elif model.open:
        id = list(model.open)[deed[1] % len(model.open)]
        cost = model.open[id][0] * deed[2] // 100 if deed[0] == "settle" else 0
        await (settled(store, id, cost) if deed[0] == "settle" else released(store, id))
        model.close(id, cost)


async def agree(store: Store, tenant: int, base: int, model: Model) -> None:
    """Each budget's sums are those of the model and of the ledger, and no cap is passed."""
    charges = await store.charges(tenant, limit=10_000)
    for view in await store.budgets(tenant):
        one = view.budget
        number = {"job": one.owner - base, "flow": one.owner - base - 100}.get(one.scope, 0)
        who = one.scope, number
        assert (one.spent_micros, one.reserved_micros) == (model.spent.get(who, 0), model.reserved(who))
        mine = [charge for charge in charges if one.owner in charge.owners]
        assert one.spent_micros == sum(charge.cost_micros for charge in mine)
        assert one.reserved_micros == sum(charge.ceiling_micros for charge in mine if charge.state == "open")
        assert one.spent_micros + one.reserved_micros <= model.caps[one.scope], "the cap is passed"


_tenants = count(1000)


def check_books(url: str, examples: int) -> None:
    """One store for all examples: each has a tenant of its own."""
    with asyncio.Runner() as runner:
        store = runner.run(open_store(url))

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @given(st.lists(DEEDS, max_size=25))
        @example([("reserve", 0, None, 60), ("reserve", 0, None, 60), ("settle", 0, 50), ("reserve", 0, None, 60)])
        def books_agree(deeds: list[tuple[Any, ...]]) -> None:
            runner.run(play(store, next(_tenants), deeds))

        try:
            books_agree()
        finally:
            runner.run(store.close())


def test_whatever_happens_the_sums_are_those_of_the_ledger_and_no_cap_is_passed(database_url: str) -> None:
    check_books(database_url, 40)


@pytest.mark.chaos
def test_whatever_happens_a_thousand_times_the_books_agree(database_url: str) -> None:
    check_books(database_url, 1000)


def test_a_reserve_that_forgets_what_is_reserved_is_caught_by_the_same_check(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = budget_rules.refusing

    def forgetful(found: list[Budget], ceiling: int) -> Budget | None:
        return shipped([one._replace(reserved_micros=0) for one in found], ceiling)

    monkeypatch.setattr(budget_rules, "refusing", forgetful)
    with pytest.raises(AssertionError, match=r"\('reserve', .*Reserved\("):
        check_books(sqlite_url, 5)
