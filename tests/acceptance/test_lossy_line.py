"""Workers whose line to the server loses answers at random: each job has one effect, and no claim is left behind."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.acceptance.chaos import Stage, stage
from tests.acceptance.examination import Findings
from tests.support.lossy_proxy import LossyProxy

LONGEST_WORK = 0.02
CHANCE = 0.1


def work_on_a_lossy_line(on: Stage, proxy: LossyProxy, workers: int, jobs: int) -> Findings:
    """The line is good until everyone is at work, and from then on bad until all is done."""
    on.feed(jobs, LONGEST_WORK)
    for member in on.fleet.start(workers):
        on.wait_for_delivery_by(member.pid)
    proxy.lose_at_random(CHANCE)
    on.wait_for_backlog(0)
    on.wait_until_done(patience=5)
    proxy.lose_at_random(0)
    assert on.fleet.bury_dead() == []
    found = on.examine()
    print(f"\n{on.kind}: {workers} workers, {proxy.lost} answers lost, {found}")
    return found


def check(url: str, workers: int, jobs: int) -> int:
    # Long leases: a claim that nobody knows of would not come back by itself before patience ends.
    with (
        closing(LossyProxy(url, seed=1)) as proxy,
        stage(url, seed=20, lease="120s", through=proxy.url) as on,
    ):
        found = work_on_a_lossy_line(on, proxy, workers, jobs)
    assert found.wrong == []
    assert found.expired_under_the_living == 0
    return proxy.lost


def test_2_workers_on_a_line_that_loses_answers_finish_400_jobs_with_one_effect_each(postgres_copy: str) -> None:
    assert check(postgres_copy, workers=2, jobs=400) > 5


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_8_workers_on_a_line_that_loses_answers_finish_10000_jobs_with_one_effect_each(postgres_copy: str) -> None:
    assert check(postgres_copy, workers=8, jobs=10_000) > 200


def test_workers_that_do_not_ask_for_a_lost_claim_again_are_caught_by_the_same_check(postgres_copy: str) -> None:
    with (
        closing(LossyProxy(postgres_copy, seed=2)) as proxy,
        stage(postgres_copy, seed=21, lease="120s", twin="no-again", through=proxy.url) as on,
    ):
        assert work_on_a_lossy_line(on, proxy, workers=2, jobs=3000).lost
