"""Many claimers in as many processes: no job goes to two of them, none is missed, and none of them starves."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest

from keptwork.store import EventFilter, NewJob, open_store
from tests.acceptance.observer import drop_claim_guards

BATCH = 5


async def fill(url: str, jobs: int) -> None:
    store = await open_store(url)
    for start in range(0, jobs, 1000):
        await store.enqueue([NewJob("noop")] * min(1000, jobs - start))
    await store.close()


async def claims_in_log(url: str) -> Counter[int]:
    store = await open_store(url)
    counted: Counter[int] = Counter()
    page = await store.events(EventFilter(type="job_claimed"), limit=5000)
    while page:
        counted.update(event.entity_id for event in page)
        page = await store.events(EventFilter(type="job_claimed"), after=page[-1].cursor, limit=5000)
    await store.close()
    return counted


def run_claimers(url: str, processes: int, twin: str = "") -> tuple[list[list[int]], float]:
    command = [
        sys.executable,
        "-m",
        "tests.acceptance.claimers",
        url,
        str(processes),
        str(BATCH),
        *([twin] * bool(twin)),
    ]
    began = time.monotonic()
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert answer["failed"] == 0
    return answer["got"], time.monotonic() - began


def check(url: str, processes: int, jobs: int) -> None:
    asyncio.run(fill(url, jobs))
    got, seconds = run_claimers(url, processes)
    claimed = Counter(job for jobs in got for job in jobs)
    shares, fair = sorted(len(jobs) for jobs in got), jobs // processes
    doubled, missed = sum(times > 1 for times in claimed.values()), jobs - len(claimed)
    figures = f"{processes} claimers, {jobs} jobs, doubled {doubled}, missed {missed}"
    print(f"\n{urlsplit(url).scheme}: {figures}, shares {shares[0]} to {shares[-1]} (fair {fair}), {seconds:.1f} s")
    assert len(got) == processes
    assert (doubled, missed) == (0, 0)
    assert shares[0] >= fair // 10
    assert asyncio.run(claims_in_log(url)) == claimed


def test_32_processes_claim_3000_jobs_once_each_and_none_starves(database_url: str) -> None:
    check(database_url, 32, 3_000)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_64_processes_claim_10000_jobs_once_each_and_none_starves(database_url: str) -> None:
    check(database_url, 64, 10_000)


def test_claims_that_do_not_lock_are_caught_by_the_same_check(database_url: str) -> None:
    asyncio.run(fill(database_url, 1000))
    asyncio.run(drop_claim_guards(database_url))
    got, _ = run_claimers(database_url, 8, twin="no-lock")
    assert max(Counter(job for jobs in got for job in jobs).values()) > 1
