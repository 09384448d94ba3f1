"""Histograms: the same buckets in Python and in SQL, and percentiles that are right to within a bucket."""

from __future__ import annotations

import random

import apsw
import pytest

from keptwork.core.metrics import BEYOND, BOUNDS_US, Histogram, bucket_of, bucket_sql

EDGES = [us for bound in BOUNDS_US for us in (bound - 1, bound, bound + 1)]


def histogram(times: list[int]) -> Histogram:
    made = Histogram()
    for time in times:
        made.add({bucket_of(time): 1}, time)
    return made


def test_sql_finds_the_bucket_that_python_finds() -> None:
    db = apsw.Connection(":memory:")
    for us in (0, *EDGES, 1 << 50):
        assert db.execute(f"SELECT {bucket_sql('?1')}", (us,)).fetchone() == (bucket_of(us),)
    assert db.execute(f"SELECT {bucket_sql('?1')}", (None,)).fetchone() == (None,)


def test_a_bucket_reaches_to_its_bound_and_no_further() -> None:
    assert [bucket_of(us) for us in (0, 64, 65, 128, 129)] == [64, 64, 128, 128, 256]
    assert bucket_of(BOUNDS_US[-1]) == BOUNDS_US[-1]
    assert bucket_of(BOUNDS_US[-1] + 1) == BEYOND


@pytest.mark.parametrize("seed", range(4))
def test_percentiles_are_right_to_within_their_bucket(seed: int) -> None:
    dice = random.Random(seed)
    times = sorted(int(dice.lognormvariate(6 + 3 * seed, 1.5)) for _ in range(5_000))
    made = histogram(times)
    for share in (0.01, 0.5, 0.95, 0.999):
        exact, found = times[int(share * len(times)) - 1], made.quantile(share)
        assert found is not None
        assert bucket_of(exact) / 2 <= found <= bucket_of(exact) or bucket_of(exact) == BOUNDS_US[0] >= found


def test_percentiles_of_one_and_of_nothing() -> None:
    assert Histogram().quantile(0.5) is None
    assert histogram([100]).quantile(0.5) == 96
    assert histogram([1 << 50]).quantile(0.95) == BOUNDS_US[-1]


def test_what_is_added_adds_up() -> None:
    made = histogram([10, 100])
    made.add({64: 2}, 50)
    assert (made.count, made.sum_us, made.buckets) == (4, 160, {64: 3, 128: 1})
    assert made.cumulative()[:2] == [(64, 3), (128, 4)]
    assert made.cumulative()[-1] == (BEYOND, 4)
