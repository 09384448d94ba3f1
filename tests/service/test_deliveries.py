"""What becomes of a message after an attempt: pure decisions."""

from __future__ import annotations

import random

import pytest

from keptwork.store.contract.outbox import MOST_ATTEMPTS, Delivery
from keptwork.webhooks.http_post import LONGEST_PAUSE_US, Answer, verdict

HOUR_US = 3_600_000_000


def after(attempts: int, most: int = MOST_ATTEMPTS) -> Delivery:
    return Delivery(
        1, 1, "run", 1, 2, "run.failed", "https://example.com/", "{}", None, "pending", attempts, most, 0, 0, None, None
    )


def test_attempts_are_spread_over_about_a_day_and_then_given_up() -> None:
    pauses = [verdict(after(n), Answer(503), lambda: 0.5) for n in range(1, MOST_ATTEMPTS)]
    assert {one.state for one in pauses} == {"pending"}
    assert 20 * HOUR_US < sum(one.delay_us for one in pauses) < 28 * HOUR_US
    assert [one.delay_us for one in pauses] == sorted(one.delay_us for one in pauses)
    assert verdict(after(MOST_ATTEMPTS), Answer(503), lambda: 0.5) == ("given_up", 0, "the answer was 503")


def test_no_pause_is_longer_than_the_longest_nor_the_same_for_all() -> None:
    chance = random.Random(1).random
    pauses = {verdict(after(n), Answer(500, retry_after_us=1 << 60), chance).delay_us for n in range(1, 14)}
    assert pauses == {LONGEST_PAUSE_US}
    assert len({verdict(after(3), Answer(500), chance).delay_us for _ in range(50)}) > 40


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_delivered(status: int) -> None:
    assert verdict(after(14), Answer(status), lambda: 0).state == "delivered"


@pytest.mark.parametrize("answer", [Answer(status) for status in (300, 301, 302, 307, 400, 401, 404, 410, 422)])
def test_what_will_hardly_pass_is_tried_a_few_times(answer: Answer) -> None:
    assert [verdict(after(n), answer, lambda: 0).state for n in (1, 2, 3)] == ["pending", "pending", "given_up"]


@pytest.mark.parametrize("answer", [Answer(408), Answer(425), Answer(429), Answer(500), Answer(599), Answer(error="x")])
def test_what_may_pass_is_tried_until_the_last(answer: Answer) -> None:
    assert [verdict(after(n), answer, lambda: 0).state for n in (1, 3, 13, 14)] == [*["pending"] * 3, "given_up"]


def test_after_an_operators_retry_attempts_count_from_there() -> None:
    assert verdict(after(16, 14 + MOST_ATTEMPTS), Answer(404), lambda: 0).state == "pending"
    assert verdict(after(17, 14 + MOST_ATTEMPTS), Answer(404), lambda: 0).state == "given_up"
    assert verdict(after(27, 14 + MOST_ATTEMPTS), Answer(500), lambda: 0).state == "pending"
    assert verdict(after(28, 14 + MOST_ATTEMPTS), Answer(500), lambda: 0).state == "given_up"


def test_a_long_error_is_cut() -> None:
    assert len(str(verdict(after(1), Answer(error="x" * 5000), lambda: 0).error)) == 300
