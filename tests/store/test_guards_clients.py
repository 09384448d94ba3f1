"""The same guards, from the system's own `sqlite3` and `psql`: programs that have never heard of Keptwork."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from keptwork.store import open_store
from keptwork.store.url import database_url as parsed
from tests.store.clients import Client, Said, psql, sqlite_program, sqlite_stdlib
from tests.store.entities import Entity, born, insert, move, put
from tests.store.guard_check import misrecorded
from tests.store.hands import Hand, PostgresHand, SqliteHand

pytestmark = pytest.mark.acceptance

CLAIM = ("claim", "assigned")


@pytest.fixture(params=["sqlite3", "python", "psql of the server", "psql of the system"])
async def client_and_url(request: pytest.FixtureRequest) -> tuple[Client, str]:
    """A program and the database it is typed into."""
    if request.param in ("sqlite3", "python"):
        url: str = request.getfixturevalue("sqlite_url")
        make: Callable[[str], Client] = sqlite_program if request.param == "sqlite3" else sqlite_stdlib
        client = make(parsed(url).path)
    else:
        url = request.getfixturevalue("postgres_url")
        client = psql(_psql(request), url)
    await (await open_store(url)).close()
    return client, url


def _psql(request: pytest.FixtureRequest) -> str:
    if request.param == "psql of the server":
        return str(request.getfixturevalue("postgres_server").bin("psql"))
    return shutil.which("psql") or pytest.skip("no psql on this machine but the server's, which is tested too")


@pytest.fixture
def client(client_and_url: tuple[Client, str]) -> Client:
    return client_and_url[0]


@pytest.fixture
def hand(client_and_url: tuple[Client, str]):
    url = client_and_url[1]
    opened: Hand = SqliteHand(parsed(url).path) if url.startswith("sqlite") else PostgresHand(url)
    yield opened
    opened.close()


@pytest.fixture
def job(hand: Hand) -> Entity:
    return born(hand, "job", key="'order-17'")


def refused(said: Said, message: str) -> bool:
    """It failed, and the reader was told why in our words, on one line."""
    told = [line for line in said.err.splitlines() if f"keptwork: {message}" in line]
    return said.code != 0 and len(told) == 1


def test_a_legal_move_is_logged_exactly_once(client, hand, job):
    before = job.row(hand)
    assert client(move(job, *CLAIM)) == (0, "", "")
    assert misrecorded(hand, job, before, *CLAIM, 0) is None


def test_a_whole_life_is_logged_move_by_move(client, hand, job):
    steps = [(*CLAIM, 0), ("start", "running", 0), ("retry", "queued", 1), (*CLAIM, 0), ("cancel", "cancelled", 0)]
    for trigger, target, epochs in steps:
        before = job.row(hand)
        assert client(move(job, trigger, target, epochs)).code == 0
        assert misrecorded(hand, job, before, trigger, target, epochs) is None
    assert [event["trigger"] for event in job.events(hand)] == ["enqueue", *(step[0] for step in steps)]


@pytest.mark.parametrize(
    ("trigger", "target", "epochs"),
    [("succeed", "succeeded", 0), ("claim", "running", 0), ("claim", "assigned", 1), ("fly", "queued", 0)],
)
def test_an_illegal_move_is_refused_in_words(client, hand, job, trigger, target, epochs):
    before, log = job.row(hand), job.events(hand)
    assert refused(client(move(job, trigger, target, epochs)), "no declared move of a job")
    assert (job.row(hand), job.events(hand)) == (before, log)


@pytest.mark.parametrize("settings", ["state = 'succeeded'", "seq = seq + 1", "epoch = 9"])
def test_an_edit_behind_the_lifecycle_is_refused(client, hand, job, settings):
    before = job.row(hand)
    assert refused(client(f"UPDATE jobs SET {settings}"), "no declared move of a job")
    assert job.row(hand) == before


def test_the_log_is_out_of_reach(client, hand, job):
    log = job.events(hand)
    forged = (
        "INTO events (entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, to_state) "
        f"VALUES ({job.id}, 1, 1, {{seq}}, 0, 'job', 'job_enqueued', 'enqueue', 'queued')"
    )
    attempts = ["UPDATE events SET reason = 'x'", "DELETE FROM events", f"INSERT {forged.format(seq=2)}"]
    if hand.dialect == "sqlite":
        same = f"INSERT OR REPLACE {forged.format(seq=1)}"
        by_id = same.replace("(entity_id", "(id, entity_id").replace("VALUES (", f"VALUES ({log[0]['id']}, ")
        attempts += [same, by_id, "UPDATE OR REPLACE events SET rowid = rowid + 1"]
    else:
        attempts += ["TRUNCATE events", "TRUNCATE jobs, events CASCADE"]
    for attempt in attempts:
        said = client(attempt)
        assert said.code != 0, attempt
        assert "keptwork: " in said.err, said
    assert job.events(hand) == log


def test_a_row_is_not_replaced_deleted_or_renamed(client, hand, job):
    before, log = job.row(hand), job.events(hand)
    assert refused(client(f"DELETE FROM jobs WHERE id = {job.id}"), "a job that has not ended cannot be deleted")
    assert refused(client("UPDATE jobs SET key = 'order-18'"), "id, tenant, key and birth of a job never change")
    if hand.dialect == "sqlite":
        exists = "this job exists already and cannot be replaced"
        assert refused(client(insert("job", job.id, "INSERT OR REPLACE")), exists)
        assert refused(client(insert("job", job.id + 1, "INSERT OR REPLACE", key="'order-17'")), exists)
        assert refused(client("UPDATE jobs SET rowid = 5"), "id, tenant, key and birth of a job never change")
    assert (job.row(hand), job.events(hand)) == (before, log)


def test_an_override_needs_a_reason_and_shows_as_one(client, hand, job):
    override = move(job, "override", "succeeded", 1)
    assert refused(client(override), "no declared move of a job")
    before = job.row(hand)
    because = move(job, "override", "succeeded", 1, ", reason = 'paid by hand'")
    assert client(because).code == 0
    assert misrecorded(hand, job, before, "override", "succeeded", 1, "paid by hand") is None


def test_a_job_typed_in_is_born_with_its_event(client, hand):
    entity = Entity("job", 77)
    assert client(insert("job", entity.id)) == (0, "", "")
    assert misrecorded(hand, entity, None, "enqueue", "queued", 0) is None


# Kind and state of a step, and the move its job's start makes of it.
STEP_STARTS = [
    ("run-step", "PENDING", "claim", "RUNNING"),
    ("run-step", "RUNNING", "reclaim", "RUNNING"),
    ("workstream-step", "S_PENDING", "dependencies_met", "S_RUNNING"),
    ("workstream-step", "S_RETRYING", "retry_attempt", "S_RUNNING"),
    ("workstream-step", "S_RUNNING", None, "S_RUNNING"),
]


def test_a_job_whose_start_is_typed_in_starts_its_step_with_one_event(client, hand):
    for kind, state, trigger, target in STEP_STARTS:
        step = put(hand, kind, state)
        job = born(hand, "job", step_id=str(step.id))
        before, log = step.row(hand), step.events(hand)
        assert client(move(job, *CLAIM)) == (0, "", "")
        assert (step.row(hand), step.events(hand)) == (before, log)
        assert client(move(job, "start", "running", more=", attempts = 1")) == (0, "", "")
        after = step.row(hand)
        assert (after["state"], after["job_id"], after["attempts"]) == (target, job.id, 1)
        assert [event["trigger"] for event in step.events(hand)[len(log) :]] == ([trigger] if trigger else [])
        assert after["seq"] == len(step.events(hand))


FOREIGN_SESSIONS = {
    "another search_path": "SET search_path = pg_catalog",
    "an empty search_path": "SET search_path = ''",
    "the role of the API": "SET ROLE keptwork_app; SET keptwork.tenant = '1'; SET search_path = pg_catalog",
}


@pytest.mark.parametrize("session", FOREIGN_SESSIONS)
class TestAForeignSession:
    """Whatever a session's search_path or role is, its moves are guarded and logged."""

    @pytest.fixture
    def client_and_url(self, postgres_server, postgres_url, migrated, session) -> tuple[Client, str]:
        plain = psql(str(postgres_server.bin("psql")), postgres_url)
        return (lambda sql: plain(f"{FOREIGN_SESSIONS[session]}; {sql}")), postgres_url

    @pytest.fixture
    async def migrated(self, postgres_url) -> None:
        await (await open_store(postgres_url)).close()

    def test_a_legal_move_is_logged(self, client, hand, job):
        before = job.row(hand)
        assert client(move(job, *CLAIM).replace("UPDATE jobs", "UPDATE public.jobs")).code == 0
        assert misrecorded(hand, job, before, *CLAIM, 0) is None

    def test_an_illegal_move_is_refused(self, client, hand, job):
        illegal = move(job, "succeed", "succeeded").replace("UPDATE jobs", "UPDATE public.jobs")
        assert refused(client(illegal), "no declared move of a job")

    def test_a_job_is_born_by_the_defaults_of_the_table(self, client, hand):
        columns = "INSERT INTO public.jobs (tenant_id, state, move, queue, kind, payload)"
        said = client(f"{columns} VALUES (1, 'queued', 'enqueue', 'default', 'by hand', '{{}}') RETURNING id")
        assert said.code == 0, said
        assert misrecorded(hand, Entity("job", int(said.out)), None, "enqueue", "queued", 0) is None
