"""`keptwork crews` and `keptwork why` of a crew, as their users meet them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews
from keptwork.crews.commands import Inside
from keptwork.job import JobType
from keptwork.store import open_store
from tests.support.command import run

PROGRAM = """
from keptwork import Keptwork

app = Keptwork()

@app.job()
async def dig(ctx, share, shares, task, where="here"):
    return [where, share]
"""


async def dig(ctx: object, share: int, shares: int, task: str) -> None: ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/crews.db"


def nested(url: str) -> tuple[str, str, str]:
    """A crew, one inside it made by its first share, and one that waits."""

    async def make() -> tuple[str, str, str]:
        store = await open_store(url)
        kind = JobType.of(dig)
        await crews.set_quotas(store, 1, {0: 2})
        outer = await crews.submit(store, crews.new_crew(kind, {}, 1, task="dig a hole", workers=2))
        share = (await store.shares([outer]))[0]
        inner = await crews.submit(
            store, crews.new_crew(kind, {}, 1, task="dig deeper"), Inside(outer, outer, share.id)
        )
        waiting = await crews.submit(store, crews.new_crew(kind, {}, 1, task="fill it", timeout="1h"))
        await store.close()
        return public_id(CREW.name, outer), public_id(CREW.name, inner), public_id(CREW.name, waiting)

    return asyncio.run(make())


def test_a_crew_is_shown_as_a_tree_with_the_workers_in_use(url: str) -> None:
    outer, inner, waiting = nested(url)
    lines = run("crews", "show", outer, "--db", url).stdout.splitlines()
    assert lines[0].split() == ["crew", outer]
    assert "workers in use  depth 0: 2 of 2, depth 1: 1 of 8, depth 2: 0 of 5" in "\n".join(lines)
    drawn = [line.strip("│├└─ ") for line in lines[lines.index("") + 1 :]]
    assert drawn[0] == f"{outer}  RUNNING  dig a hole"
    assert drawn[1].startswith("share 0  job_")
    assert drawn[2] == f"{inner}  RUNNING  dig deeper"
    assert [line.split()[:2] for line in drawn[3:]] == [["share", "0"], ["share", "1"]]
    told = json.loads(run("crews", "show", outer, "--db", url, "--json").stdout)
    assert (told["status"], told["worker_count"], len(told["shares"])) == ("RUNNING", 2, 2)
    assert told["inside"][0]["id"] == inner
    assert told["quotas"][0] == {"depth": 0, "quota": 2, "in_use": 2}
    assert waiting not in json.dumps(told)


def test_crews_are_listed_and_cancelled_with_what_is_inside(url: str) -> None:
    outer, inner, waiting = nested(url)
    listed = json.loads(run("crews", "list", "--db", url, "--json").stdout)["crews"]
    assert [(one["id"], one["state"]) for one in listed] == [(waiting, "PENDING"), (outer, "RUNNING")]
    assert inner in run("crews", "list", "--all", "--state", "running", "--db", url).stdout
    done = run("crews", "cancel", outer, "--reason", "enough", "--db", url)
    assert (done.returncode, done.stdout) == (0, f"{outer} is cancelled, and 1 inside it.\n")
    after = json.loads(run("crews", "list", "--all", "--db", url, "--json").stdout)["crews"]
    assert {one["id"]: one["state"] for one in after} == {outer: "CANCELED", inner: "CANCELED", waiting: "RUNNING"}
    again = run("crews", "cancel", outer, "--db", url)
    assert again.returncode == 1
    assert again.stderr == f"keptwork: crew {outer} is CANCELED: cannot cancel; allowed: nothing, the state is final\n"


def test_why_a_crew_waits(url: str) -> None:
    outer, _, waiting = nested(url)
    lines = run("why", waiting, "--db", url).stdout.splitlines()
    assert lines[0].startswith(f"{waiting} (dig) is PENDING: it needs 1 worker of depth 0, where 2 of 2 are at work")
    assert f"{outer} has 2" in lines[0]
    assert lines[1].startswith(
        "  also: it has a timeout, and is cancelled if it has not ended by then; that is in 60 min"
    )
    told = json.loads(run("why", waiting, "--db", url, "--json").stdout)
    assert (told["id"], [one["cause"] for one in told["reasons"]]) == (waiting, ["quota", "deadline"])


def test_quotas_are_shown_and_set(url: str) -> None:
    nested(url)
    told = json.loads(run("crews", "quotas", "--set", "0=5", "--set", "3=1", "--db", url, "--json").stdout)
    assert [one["quota"] for one in told["quotas"]] == [5, 8, 5, 1, 2, 1]
    for wrong in ("0", "6=1", "0=0", "x=1"):
        refused = run("crews", "quotas", "--set", wrong, "--db", url)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_a_crew_is_submitted_for_a_declared_job_and_done_by_a_worker(tmp_path: Path, url: str) -> None:
    (tmp_path / "diggers.py").write_text(PROGRAM)
    given = ("--task", "dig", "--workers", "2", "--payload", '{"where": "there"}', "--key", "once")
    made = json.loads(run("crews", "submit", "diggers:app", "dig", *given, "--db", url, "--json", cwd=tmp_path).stdout)
    assert (made["state"], made["kind"], made["worker_count"]) == ("RUNNING", "dig", 2)
    again = run("crews", "submit", "diggers:app", "dig", *given, "--db", url, cwd=tmp_path)
    assert again.stdout == f"{made['id']} is RUNNING.\n"
    assert run("work", "diggers:app", "--until-idle", "--db", url, cwd=tmp_path).returncode == 0
    told = json.loads(run("crews", "show", made["id"], "--db", url, "--json").stdout)
    assert (told["state"], told["result"]) == ("COMPLETED", [["there", 0], ["there", 1]])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("nothing",), "diggers:app has no job 'nothing'; it has: dig"),
        (("dig", "--workers", "11"), "a crew of 11 workers cannot be; it has 1 to 10"),
        (("dig", "--payload", "{"), "the payload is no JSON"),
        (("dig", "--payload", '{"share": 1}'), "the arguments share are given to each share by the crew"),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_one_line(
    tmp_path: Path, url: str, given: tuple[str, ...], says: str
) -> None:
    (tmp_path / "diggers.py").write_text(PROGRAM)
    refused = run("crews", "submit", "diggers:app", *given, "--task", "dig", "--db", url, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert says in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_crew_that_can_never_fit_says_why_it_failed(url: str, tmp_path: Path) -> None:
    """It only said that it is FAILED, and ended with 0."""
    (tmp_path / "digging.py").write_text(PROGRAM)
    assert run("migrate", "--db", url).returncode == 0
    assert run("crews", "quotas", "--set", "0=3", "--db", url).returncode == 0
    call = ("crews", "submit", "digging:app", "dig", "--task", "dig", "--workers", "4", "--db", url)
    done = run(*call, cwd=tmp_path)
    assert done.returncode == 1
    why = done.stdout.partition(" is FAILED: ")[2].strip().rstrip(".")
    assert "quota" in why
    assert why in run("crews", "list", "--db", url).stdout
