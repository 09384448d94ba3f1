"""Whether a call may be paid for: caps, warnings, what is let go, and the tokens of a minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.agents import budget_rules
from keptwork.agents.budget_rules import MINUTE_US, TURN_US, Wait
from keptwork.core.money import Caps, dollars, micros
from keptwork.errors import BadInput
from keptwork.store.contract.budgets import Bucket, Budget

NOW = 1_800_000_000_000_000
TODAY = NOW // 86_400_000_000
TENANT = Budget(1, 0, "tenant", "total", 1000, 80, "config", 300, 200, None, 0, None, None, 0, 0)
MODEL = Bucket("p", "m")


def test_a_call_fits_up_to_the_last_millionth() -> None:
    assert budget_rules.refusing([TENANT], 500) is None
    assert budget_rules.refusing([TENANT], 501) == TENANT
    assert budget_rules.refusing([TENANT._replace(cap_micros=None)], 10**12) is None


def test_of_several_budgets_the_narrowest_refuses() -> None:
    scopes = ("day", "tenant", "flow", "job")
    full = [TENANT._replace(scope=scope, cap_micros=0) for scope in scopes]
    assert budget_rules.refusing(full, 1) == full[-1]
    assert budget_rules.refusing(full[:2], 1) == full[1]


def test_a_refusal_says_what_is_spent_what_was_asked_and_that_it_can_never_fit() -> None:
    says = "the tenant's budget has $0.0003 of $0.0010 spent and $0.0002 reserved, and the next call may cost $0.0006"
    assert budget_rules.refusal(TENANT, 600) == says.replace("$0.0010", "$0.001000"[:7])
    assert "more than the whole cap" in budget_rules.refusal(TENANT, 1001)


def test_a_cap_follows_the_configuration_unless_somebody_gave_it() -> None:
    caps = Caps(tenant=5, warn_percent=50)
    assert budget_rules.configured(TENANT, caps)[4:6] == (5, 50)
    assert budget_rules.configured(TENANT._replace(said_by="cli:ann"), caps)[4:6] == (1000, 50)


def test_a_warning_is_given_once_until_the_cap_is_raised() -> None:
    near = TENANT._replace(spent_micros=800)
    (warned,) = budget_rules.warned([near], NOW)
    assert warned.warned_at == NOW
    assert budget_rules.warned([warned, TENANT, near._replace(cap_micros=None)], NOW) == []
    assert budget_rules.configured(warned, Caps(tenant=1000)).warned_at == NOW
    assert budget_rules.configured(warned, Caps(tenant=5000)).warned_at is None


def test_as_many_jobs_go_as_would_fit_and_what_they_need_is_kept_free_for_a_moment() -> None:
    held = TENANT._replace(wanted_micros=200)
    assert budget_rules.may_go(held, NOW) == 2
    gone = budget_rules.let_go(held, 2, NOW)
    assert budget_rules.may_go(gone, NOW) == 0
    assert budget_rules.may_go(budget_rules.promise_kept(gone, 200), NOW) == 1
    assert budget_rules.may_go(gone, NOW + TURN_US) == 2
    assert budget_rules.may_go(held._replace(spent_micros=900), NOW) == 0


def test_all_go_when_the_day_is_over_or_there_is_no_cap() -> None:
    assert budget_rules.may_go(None, NOW) is None
    assert budget_rules.may_go(TENANT._replace(cap_micros=None), NOW) is None
    day = TENANT._replace(scope="day", owner=TODAY, cap_micros=0)
    assert budget_rules.may_go(day, NOW) == 0
    assert budget_rules.may_go(day, budget_rules.over_at(day) or 0) is None


# --- tokens


def test_a_minute_of_tokens_may_be_taken_at_once_and_then_they_trickle() -> None:
    full = budget_rules.asked(MODEL, 600, 600, NOW)
    assert isinstance(full, Bucket)
    wait = budget_rules.asked(full, 60, 600, NOW)
    assert isinstance(wait, Wait)
    assert wait.until_us == NOW + MINUTE_US // 10
    assert isinstance(budget_rules.asked(full, 60, 600, wait.until_us), Bucket)
    assert isinstance(budget_rules.asked(full, 60, 600, wait.until_us - 1), Wait)


def test_a_call_of_more_than_a_minute_goes_when_nothing_else_is_under_way() -> None:
    some = budget_rules.asked(MODEL, 60, 600, NOW)
    assert isinstance(some, Bucket)
    wait = budget_rules.asked(some, 6000, 600, NOW)
    assert isinstance(wait, Wait)
    assert wait.until_us == some.empty_at
    assert isinstance(budget_rules.asked(some, 6000, 600, wait.until_us), Bucket)


def test_what_was_really_used_corrects_the_bucket() -> None:
    full = budget_rules.asked(MODEL, 600, 600, NOW)
    assert isinstance(full, Bucket)
    assert budget_rules.corrected(full, 600, 60, NOW).empty_at == NOW + MINUTE_US // 10
    assert budget_rules.corrected(full, 600, 660, NOW).empty_at == NOW + MINUTE_US + MINUTE_US // 10
    late = NOW + 10 * MINUTE_US
    assert budget_rules.corrected(full, 600, 660, late).empty_at == late + MINUTE_US // 10


def test_a_provider_that_wants_to_be_left_alone_is_even_without_a_limit() -> None:
    blocked = MODEL._replace(blocked_until=NOW + 5)
    assert budget_rules.asked(blocked, 1, None, NOW) == Wait(NOW + 5, "p asked to leave m alone for a while")
    assert budget_rules.asked(blocked, 1, None, NOW + 5) == blocked


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 900), st.integers(0, 30_000_000)), max_size=60))
def test_in_no_minute_more_than_two_minutes_worth_of_tokens_is_used(calls: list[tuple[int, int, int]]) -> None:
    """A minute's worth that was saved up, and a minute's worth that trickles; what was used beyond what was taken is
    made up for afterwards."""
    bucket, now, used_at = MODEL, NOW, []
    for tokens, used, pause in calls:
        now += pause
        after = budget_rules.asked(bucket, tokens, 900, now)
        if isinstance(after, Wait):
            assert after.until_us > now
            now = after.until_us
            after = budget_rules.asked(bucket, tokens, 900, now)
        assert isinstance(after, Bucket)
        used = min(used, tokens)
        bucket = budget_rules.corrected(after, tokens, used, now)
        used_at.append((now, used))
    for begin, _ in used_at:
        assert sum(used for at, used in used_at if begin <= at < begin + MINUTE_US) <= 2 * 900


# --- amounts


@pytest.mark.parametrize("wrong", ["-1", "a lot", "nan", "inf", "1e99", "0.0000001", ""])
def test_what_is_no_amount_is_refused(wrong: str) -> None:
    with pytest.raises(BadInput, match="is no amount of dollars"):
        micros(wrong)


@given(st.integers(0, 10**15))
def test_an_amount_is_shown_to_its_cent_or_closer(amount: int) -> None:
    shown = dollars(amount)
    assert shown.startswith("$")
    assert abs(micros(shown.replace(",", "")) - amount) <= (5_000 if amount >= 1_000_000 else 50)
    assert len(shown.partition(".")[2]) >= 2


def test_caps_are_read_as_a_configuration_says_them() -> None:
    assert Caps.of_dollars("2", None, 0.5, warn_at=0.75) == Caps(2_000_000, None, 500_000, None, 75)
    with pytest.raises(BadInput, match="warn_at"):
        Caps.of_dollars(warn_at=80)
