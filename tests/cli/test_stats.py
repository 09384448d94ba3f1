"""`keptwork stats` as its users run it: figures of other processes, on a screen of any width, and for programs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from keptwork.store import NewJob, open_store
from tests.cli.queue_scene import answer, fill, said
from tests.support.command import run

PROGRAM = """
from keptwork import Keptwork

app = Keptwork()

@app.job(max_attempts=2, backoff="1ms")
async def pay_the_invoice(ctx, number):
    if number % 3 == 0:
        raise ValueError(number)
"""


def worked(folder: Path, url: str, jobs: int) -> None:
    """Jobs enqueued here, every second one twice under the same key, and done by another process."""
    (folder / "shop.py").write_text(PROGRAM)

    async def enqueued() -> None:
        store = await open_store(url)
        for number in sorted([*range(jobs), *range(1, jobs, 2)]):
            payload = f'{{"number": {number}}}'
            await store.enqueue([NewJob("pay_the_invoice", payload, key=f"k{number}", max_attempts=1)])
        await store.close()

    asyncio.run(enqueued())
    assert run("work", "shop:app", "--until-idle", "--db", url, cwd=folder).returncode == 0


def test_the_figures_of_other_processes_are_shown(database_url, tmp_path):
    assert run("migrate", "--db", database_url).returncode == 0
    assert said(database_url, "stats") == "Nothing was counted yet: no entity has made a move.\n"
    worked(tmp_path, database_url, 4)

    found = answer(database_url, "stats")
    (kind,) = found["kinds"]
    assert (kind["kind"], kind["enqueue"], kind["succeed"], kind["dead_letter"]) == ("pay_the_invoice", 4, 2, 2)
    assert (kind["claim"], kind["ended"], kind["success_rate"]) == (4, 4, 0.5)
    assert 0 < kind["run_seconds"]["p50"] <= kind["run_seconds"]["p95"]
    assert kind["wait_seconds"]["count"] == 4
    assert found["idempotency"] == {"hit": 2, "miss": 4, "hit_rate": 2 / 6}
    assert found["claim_calls"]["jobs"] >= 1
    assert found["last_minute"]["succeed"] == 2
    assert found["dead_letters"] == [{"kind": "pay_the_invoice", "reason": "exhausted_retries", "count": 2}]
    assert {"entity": "worker", "from": "", "to": "IDLE", "trigger": "register", "count": 1} in found["transitions"]
    assert found == {**answer(database_url, "stats"), "at": found["at"], "last_minute": found["last_minute"]}

    for columns in (80, 200):
        told = said(database_url, "stats", columns=columns)
        for words in ("4 ", "50.0%", "dead_letter", "exhausted_retries", "33.3% used before (2)", "In the last minute"):
            assert words in told
        assert "\x1b" not in told

    text = run("stats", "--prometheus", "--db", database_url).stdout
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    (succeeded,) = [sample.value for sample in samples if sample.name == "keptwork_successes_total"]
    assert succeeded == 2


def test_a_refusal_is_counted_though_its_process_has_ended(sqlite_url):
    jobs = fill(sqlite_url)
    assert run("jobs", "cancel", jobs["failed"], "--db", sqlite_url).returncode == 1
    refused = answer(sqlite_url, "stats")["refused_transitions"]
    assert refused == [{"entity": "job", "from": "failed", "trigger": "cancel", "count": 1}]
    assert "Refused" in said(sqlite_url, "stats")


def test_what_cannot_be_is_one_clear_line(sqlite_url):
    fill(sqlite_url)
    both = run("stats", "--prometheus", "--json", "--db", sqlite_url)
    assert (both.returncode, both.stdout) == (2, "")
    assert "two formats" in both.stderr
    nobody = run("stats", "--tenant", "nobody", "--db", sqlite_url)
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "No tenant nobody" in nobody.stderr
